"""The interface of an algorithm: pure functions over one state, which both training loops call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.connectors.chain import Chain
from jaxrl.learning.cloning import Copied
from jaxrl.networks.normalizer import NormalizerState
from jaxrl.networks.policy import PolicyNetwork
from jaxrl.rollout.buffer.cells import Extras
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import LARGEST_STEP
from jaxrl.types import Action

Metrics = dict[str, jax.Array]
Params = Any  # a flax parameter tree

LARGEST_LOG_RATIO = "largest_log_ratio"
"""Metric: the largest |log π - log π_acted| of the first minibatch, before anything was learned from it.

It is only rounding where the policy learns from its own decisions; those of an older policy may differ.
"""


class PolicyState(struct.PyTreeNode):
    """State of a policy that acts."""

    params: Params
    normalizer: tuple[NormalizerState | None, ...]  # one per observation
    connectors: Any = ()  # statistics of the connectors, `Chain.shared`, which the loops update
    critic: Params = ()  # parameters of a critic with memory, during training; see `acting`


class TrainState(struct.PyTreeNode):
    """State of the learner, all of which a checkpoint keeps."""

    policy: PolicyState
    critic: Params  # empty when actor and critic share one body
    optimizer: Any  # optax state over {"actor", "critic"}
    own: Any  # private state of the algorithm: a pytree, {} for most
    signals: dict[str, Any]  # parameters and optimizer by reward signal, () where it learns nothing
    step: jax.Array  # int32 [], finished agent decisions (ML-Agents' trainer step)
    key: jax.Array  # typed key, split at each update


class Decision(NamedTuple):
    """Decision of a policy for some agents."""

    action: Action  # raw sample [..., C], [..., D], from which the policy learns
    sent: Action  # action for the environment: clipped or squashed as the action distribution requires
    extras: dict[str, jax.Array]  # float32 [..., *shape], stored with the action, by the names of `Algorithm.extras`
    carry: Any  # memory after the decision, a pytree of arrays [..., *]; () without memory


class Counts(NamedTuple):
    """Finished agent decisions that were added to a store: integers, traced or not."""

    fresh: Any  # decisions since the last update
    total: Any  # decisions in the whole run


class Storage(NamedTuple):
    """Experience store of an algorithm (after flashbax). On-policy: the newest rollout. Replay: transitions.

    init:       () → store, no array in it twice: the loops update it in place.
    add:        (store, rollout) → store. Its cost does not depend on the size of the store. It stores nothing of
                decisions that are not `acted`: a loop masks rollouts, and never a store.
    can_sample: (store, Counts) → whether `learn` is due once the store has these counts. The loops ask it for each
                period; a plain True needs no transfer from the device.
    sample:     (store, key) → the data of one step of `learn`; the key is consumed.
    kept:       (store) → the store after an update, or in place of one, of the form of `init`.
    saved:      whether a run's checkpoint keeps the store, so that --resume continues bit for bit; else a resumed run
                begins with an empty store, and says so.
    """

    init: Callable[[], Any]
    add: Callable[[Any, Rollout], Any]
    can_sample: Callable[[Any, Counts], Any]
    sample: Callable[[Any, jax.Array], Any]
    kept: Callable[[Any], Any]
    saved: bool = False


class SignalRewards(NamedTuple):
    """Rewards of the signals other than the environment's, which statistics add up by episodes.

    The loops compute them for every rollout that is stored, before anything is learned from it.
    """

    names: tuple[str, ...]  # names of the signals, at least one
    of: Callable[[TrainState, Rollout], dict[str, jax.Array]]  # strength · reward of each decision, float32 [T, B, A]


class WithTracedSettings(NamedTuple):
    """Function that remakes an algorithm for other values: `Algorithm.with_traced_settings` of jaxrl's algorithms."""

    make: Callable[[dict[str, jax.Array]], Any]  # values by dotted key → Algorithm
    learn: Callable[..., Any]  # `learn` of the algorithm when it was made

    def __call__(self, values: dict[str, jax.Array]) -> Algorithm:
        return self.make(values)


CriticStep = Callable[
    [Sequence[PolicyState], Sequence[tuple[jax.Array, ...]], Sequence[jax.Array], Sequence[Decision]], Sequence[Any]
]
"""`Algorithm.critic_step` of several behaviors that share rows, each with its members and its policy."""


def alone(step: Callable[..., Any]) -> CriticStep:
    """Convert the `Algorithm.critic_step` of one behavior to that of several, each by itself."""
    return lambda *of_each: [step(*arguments) for arguments in zip(*of_each, strict=True)]


class Algorithm(NamedTuple):
    """Pure functions; sizes and settings are bound when it is made.

    init:     (key) → TrainState; the key is consumed.
    act:      (PolicyState, obs [..., A, *shape], action_mask bool [..., A, M], carry, key) → Decision; the key is
              consumed. It also takes the draws of `noise` in place of the key.
    storage:  see `Storage`.
    learn:    (TrainState, store) → (TrainState, Metrics): updates the normaliser, computes rewards and returns, runs
              all epochs and minibatches. On-policy the store is the rollout. The state's step already counts the
              decisions in the store.
    estimate: (TrainState, Rollout) → Metrics: means of values and entropy for statistics between two updates.
    critic_step: (PolicyState, obs [..., A, *shape], present bool [..., A], Decision) → carry, with the new memory of
              the critic in `PolicyState.critic` as well. None: the critic has no memory.
    policy:   the network that acts, and its form in a file for a game. None: it is jaxrl's actor, or has no file.
    watch:    (TrainState, Rollout) → TrainState: updates parts that follow everything that is stored, such as a
              normaliser, whether or not `learn` is due. None: there are no such parts.
    copied:   functions for imitation where nothing else is learned. None: the policy cannot imitate.
    noise:    (key, lead axes [..., A]) → all that `act` would draw from the key for these members; the key is consumed.
              It draws for many decisions at once: on CPUs a draw is a loop, whose overhead is large for few members.
              None: `act` draws for itself.
    signal_rewards: rewards of the signals, for statistics. None: there is none but the environment's own.
    score_action: (PolicyState, obs, action_mask, carry, action as the environment has it) → the raw action, and the
              extras that `act` would have stored for it. None: the algorithm learns from its own actions alone.
    with_traced_settings: (values by dotted key of its settings, float32 []) → the algorithm with these, of which
              `learn`, `watch`, `signal_rewards` and `storage.can_sample` may differ. None: the settings are fixed.
              Code that replaces `learn` has to replace this as well: the loops do not pass values to a
              `WithTracedSettings` that makes another `learn`.

    parts:    the algorithm's `parts.Parts`, if it is made of them: teams of several behaviors need them
              (`algorithms.team`). None: it learns alone.
    places:   P, for teams whose members have separate policies: members are in the order of their places, A is at most
              P or whole teams of P (`networks.places`), and the parameters have a leading axis P. None: they share one.
    """

    init: Callable[[jax.Array], TrainState]
    act: Callable[[PolicyState, tuple[Any, ...], Any, Any, jax.Array], Decision]
    storage: Storage
    learn: Callable[[TrainState, Any], tuple[TrainState, Metrics]]
    estimate: Callable[[TrainState, Rollout], Metrics]
    collect_size: int  # agent decisions from one `add` to the next, which a buffer has to hold
    extras: Extras  # names and shapes, per member, of arrays that `act` stores with an action
    memories: Extras  # names and shapes, per member, of memories between two decisions; () without memory
    team_rows: bool  # rows hold whole teams (True) or single agents
    connectors: Chain | None = None  # between environment and `act`; all functions take `connectors.spec`
    score_action: Callable[..., tuple[Action, dict[str, jax.Array]]] | None = None
    critic_step: Callable[[PolicyState, tuple[Any, ...], Any, Decision], Any] | None = None
    with_traced_settings: Callable[[dict[str, jax.Array]], Algorithm] | None = None
    noise: Callable[[jax.Array, tuple[int, ...]], Any] | None = None
    policy: PolicyNetwork | None = None
    watch: Callable[[TrainState, Rollout], TrainState] | None = None
    copied: Copied | None = None
    signal_rewards: SignalRewards | None = None
    parts: Any = None
    places: int | None = None


def nothing_remembered(algorithm: Algorithm, lead: tuple[int, ...] = ()) -> Any:
    """Make the memory before the first decision, zeros float32 [*lead, *] by name; `()` without memory."""
    return {name: jnp.zeros((*lead, *shape), jnp.float32) for name, shape in algorithm.memories} or ()


def acting(learns: Algorithm | Any, state: TrainState) -> PolicyState:
    """Return the state of the policy that acts during training: with the critic, if that has a memory.

    learns: its algorithm, or the `TeamAlgorithm` of its team.
    """
    return state.policy if learns.critic_step is None else state.policy.replace(critic=state.critic)


def replays(algorithm: Algorithm) -> bool:
    """Return whether the algorithm's store keeps anything from one update to the next."""
    return bool(jax.tree.leaves(jax.eval_shape(algorithm.storage.init)))


def store_rollout(
    algorithm: Algorithm, state: TrainState, store: Any, rollout: Rollout, keep: Any = True
) -> tuple[TrainState, Any]:
    """Add a rollout to the store and count its decisions, whether or not `learn` is due.

    keep: bool [], whether a replay stores its decisions; they are counted in any case.

    Returns the state with the new step, and the store.
    """
    count = jnp.minimum(rollout.acted.sum(dtype=jnp.int32), LARGEST_STEP - state.step)
    if keep is not True and replays(algorithm):
        rollout = rollout._replace(acted=rollout.acted & keep)
    if algorithm.watch is not None:
        state = algorithm.watch(state, rollout)
    return state.replace(step=state.step + count), algorithm.storage.add(store, rollout)
