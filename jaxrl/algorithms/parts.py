"""Parts of a policy-gradient algorithm: networks, estimates of value and baseline, advantage and loss.

Functions raise AssertionError for other shapes than documented, so that nothing broadcasts by accident.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl.algorithms.interface import LARGEST_LOG_RATIO, Metrics, Params, TrainState
from jaxrl.learning import losses
from jaxrl.learning.cloning import Cloning
from jaxrl.networks import actions
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.memory import part
from jaxrl.networks.policy import PolicyNetwork
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.types import Action, BehaviorSpec

Groups = dict[str, Params]
"""Parameters by group. "actor" and "critic" are fields of a TrainState, other groups are in its `own`."""


class Seen(NamedTuple):
    """Inputs of critics: states [..., A, *] of a rollout or, as a part of a `Batch`, of a minibatch."""

    obs: tuple[jax.Array, ...]  # normalised, 0 where absent
    action: Action
    present: jax.Array  # bool [..., A]
    memory: Any  # memories by network; () without memory

    def memory_of(self, network: str) -> Any:
        """Return the memory of one network."""
        return part(self.memory, network)


class Batch(NamedTuple):
    """States ready for minibatches; N = T·B of the rollout. Members that did not act are masked, not removed."""

    obs: tuple[jax.Array, ...]  # float32 [N, A, *shape], normalised, 0 where absent
    action_mask: jax.Array  # bool [N, A, M]
    action: Action  # [N, A, C], [N, A, D]
    log_prob: jax.Array  # float32 [N, A, C + D], of the policy that acted
    present: jax.Array  # bool [N, A]
    acted: jax.Array  # bool [N, A], trained on
    advantage: jax.Array  # float32 [N, A], normalised over the whole batch
    returns: jax.Array  # float32 [N, A, R], target of value and baseline
    baseline: jax.Array  # float32 [N, A, R], estimate before the update; [N, A, 0] if the baseline is the value
    memory: Any = ()  # `Sequences` of the memories by network; then N, A above are N sequences of L states: N, L, A
    inputs: Any = ()  # inputs of each added loss by its name
    transitions: Any = ()  # transitions for reward signals that learn from minibatches; () without such signals

    @property
    def seen(self) -> Seen:
        """Inputs of critics."""
        return Seen(self.obs, self.action, self.present, self.memory)


class Now(NamedTuple):
    """Inputs of a loss beside parameters and minibatch."""

    learning_rate: jax.Array
    epsilon: jax.Array
    beta: jax.Array
    own: Any = ()  # `TrainState.own`, the algorithm's private state
    key: Any = None  # a different key for each minibatch


Forward = tuple[ActionDistribution, jax.Array, jax.Array | None]
"""Distribution, V and b of the members of some states, [..., A, R]. b None: the baseline is V."""
Loss = Callable[[ActionDistribution, jax.Array, jax.Array | None, Batch, Now], tuple[jax.Array, Metrics]]
"""(distribution, V, b, minibatch, now) → (scalar to minimise, metrics)."""


class OneBody(NamedTuple):
    """Policy and value of one body of a network, computed in one pass.

    actor, estimates: those of `Parts` that the pass stands for. If either is replaced there, it is not used.
    forward:          (params, Seen) → `Forward`.
    """

    actor: Callable[..., ActionDistribution]
    estimates: Callable[..., tuple[jax.Array, jax.Array | None]]
    forward: Callable[[Groups, Seen], Forward]


class SharedCritic(NamedTuple):
    """Critic of behaviors of different specs (`team.py`). `team`: the `Parts` of all, by name, in order.

    init:      (team, name, key) → the critic parameters of behavior `name`: those that read its own members, and for
               the first behavior also the shared ones. The key is consumed.
    judge:     (team, parameters by name and group, `Seen` by name, `own` of the first behavior) → V and b, each
               [..., A, R] with the members of all behaviors in order, b None if the baseline is V; and the critic's
               new memory of each member, [..., A, *], () without memory.
    estimates: those of `Parts` that it stands for.
    """

    init: Callable[[Mapping[str, Any], str, jax.Array], Params]
    judge: Callable[..., tuple[jax.Array, jax.Array | None, Any]]
    estimates: Callable[..., tuple[jax.Array, jax.Array | None]]


class AddedLoss(NamedTuple):
    """An additional loss over the algorithm's minibatches.

    loss:   (parameters by group, minibatch, now) → scalar, metrics; `batch.inputs[name]` is the result of `inputs`.
    init:   (key) → its parameters, which are the group of its name; the key is consumed. None: it has no parameters.
    inputs: (TrainState, Rollout) → its inputs beside a `Batch`, a pytree of [T, B, A, ...].
    """

    loss: Callable[[Groups, Batch, Now], tuple[jax.Array, Metrics]]
    init: Callable[[jax.Array], Params] | None = None
    inputs: Callable[[TrainState, Rollout], Any] = lambda state, rollout: ()


class Parts(NamedTuple):
    """A policy-gradient algorithm for one behavior, as its file defines it.

    init:        (key) → fresh parameters, and a key for the rest; the key is consumed.
    actor:       (params["actor"], obs, memory or `Sequences` or ()) → distribution.
    step:        (params["actor"], obs, memory or ()) → distribution of one decision, new memory: the actor's.
    critic_step: (params["critic"], Seen) → the critic's memory after the decision. None: it has no memory.
    estimates:   (params, Seen, own) → V and b, each [..., A, R]. b None: the baseline is V.
    loss:        the loss to minimise, with all its coefficients.
    advantage:   (returns, V, b, Rollout) → [T, B, A, R].
    watch:       (own, Rollout) → own, the algorithm's private state, updated before all else.
    """

    spec: BehaviorSpec
    settings: BehaviorSettings
    init: Callable[[jax.Array], tuple[Groups, jax.Array]]
    actor: Callable[..., ActionDistribution]
    step: Callable[[Params, tuple[jax.Array, ...], Any], tuple[ActionDistribution, Any]]
    critic_step: Callable[[Params, Seen], Any] | None
    estimates: Callable[[Groups, Seen, Any], tuple[jax.Array, jax.Array | None]]
    loss: Loss
    cooperative: bool  # rewards of an agent's mates count as its own
    team_rows: bool  # rows hold whole teams, or single agents
    memories: Mapping[str, tuple[int, ...]]  # by network with memory: leading axes of a memory before its numbers
    chunk: int = 4096  # members per pass of the critic over a rollout
    advantage: Callable[..., jax.Array] = lambda returns, value, baseline, rollout: returns - baseline
    own: Mapping[str, Any] = {}  # the algorithm's private state at the start
    watch: Callable[[Any, Rollout], Any] = lambda own, rollout: own
    added: Mapping[str, AddedLoss] = {}
    network: PolicyNetwork | None = None  # form of the policy in a file; None: jaxrl's `Actor`
    optimizers: Mapping[str, optax.GradientTransformation] = {}  # by group; `ADAM` for other groups
    cloning: Cloning | None = None  # behavioral cloning, bound by `make`
    posthumous: bool = False  # the return of a member that ended goes on along its team, not from V alone
    places: int | None = None  # places of a team whose members have separate policies; None: they share one
    shared: SharedCritic | None = None  # None: it has no critic that other behaviors could share
    one_body: OneBody | None = None  # None: policy and critic have networks of their own

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)  # an `Algorithm` that holds it is a static argument of programs; settings have no hash


def applied(module: nn.Module, method: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return `module.apply` as (params, *inputs) → outputs. Its type in flax includes mutable collections, not used."""
    return partial(module.apply, method=method)


def of_each_member(value: jax.Array, present: jax.Array) -> jax.Array:
    """Broadcast V of a team [..., R] to its members, [..., A, R]; with memory it has that shape already."""
    if value.ndim > present.ndim:
        return value
    chex.assert_shape(value, (*present.shape[:-1], None))
    return jnp.broadcast_to(value[..., None, :], (*present.shape, value.shape[-1]))


def forward(parts: Parts, params: Groups, seen: Seen, own: Any) -> Forward:
    """Compute distribution, V and b of states [..., A, *], from the actor and the estimates of `parts`."""
    body = parts.one_body
    if body is not None and body.actor is parts.actor and body.estimates is parts.estimates:
        return body.forward(params, seen)
    dist = parts.actor(params["actor"], seen.obs, seen.memory_of("actor"))
    return dist, *parts.estimates(params, seen, own)


def loss_of(parts: Parts, params: Groups, batch: Batch, now: Now) -> tuple[jax.Array, Metrics]:
    """Compute the loss of a minibatch, without added losses."""
    return parts.loss(*forward(parts, params, batch.seen, now.own), batch, now)


def policy_terms(
    dist: ActionDistribution, batch: Batch, spec: BehaviorSpec, epsilon: jax.Array
) -> tuple[jax.Array, jax.Array, Metrics]:
    """Compute the clipped policy loss and the entropy of a minibatch, means over acted members; and their metrics."""
    log_prob = actions.log_prob(dist, batch.action, batch.action_mask, spec.action)
    entropy = losses.masked_mean(actions.entropy(dist, batch.action_mask, spec.action), batch.acted)
    policy_loss = losses.clipped_policy_loss(log_prob, batch.log_prob, batch.advantage, batch.acted, epsilon)
    largest = jnp.max(jnp.where(batch.acted[..., None], jnp.abs(log_prob - batch.log_prob), 0.0), initial=0.0)
    return policy_loss, entropy, {"policy_loss": policy_loss, "entropy": entropy, LARGEST_LOG_RATIO: largest}


def groups_of(parts: Parts, state: TrainState) -> Groups:
    """Return all trained parameters by group."""
    added = {name: state.own[name] for name, loss in parts.added.items() if loss.init is not None}
    return {"actor": state.policy.params, "critic": state.critic, **added}
