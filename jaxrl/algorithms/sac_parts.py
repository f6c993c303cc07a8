"""Parts of SAC for one behavior: networks, parameter groups, terms of its losses over branches, and acting.

Minibatches [n], R reward signals, K outputs of Q (the choices of all branches, or one), D branches.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.hyperparameters import SACHyperparameters
from jaxrl.algorithms.interface import Decision, Metrics, PolicyState, Storage, TrainState
from jaxrl.algorithms.off_policy import counted, storage_of
from jaxrl.algorithms.parts import applied
from jaxrl.algorithms.preparing import ACTOR_CHUNK, by_stream
from jaxrl.learning.cloning import Cloning
from jaxrl.learning.losses import masked_mean
from jaxrl.networks import actions, normalizer, squashed
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.memory import part
from jaxrl.networks.models import ActionValueNetwork, SquashedActor, ValueNetwork
from jaxrl.rewards.signals import Signals
from jaxrl.rollout.buffer.cells import Extras
from jaxrl.rollout.chunks import in_chunks
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.types import Action, BehaviorSpec


class Parts(NamedTuple):
    """Networks, settings and storage of SAC for one behavior."""

    spec: BehaviorSpec
    settings: BehaviorSettings
    hyper: SACHyperparameters
    actor: SquashedActor
    value: ValueNetwork
    q: ActionValueNetwork
    storage: Storage
    cloning: Cloning | None = None


def parts_of(spec: BehaviorSpec, settings: BehaviorSettings) -> Parts:
    """Make the networks and the storage."""
    shape, signals, hyper = settings.network_settings, tuple(settings.reward_signals), settings.hyperparameters
    assert isinstance(hyper, SACHyperparameters)
    actor, value = SquashedActor(spec, shape), ValueNetwork(spec, shape, signals)
    storage = storage_of(spec, hyper, shape.memory, memories_of(settings))
    return Parts(spec, settings, hyper, actor, value, ActionValueNetwork(spec, shape, signals), storage)


def memories_of(settings: BehaviorSettings) -> Extras:
    """Return names and shapes of the memories of policy and V; Q starts every sequence without memory."""
    memory = settings.network_settings.memory
    return () if memory is None else tuple((name, (memory.memory_size,)) for name in ("actor", "critic"))


def groups_of(state: TrainState) -> dict[str, Any]:
    """Return the parameters by optimizer. The target follows V and has no optimizer."""
    critic = {name: state.critic[name] for name in ("value", "q1", "q2")}
    return {"policy": state.policy.params, "critic": critic, "entropy": state.own["log_alpha"]}


def backs_up_entropy(parts: Parts) -> bool:
    """Return whether V counts the policy's entropy: as `backup_entropy` says, else not with hybrid actions."""
    hyper, spec = parts.hyper, parts.spec.action
    if hyper.backup_entropy is not None:
        return hyper.backup_entropy
    return hyper.original_losses or not (spec.continuous_size and spec.discrete_branches)


def temperatures_of(spec: BehaviorSpec) -> dict[str, int]:
    """Return the number of temperatures by kind of action."""
    kinds = {"continuous": min(spec.action.continuous_size, 1), "discrete": len(spec.action.discrete_branches)}
    return {kind: count for kind, count in kinds.items() if count}


class Soft(NamedTuple):
    """Probabilities of the policy's actions in some states, and their entropies."""

    log_prob: jax.Array  # [n], of the continuous action, summed over its dimensions; 0 without
    branches: list[jax.Array]  # p of each branch [n, size]
    negentropy: jax.Array  # [n, D], Σ p log p of each branch


def soft_of(dist: ActionDistribution, log_prob: jax.Array, mask: jax.Array, parts: Parts) -> Soft:
    """Make `Soft` of a distribution in states [n] and log_prob [n] of the drawn action."""
    branches = [p + actions.EPSILON for p in actions.probabilities(dist, mask, parts.spec.action)]
    terms = [jnp.sum(p * jnp.log(p), axis=-1) for p in branches]
    return Soft(log_prob, branches, jnp.stack(terms, -1) if terms else jnp.zeros((*log_prob.shape, 0)))


def _by_branch(q: jax.Array, parts: Parts) -> list[jax.Array]:
    """Split Q [..., M] into the branches, [..., size] each."""
    sizes = parts.spec.action.discrete_branches
    return [q[..., sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(len(sizes))]


def target_entropies(mask: jax.Array, parts: Parts) -> jax.Array:
    """Return 0.2 log of the number of choices that the mask [n, M] allows in each branch, [n, D]; 0 for a single one.

    With `original_losses` it is that of all choices of the branch, whatever the mask.
    """
    if parts.hyper.original_losses:
        mask = jnp.ones_like(mask)
    sizes = parts.spec.action.discrete_branches
    targets = 0.2 * np.log(np.maximum(np.arange(max(sizes) + 1), 1), dtype=np.float32)
    return jnp.asarray(targets)[jnp.stack([allowed.sum(-1) for allowed in _by_branch(mask, parts)], axis=-1)]


def expected_q(q: jax.Array, soft: Soft, parts: Parts) -> jax.Array:
    """Compute E Q under the policy for each branch, [n, R, K] → [n, R, D]; [n, R, 1] without branches."""
    if not soft.branches:
        return q
    return jnp.stack(
        [(p[..., None, :] * x).sum(-1) for p, x in zip(soft.branches, _by_branch(q, parts), strict=True)], axis=-1
    )


def taken_q(q: jax.Array, action: Action, parts: Parts) -> jax.Array:
    """Return Q of the stored action, [n, R, K] → [n, R]: the mean over its branches."""
    if not parts.spec.action.discrete_branches:
        return q[..., 0]
    chosen = [
        jnp.take_along_axis(x, jnp.broadcast_to(action.discrete[..., i, None, None], (*x.shape[:-1], 1)), axis=-1)
        for i, x in enumerate(_by_branch(q, parts))
    ]
    return jnp.concatenate(chosen, axis=-1).mean(-1)


def act(
    parts: Parts, state: PolicyState, obs: tuple[jax.Array, ...], action_mask: jax.Array, carry: Any, key: jax.Array
) -> Decision:
    """Choose an action for every member: obs [..., A, *shape], action_mask bool [..., A, M]. The key is consumed."""
    spec = parts.spec.action
    chex.assert_axis_dimension(action_mask, -1, spec.mask_size)
    seen = normalizer.normalize_all(state.normalizer, obs)
    dist, new_memory = applied(parts.actor, SquashedActor.step)(state.params, seen, part(carry, "actor"))
    if parts.settings.network_settings.deterministic:
        action = squashed.mode(dist, action_mask, spec)
    else:
        action = squashed.sample(key, dist, action_mask, spec)
    return Decision(action=action, sent=action, extras={}, carry={**carry, "actor": new_memory} if carry else ())


def critic_step(
    parts: Parts, state: PolicyState, obs: tuple[jax.Array, ...], present: jax.Array, decision: Decision
) -> dict[str, Any]:
    """Return the memories after a decision, including V's."""
    seen, step = normalizer.normalize_all(state.normalizer, obs), applied(parts.value, ValueNetwork.step)
    return {**decision.carry, "critic": step(state.critic["value"], seen, decision.carry["critic"])[1]}


def watch(parts: Parts, signals: Signals, state: TrainState, rollout: Rollout) -> TrainState:
    """Update the normaliser and the signals, and count the decisions that allow updates."""
    newest = normalizer.update_all(state.policy.normalizer, rollout.obs, rollout.acted)
    state = counted(parts.hyper, state, rollout)
    return state.replace(policy=state.policy.replace(normalizer=newest), signals=signals.watch(state.signals, rollout))


def estimate(parts: Parts, state: TrainState, rollout: Rollout) -> Metrics:
    """Compute the means of V and of the entropy."""
    obs = normalizer.normalize_all(state.policy.normalizer, rollout.obs)
    memory = partial(part, rollout.carry)
    value = in_chunks(partial(applied(parts.value), state.critic["value"]), (obs, memory("critic")), ACTOR_CHUNK)
    dist = applied(parts.actor)(state.policy.params, obs, memory("actor"))
    entropy = actions.entropy(dist, rollout.action_mask, parts.spec.action)
    return by_stream("value", value, rollout, parts.settings) | {"entropy": masked_mean(entropy, rollout.acted)}
