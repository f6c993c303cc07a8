"""What a policy-gradient algorithm says of itself: networks, estimates of value and baseline, advantage and loss.

Functions raise AssertionError where shapes differ from those named, so that nothing broadcasts by accident.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
"""Parameters by group: those of "actor" and "critic" have places of their own in a TrainState."""


class Seen(NamedTuple):
    """What critics may look at: states [..., A, *], of a rollout or, as a part of a `Batch`, of a minibatch."""

    obs: tuple[jax.Array, ...]  # normalised, 0 where absent
    action: Action
    present: jax.Array  # bool [..., A]
    memory: Any  # by network; () without memory

    def memory_of(self, network: str) -> Any:
        """That of one network."""
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
    baseline: jax.Array  # float32 [N, A, R], estimate before the update; [N, A, 0] where it is the value
    memory: Any = ()  # `Sequences` of the memories by network; then N, A above are N sequences of L states: N, L, A
    inputs: Any = ()  # by added loss, what it has asked for
    transitions: Any = ()  # what reward signals see that learn from minibatches; () without such

    @property
    def seen(self) -> Seen:
        """What critics look at."""
        return Seen(self.obs, self.action, self.present, self.memory)


class Now(NamedTuple):
    """What a loss knows beside parameters and minibatch."""

    learning_rate: jax.Array
    epsilon: jax.Array
    beta: jax.Array
    own: Any = ()  # the algorithm's part of the TrainState
    key: Any = None  # another one for each minibatch


Loss = Callable[[Groups, Batch, Now], tuple[jax.Array, Metrics]]
"""(parameters by group, minibatch, now) → (scalar to minimise, metrics)."""


@dataclass(frozen=True)  # and no tuple: JAX keeps what it has traced by weak references to functions
class Judged:
    """A loss of what a critic estimates, for which a team of several behaviors puts what its own critic does.

    estimates: as that of `Parts`.
    terms:     (parameters by group, minibatch, now, V, b) → scalar to minimise, metrics.
    """

    estimates: Callable[[Groups, Seen, Any], tuple[jax.Array, jax.Array | None]]
    terms: Callable[..., tuple[jax.Array, Metrics]]

    def __call__(self, params: Groups, batch: Batch, now: Now) -> tuple[jax.Array, Metrics]:
        """As any `Loss`."""
        return self.terms(params, batch, now, *self.estimates(params, batch.seen, now.own))


class SharedCritic(NamedTuple):
    """How behaviors of different specs have one critic (`team.py`). `team`: the `Parts` of all, by name, in order.

    init:      (team, name, key) → what behavior `name` keeps of the critic: of the first one also all that is shared,
               of the others what reads their own members. The key is consumed.
    judge:     (team, parameters by name and group, `Seen` by name, own of the first one) → V and b, each [..., A, R],
               whose A are the members of all, one behavior after the other, b None where the baseline is V; and what
               the critic remembers of each after it, [..., A, *], () without memory.
    """

    init: Callable[[Mapping[str, Any], str, jax.Array], Params]
    judge: Callable[..., tuple[jax.Array, jax.Array | None, Any]]


class AddedLoss(NamedTuple):
    """A loss beside the algorithm's own, over the same minibatches.

    loss:   as any; `batch.inputs[name]` is what `inputs` gave.
    init:   (key) → parameters of its own, which are the group of its name; the key is consumed. None: it has none.
    inputs: (TrainState, Rollout) → what it needs of the rollout beside a `Batch`, a pytree of [T, B, A, ...].
    """

    loss: Loss
    init: Callable[[jax.Array], Params] | None = None
    inputs: Callable[[TrainState, Rollout], Any] = lambda state, rollout: ()


class Parts(NamedTuple):
    """A policy-gradient algorithm for one behavior: what its own file says of it.

    init:        (key) → fresh parameters, and a key for the rest; the key is consumed.
    actor:       (params["actor"], obs, memory or `Sequences` or ()) → distribution.
    step:        the same for one decision, with the memory after it.
    critic_step: (params["critic"], Seen) → the critic's memory after the decision. None: it remembers nothing.
    estimates:   (params, Seen, own) → V and b, each [..., A, R]. b None: the baseline is V.
    loss:        what is minimised, with all its coefficients.
    advantage:   (returns, V, b, Rollout) → [T, B, A, R].
    watch:       (own, Rollout) → own, the algorithm's part of the state, brought up to date before anything else.
    """

    spec: BehaviorSpec
    settings: BehaviorSettings
    init: Callable[[jax.Array], tuple[Groups, jax.Array]]
    actor: Callable[..., ActionDistribution]
    step: Callable[[Params, tuple[jax.Array, ...], Any], tuple[ActionDistribution, Any]]
    critic_step: Callable[[Params, Seen], Any] | None
    estimates: Callable[[Groups, Seen, Any], tuple[jax.Array, jax.Array | None]]
    loss: Loss
    cooperative: bool  # rewards of an agent's mates are its own
    team_rows: bool  # rows hold whole teams, or single agents
    memories: Mapping[str, tuple[int, ...]]  # by network that remembers: axes of a memory before that of its numbers
    chunk: int = 4096  # members per pass of the critic over a rollout
    advantage: Callable[..., jax.Array] = lambda returns, value, baseline, rollout: returns - baseline
    own: Mapping[str, Any] = {}  # the algorithm's part of a fresh state
    watch: Callable[[Any, Rollout], Any] = lambda own, rollout: own
    added: Mapping[str, AddedLoss] = {}
    network: PolicyNetwork | None = None  # what acts as a file has it; None: jaxrl's `Actor`
    optimizers: Mapping[str, optax.GradientTransformation] = {}  # by group; of the others `ADAM`
    cloning: Cloning | None = None  # beside all that; `make` binds it
    posthumous: bool = False  # the return of a member that ended goes on along its team, not from V alone
    places: int | None = None  # of a team whose members have a policy each; None: they share one
    shared: SharedCritic | None = None  # None: it has no critic that other behaviors could share

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)  # an `Algorithm` that holds it is a static argument of programs; settings have no hash


def applied(module: nn.Module, method: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """`module.apply` as (params, *inputs) → outputs; flax's own type also covers mutable collections, used nowhere."""
    return partial(module.apply, method=method)


def of_each_member(value: jax.Array, present: jax.Array) -> jax.Array:
    """V of a team [..., R] as that of each member, [..., A, R], which it is with memory already."""
    if value.ndim > present.ndim:
        return value
    chex.assert_shape(value, (*present.shape[:-1], None))
    return jnp.broadcast_to(value[..., None, :], (*present.shape, value.shape[-1]))


def policy_terms(
    dist: ActionDistribution, batch: Batch, spec: BehaviorSpec, epsilon: jax.Array
) -> tuple[jax.Array, jax.Array, Metrics]:
    """The clipped policy loss of a minibatch and the entropy, means over who acted; and what is told of both."""
    log_prob = actions.log_prob(dist, batch.action, batch.action_mask, spec.action)
    entropy = losses.masked_mean(actions.entropy(dist, batch.action_mask, spec.action), batch.acted)
    policy_loss = losses.clipped_policy_loss(log_prob, batch.log_prob, batch.advantage, batch.acted, epsilon)
    largest = jnp.max(jnp.where(batch.acted[..., None], jnp.abs(log_prob - batch.log_prob), 0.0), initial=0.0)
    return policy_loss, entropy, {"policy_loss": policy_loss, "entropy": entropy, LARGEST_LOG_RATIO: largest}


def groups_of(parts: Parts, state: TrainState) -> Groups:
    """All parameters that learn."""
    added = {name: state.own[name] for name, one in parts.added.items() if one.init is not None}
    return {"actor": state.policy.params, "critic": state.critic, **added}
