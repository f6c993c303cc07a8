"""What a training loop needs of an algorithm: pure functions over one state. Both loops use exactly these."""

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

All but rounding where the policy has made the decisions that it learns from; an older one's may differ.
"""


class PolicyState(struct.PyTreeNode):
    """What acting needs."""

    params: Params
    normalizer: tuple[NormalizerState | None, ...]  # one per observation
    connectors: Any = ()  # statistics of the connectors, `Chain.shared`; the loops bring them up to date
    critic: Params = ()  # where the critic remembers as well, while somebody learns from what happens; see `acting`


class TrainState(struct.PyTreeNode):
    """Everything that a checkpoint keeps of the learner."""

    policy: PolicyState
    critic: Params  # empty when actor and critic share one body
    optimizer: Any  # optax state over {"actor", "critic"}
    own: Any  # what this algorithm alone keeps: a pytree, {} for most
    signals: dict[str, Any]  # by reward signal: its parameters and optimizer, () where it learns nothing
    step: jax.Array  # int32 [], finished agent decisions (ML-Agents' trainer step)
    key: jax.Array  # typed key, split at each update


class Decision(NamedTuple):
    """What a policy makes of the observations of some agents."""

    action: Action  # raw sample [..., C], [..., D]: what is learned from
    sent: Action  # what the environment receives: clipped or squashed as the action distribution has it
    extras: dict[str, jax.Array]  # float32 [..., *shape], kept beside the action, by the names of `Algorithm.extras`
    carry: Any  # memory after the decision, a pytree of arrays [..., *]; () without memory


class Counts(NamedTuple):
    """How much a store has been given, in finished agent decisions: whole numbers or traced ones."""

    fresh: Any  # since the last update
    total: Any  # in the whole run


class Storage(NamedTuple):
    """What an algorithm keeps of what happens (after flashbax). On-policy: the newest rollout. Replay: transitions.

    init:       () → store, no array in it twice: the loops update it in place.
    add:        (store, rollout) → store. It costs what the rollout costs, however large the store is, and keeps nothing
                of decisions that are not `acted`: so a loop masks what is added, and never a store.
    can_sample: (store, Counts) → whether `learn` is due with what the store will have been given. The loops ask it for
                each period; what is plain True is learned from without asking the device.
    sample:     (store, key) → what one step of `learn` is computed from; the key is consumed.
    kept:       (store) → what goes on after an update, or in place of one, of the form of `init`.
    saved:      whether a run's checkpoint keeps what is stored, so that --resume goes on bit for bit; else a resumed
                run begins with an empty store, and says so.
    """

    init: Callable[[], Any]
    add: Callable[[Any, Rollout], Any]
    can_sample: Callable[[Any, Counts], Any]
    sample: Callable[[Any, jax.Array], Any]
    kept: Callable[[Any], Any]
    saved: bool = False


class SignalRewards(NamedTuple):
    """What reward signals pay, which statistics add up by episodes. Without the environment's own.

    It is asked for with all that goes into the store, before anything is learned from it.
    """

    names: tuple[str, ...]  # of the signals, at least one
    of: Callable[[TrainState, Rollout], dict[str, jax.Array]]  # strength · reward of each decision, float32 [T, B, A]


class WithTracedSettings(NamedTuple):
    """How an algorithm is made again for other values: `Algorithm.with_traced_settings` of what jaxrl makes."""

    make: Callable[[dict[str, jax.Array]], Any]  # values by dotted key → Algorithm
    learn: Callable[..., Any]  # what the algorithm learned with when it was made

    def __call__(self, values: dict[str, jax.Array]) -> Algorithm:
        return self.make(values)


CriticStep = Callable[
    [Sequence[PolicyState], Sequence[tuple[jax.Array, ...]], Sequence[jax.Array], Sequence[Decision]], Sequence[Any]
]
"""`Algorithm.critic_step` of several behaviors that share rows, each with members and a policy of its own."""


def alone(step: Callable[..., Any]) -> CriticStep:
    """`Algorithm.critic_step` of one behavior as that of several."""
    return lambda *of_each: [step(*arguments) for arguments in zip(*of_each, strict=True)]


class Algorithm(NamedTuple):
    """Pure functions; sizes and settings are bound when it is made.

    init:     (key) → TrainState; the key is consumed.
    act:      (PolicyState, obs [..., A, *shape], action_mask bool [..., A, M], carry, key) → Decision; the key is
              consumed. In its place it takes what `noise` has drawn from it.
    storage:  see `Storage`.
    learn:    (TrainState, store) → (TrainState, Metrics): normaliser brought up to date, rewards and returns, all
              epochs and minibatches. On-policy the store is the rollout. The step is that of the decisions which the
              store has been given.
    estimate: (TrainState, Rollout) → Metrics: what statistics show of values and entropy between two updates.
    critic_step: (PolicyState, obs [..., A, *shape], present bool [..., A], Decision) → carry, in which what critics
              remember has gone on as well, by the critic in `PolicyState.critic`. None: they remember nothing.
    policy:   the network that acts, and how a file for a game holds it. None: it is jaxrl's actor, or has no file.
    watch:    (TrainState, Rollout) → TrainState: what follows everything that is stored, whether or not `learn` is due,
              such as a normaliser. None: nothing does.
    copied:   how demonstrations are copied into the policy where nothing else is learned. None: they cannot be.
    noise:    (key, lead axes [..., A]) → all that `act` would draw from the key for these members; the key is consumed.
              For many decisions at once: on CPUs one draw is a loop, whose overhead few members do not pay. None: `act`
              draws for itself.
    signal_rewards: what the reward signals pay, for statistics. None: there is none but the environment's own.
    score_action: (PolicyState, obs, action_mask, carry, action as the environment has it) → the raw action, and the
              extras that `act` would have noted for it. None: such an algorithm learns from its own actions alone.
    with_traced_settings: (values by dotted key of its settings, float32 []) → the algorithm with these, of which
              `learn`, `watch`, `signal_rewards` and `storage.can_sample` may differ. None: such an algorithm is made
              for its settings as they are.
              Whoever replaces `learn` has to replace this as well: of a `WithTracedSettings` that makes another `learn`
              no loop takes values.

    parts:    what it is made of, where that is `parts.Parts`: teams of several behaviors ask for it
              (`algorithms.team`). None: it learns alone.
    places:   P, of a team whose members have a policy each: they are in the order of their places, A at most
              P or whole teams of P (`networks.places`), and the parameters have a leading axis P. None: they share one.
    """

    init: Callable[[jax.Array], TrainState]
    act: Callable[[PolicyState, tuple[Any, ...], Any, Any, jax.Array], Decision]
    storage: Storage
    learn: Callable[[TrainState, Any], tuple[TrainState, Metrics]]
    estimate: Callable[[TrainState, Rollout], Metrics]
    collect_size: int  # agent decisions from one `add` to the next: how much of the streams a buffer has to hold
    extras: Extras  # names and shapes, per member, of what `act` notes beside an action
    memories: Extras  # names and shapes, per member, of what is remembered between two decisions; () without memory
    team_rows: bool  # rows hold whole teams (True) or single agents
    connectors: Chain | None = None  # what stands between environment and `act`: it all is made for `connectors.spec`
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
    """The memory before the first decision, zeros float32 [*lead, *] by name; `()` without memory."""
    return {name: jnp.zeros((*lead, *shape), jnp.float32) for name, shape in algorithm.memories} or ()


def acting(learns: Algorithm | Any, state: TrainState) -> PolicyState:
    """The policy as it acts where somebody learns from what happens: with the critic, if that remembers as well.

    learns: its algorithm, or the `TeamAlgorithm` of all that it learns with.
    """
    return state.policy if learns.critic_step is None else state.policy.replace(critic=state.critic)


def replays(algorithm: Algorithm) -> bool:
    """Whether something is kept from one update to the next."""
    return bool(jax.tree.leaves(jax.eval_shape(algorithm.storage.init)))


def store_rollout(
    algorithm: Algorithm, state: TrainState, store: Any, rollout: Rollout, keep: Any = True
) -> tuple[TrainState, Any]:
    """A rollout goes into the store, and its decisions are counted: what a loop does whether or not `learn` is due.

    keep: bool [], whether a store that goes on gets anything of it; it counts all the same.

    Returns the state with its step brought up to date, and the store.
    """
    count = jnp.minimum(rollout.acted.sum(dtype=jnp.int32), LARGEST_STEP - state.step)
    if keep is not True and replays(algorithm):
        rollout = rollout._replace(acted=rollout.acted & keep)
    if algorithm.watch is not None:
        state = algorithm.watch(state, rollout)
    return state.replace(step=state.step + count), algorithm.storage.add(store, rollout)
