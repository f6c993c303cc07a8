"""What SAC is made of for one behavior, what of it learns, and what its losses take over branches.

Minibatches [n], R reward signals, K outputs of Q (the choices of all branches, or one), D branches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.algorithms.hyperparameters import SACHyperparameters
from jaxrl.algorithms.interface import Storage, TrainState
from jaxrl.algorithms.off_policy import storage_of
from jaxrl.learning.cloning import Cloning
from jaxrl.networks import actions
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.models import ActionValueNetwork, SquashedActor, ValueNetwork
from jaxrl.rollout.buffer.cells import Extras
from jaxrl.settings import BehaviorSettings
from jaxrl.types import Action, BehaviorSpec


class Parts(NamedTuple):
    """SAC for one behavior."""

    spec: BehaviorSpec
    settings: BehaviorSettings
    hyper: SACHyperparameters
    actor: SquashedActor
    value: ValueNetwork
    q: ActionValueNetwork
    storage: Storage
    cloning: Cloning | None = None


def parts_of(spec: BehaviorSpec, settings: BehaviorSettings) -> Parts:
    """The networks."""
    shape, signals, hyper = settings.network_settings, tuple(settings.reward_signals), settings.hyperparameters
    assert isinstance(hyper, SACHyperparameters)
    actor, value = SquashedActor(spec, shape), ValueNetwork(spec, shape, signals)
    storage = storage_of(spec, hyper, shape.memory, memories_of(settings))
    return Parts(spec, settings, hyper, actor, value, ActionValueNetwork(spec, shape, signals), storage)


def memories_of(settings: BehaviorSettings) -> Extras:
    """Of the policy and of V, which remember from decision to decision; Q begins anew with each sequence."""
    memory = settings.network_settings.memory
    return () if memory is None else tuple((name, (memory.memory_size,)) for name in ("actor", "critic"))


def groups_of(state: TrainState) -> dict[str, Any]:
    """Parameters by optimizer. The target follows V and has none."""
    critic = {name: state.critic[name] for name in ("value", "q1", "q2")}
    return {"policy": state.policy.params, "critic": critic, "entropy": state.own["log_alpha"]}


def temperatures_of(spec: BehaviorSpec) -> dict[str, int]:
    """How many temperatures there are of each kind of action."""
    kinds = {"continuous": min(spec.action.continuous_size, 1), "discrete": len(spec.action.discrete_branches)}
    return {kind: count for kind, count in kinds.items() if count}


class Soft(NamedTuple):
    """What the policy does in some states, and what that costs in entropy."""

    log_prob: jax.Array  # [n], of the continuous action, summed over its dimensions; 0 without
    branches: list[jax.Array]  # p of each branch [n, size]
    negentropy: jax.Array  # [n, D], Σ p log p of each branch


def soft_of(dist: ActionDistribution, log_prob: jax.Array, mask: jax.Array, parts: Parts) -> Soft:
    """Of a distribution in states [n], and what was drawn from it: log_prob [n]."""
    branches = [p + actions.EPSILON for p in actions.probabilities(dist, mask, parts.spec.action)]
    terms = [jnp.sum(p * jnp.log(p), axis=-1) for p in branches]
    return Soft(log_prob, branches, jnp.stack(terms, -1) if terms else jnp.zeros((*log_prob.shape, 0)))


def _by_branch(q: jax.Array, parts: Parts) -> list[jax.Array]:
    """Q [..., M] of each branch, [..., size]."""
    sizes = parts.spec.action.discrete_branches
    return [q[..., sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(len(sizes))]


def expected_q(q: jax.Array, soft: Soft, parts: Parts) -> jax.Array:
    """E Q under the policy, [n, R, K] → [n, R, D] of each branch; [n, R, 1] without."""
    if not soft.branches:
        return q
    return jnp.stack(
        [(p[..., None, :] * x).sum(-1) for p, x in zip(soft.branches, _by_branch(q, parts), strict=True)], axis=-1
    )


def taken_q(q: jax.Array, action: Action, parts: Parts) -> jax.Array:
    """Q of the stored action, [n, R, K] → [n, R]: the mean over its branches."""
    if not parts.spec.action.discrete_branches:
        return q[..., 0]
    chosen = [
        jnp.take_along_axis(x, jnp.broadcast_to(action.discrete[..., i, None, None], (*x.shape[:-1], 1)), axis=-1)
        for i, x in enumerate(_by_branch(q, parts))
    ]
    return jnp.concatenate(chosen, axis=-1).mean(-1)
