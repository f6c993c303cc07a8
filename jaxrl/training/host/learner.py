"""A learner: the state of one algorithm, and its update from what an actor has collected.

Knows no process and no file. `learn` is the one compiled call per update; it is compiled in a thread while the first
buffer fills.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.algorithms.interface import Algorithm, Counts, Metrics, PolicyState, TrainState, acting, store_rollout
from jaxrl.rollout import trajectory, whole_episodes
from jaxrl.rollout.rollout import Rollout, rollout_of
from jaxrl.rollout.trajectory_state import TrajectoryState
from jaxrl.settings import BehaviorSettings
from jaxrl.training.errors import DivergedError
from jaxrl.training.host.actor import Actor
from jaxrl.types import BehaviorSpec

log = logging.getLogger(__name__)


def start(algorithm: Algorithm, key: jax.Array) -> tuple[TrainState, Any, jax.Array]:
    """A fresh learner and its store, and the key data that all decisions are drawn from. The key is consumed."""
    init_key, act_key = jax.random.split(key)
    return algorithm.init(init_key), algorithm.storage.init(), jax.random.key_data(act_key)


def take(buffer: TrajectoryState, *begin: Any) -> tuple[Rollout, TrajectoryState]:
    """All rows as they stand, or the episodes that have ended where it is told where the running ones begin."""
    return whole_episodes.take(buffer, *begin) if begin else trajectory.take(buffer)


def learn(
    algorithm: Algorithm, state: TrainState, store: Any, buffer: TrajectoryState, *begin: Any
) -> tuple[TrainState, Any, TrajectoryState, Metrics]:
    """Take all rows and learn from them: the one call per update."""
    rollout, buffer = take(buffer, *begin)
    state, store, metrics = learn_from(algorithm, state, store, rollout)
    return state, store, buffer, metrics


def learn_from(
    algorithm: Algorithm, state: TrainState, store: Any, rollout: Rollout
) -> tuple[TrainState, Any, Metrics]:
    """Learn from a rollout that was taken before: the one call of an update beside which collection goes on."""
    state, store = store_rollout(algorithm, state, store, rollout)
    state, metrics = algorithm.learn(state, store)
    return state, algorithm.storage.kept(store), metrics


def keep(
    algorithm: Algorithm, state: TrainState, store: Any, buffer: TrajectoryState, *begin: Any
) -> tuple[TrainState, Any, TrajectoryState]:
    """Take all rows into the store, where nothing is learned yet."""
    rollout, buffer = take(buffer, *begin)
    state, store = store_rollout(algorithm, state, store, rollout)
    return state, algorithm.storage.kept(store), buffer


def estimate(algorithm: Algorithm, state: TrainState, buffer: TrajectoryState) -> Metrics:
    """What statistics show of values and entropy, of what stands in the buffer."""
    return algorithm.estimate(state, rollout_of(buffer))


class Held(NamedTuple):
    """How much a buffer held when it was taken (R56)."""

    env_steps: int  # messages of all environments
    agent_steps: int  # decisions that are learned from


class LearnerPrograms(NamedTuple):
    """The compiled programs of a learner."""

    learn: Callable[..., tuple[TrainState, Any, TrajectoryState, Metrics]]  # (state, store, buffer, *begin)
    start: Callable[[Algorithm, jax.Array], tuple[TrainState, Any, jax.Array]] = start  # once per run
    keep: Callable[..., tuple[TrainState, Any, TrajectoryState]] = keep  # instead of `learn` until that is due
    estimate: Callable[..., Metrics] = estimate
    # In the place of `learn` where an update has a thread of its own.
    take: Callable[..., tuple[Rollout, TrajectoryState]] = take
    learn_from: Callable[[TrainState, Any, Rollout], tuple[TrainState, Any, Metrics]] | None = None


def compile_ahead(program: Any, *arguments: Any) -> Future[Any] | None:
    """Compile a jitted program for arguments like these in a thread; None if it is an ordinary function.

    Python waits for the thread when it exits: cut off within XLA, it would crash the process.
    """
    if not hasattr(program, "lower"):
        return None
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
    thread = ThreadPoolExecutor(1, "jaxrl-compile")
    compiled = thread.submit(lambda: program.lower(*shapes).compile())
    thread.shutdown(wait=False)
    return compiled


class Learner:
    """What is learned about one behavior. The trainer step is counted here, in whole decisions."""

    def __init__(
        self,
        name: str,
        spec: BehaviorSpec,
        settings: BehaviorSettings,
        algorithm: Algorithm,
        programs: LearnerPrograms,
        key: jax.Array,
        *,
        training: bool,
    ) -> None:
        self.name = name
        self.spec = spec
        self.settings = settings
        self.algorithm = algorithm
        self.training = training
        self.state, self.store, key_data = programs.start(algorithm, key)
        self.run_key: list[int] = np.asarray(key_data).tolist()  # for the actors
        self.step = 0  # counted on the host; state.step follows at each update
        self.stopped = False  # by one of the settings' `stop`
        self.updates = 0
        self.held = Held(0, 0)  # what the newest update that began was given
        self.fresh = 0  # decisions that the store was given since the last update
        self._programs = programs
        self._ahead: Future[Any] | None = None  # `programs.learn`, compiled for `_sizes`
        self._sizes: tuple[Any, Any] | None = None
        self._warned = False

    @property
    def policy(self) -> PolicyState:
        """For the actor that it learns from; with inference for one that nobody learns from."""
        return acting(self.algorithm, self.state) if self.training else self.state.policy

    def begin_anew(self) -> None:
        """Nothing has been collected yet; what was learned stays."""
        self.store, self.fresh = self.algorithm.storage.init(), 0

    def unfinished(self) -> bool:
        """Whether there is something left to do: inference goes on until it is interrupted."""
        return not self.training or (self.step <= self.settings.last_step and not self.stopped)

    def compile_for(self, actor: Actor) -> None:
        """Begin to compile the update for the actor's buffer, unless that is done."""
        if actor.buffer is None:
            return
        sizes = (actor.buffer.shape, actor.buffer.clock.shape)  # rows may grow where there are pages for them
        if self._sizes != sizes:
            self._ahead = compile_ahead(self._programs.learn, self.state, self.store, actor.buffer, *actor.begin)
            self._sizes = sizes

    def await_program(self, actor: Actor) -> None:
        """Wait until the update is compiled. Nothing is under way meanwhile, so an interrupt may strike."""
        self.compile_for(actor)
        while self._ahead is not None and not self._ahead.done():
            wait((self._ahead,), 0.5)  # in slices: Windows notices no interrupt before the end of one

    def learn(self, actor: Actor) -> dict[str, float]:
        """Everything that the actor has collected goes into the store; one update if the algorithm is ready for it.

        Returns the metrics of the update as floats, nothing where there was none.
        Raises DivergedError if one of them is not finite.
        """
        if not self._prepared(actor):
            return {}
        learn = self._programs.learn if self._ahead is None else self._ahead.result()
        self.state, self.store, buffer, metrics = learn(self.state, self.store, actor.buffer, *actor.begin)
        actor.taken(buffer)
        self.updates, self.fresh = self.updates + 1, 0
        return self._checked({name: float(value) for name, value in metrics.items()})

    def _prepared(self, actor: Actor) -> bool:
        """Whether an update is due with what the actor has; if not, that has gone into the store."""
        assert actor.buffer is not None
        self.fresh += actor.fresh
        self.held = Held(actor.env_steps, actor.fresh)
        if self.algorithm.storage.can_sample(self.store, Counts(fresh=self.fresh, total=self.step)):
            self._warn_of_few(actor.fresh)
            return True
        arguments = (self.algorithm, self.state, self.store, actor.buffer, *actor.begin)
        self.state, self.store, buffer = self._programs.keep(*arguments)
        actor.taken(buffer)
        return False

    def _checked(self, values: dict[str, float]) -> dict[str, float]:
        """The metrics of an update. Raises DivergedError if one of them is not finite."""
        for name, value in values.items():
            if not math.isfinite(value):
                rate = self.settings.hyperparameters.learning_rate
                raise DivergedError(self.name, f"{name} of the update at step {self.step} is {value}", rate)
        return values

    def estimates(self, actor: Actor) -> dict[str, float]:
        """What statistics show of values and entropy between two updates; nothing before the first message."""
        if actor.buffer is None:
            return {}
        found = self._programs.estimate(self.algorithm, self.state, actor.buffer)
        return {name: float(value) for name, value in found.items()}

    def _warn_of_few(self, decisions: int) -> None:
        wanted = self.algorithm.period
        if self.settings.count_by == "env_steps":
            return  # how many decisions those bring is the environment's affair
        if self._warned or 2 * decisions >= wanted:
            return
        self._warned = True
        log.warning(
            "%s: an update starts with %d of the %d decisions that hyperparameters.buffer_size asks for: most of its "
            "rows are empty, and room for more would take too much memory. Lower buffer_size, or let fewer agents "
            "share a team.",
            self.name, decisions, wanted,
        )  # fmt: skip
