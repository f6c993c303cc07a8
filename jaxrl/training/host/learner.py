"""A learner: the state of one algorithm, and its update from the data that an actor has collected.

It knows no process and no file. `learn` is the one compiled call per update; it is compiled in a thread while the
first buffer fills.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, MutableMapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.algorithms.interface import Algorithm, Counts, Metrics, PolicyState, TrainState, acting, store_rollout
from jaxrl.compilation import release_memory
from jaxrl.rollout.buffer import trajectory, whole_episodes
from jaxrl.rollout.buffer.trajectory_state import TrajectoryState, rollout_of
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.training.errors import DivergedError
from jaxrl.training.host.collector import Collector
from jaxrl.training.interrupt import await_telling
from jaxrl.training.signal_rewards import PAID, EpisodeSums, paid_by_decision
from jaxrl.types import BehaviorSpec

log = logging.getLogger(__name__)

CALM = 16
"""Messages for which sizes must stay constant before the update is compiled for them, which takes seconds."""


def start(algorithm: Algorithm, key: jax.Array) -> tuple[TrainState, Any, jax.Array]:
    """Make a fresh train state and store, and the key data that all decisions draw from. The key is consumed."""
    init_key, act_key = jax.random.split(key)
    return algorithm.init(init_key), algorithm.storage.init(), jax.random.key_data(act_key)


def take(buffer: TrajectoryState, *begin: Any) -> tuple[Rollout, TrajectoryState]:
    """Take all rows, or, if `begin` says where running episodes begin, only the episodes that have ended."""
    return whole_episodes.take(buffer, *begin) if begin else trajectory.take(buffer)


def learn(
    algorithm: Algorithm, state: TrainState, store: Any, buffer: TrajectoryState, *begin: Any
) -> tuple[TrainState, Any, TrajectoryState, Metrics]:
    """Take all rows and learn from them, in the one call per update."""
    rollout, buffer = take(buffer, *begin)
    state, store, metrics = learn_from(algorithm, state, store, rollout)
    return state, store, buffer, metrics


def learn_from(
    algorithm: Algorithm, state: TrainState, store: Any, rollout: Rollout
) -> tuple[TrainState, Any, Metrics]:
    """Learn from a rollout that was taken before, so that collection can go on during the update."""
    paid = signals_paid(algorithm, state, rollout)
    state, store = store_rollout(algorithm, state, store, rollout)
    state, metrics = algorithm.learn(state, store)
    return state, algorithm.storage.kept(store), metrics | paid


def keep(
    algorithm: Algorithm, state: TrainState, store: Any, buffer: TrajectoryState, *begin: Any
) -> tuple[TrainState, Any, TrajectoryState, Metrics]:
    """Take all rows into the store, without an update."""
    rollout, buffer = take(buffer, *begin)
    paid = signals_paid(algorithm, state, rollout)
    state, store = store_rollout(algorithm, state, store, rollout)
    return state, algorithm.storage.kept(store), buffer, paid


def signals_paid(algorithm: Algorithm, state: TrainState, rollout: Rollout) -> dict[str, Any]:
    """Return the reward signals' payments by decision under `PAID`, or nothing if the algorithm has no signals."""
    paid = algorithm.signal_rewards
    return {} if paid is None else {PAID: paid_by_decision(rollout, paid.of(state, rollout))}


def estimate(algorithm: Algorithm, state: TrainState, buffer: TrajectoryState) -> Metrics:
    """Compute the value and entropy metrics of the data in the buffer."""
    return algorithm.estimate(state, rollout_of(buffer))


class Held(NamedTuple):
    """Amount of data that a buffer held when it was taken."""

    env_steps: int  # sum over all areas
    agent_steps: int  # decisions that are learned from


class LearnerPrograms(NamedTuple):
    """The compiled programs of a learner."""

    learn: Callable[..., tuple[TrainState, Any, TrajectoryState, Metrics]]  # (state, store, buffer, *begin)
    start: Callable[[Algorithm, jax.Array], tuple[TrainState, Any, jax.Array]] = start  # once per run
    keep: Callable[..., tuple[TrainState, Any, TrajectoryState, Metrics]] = keep  # replaces `learn` until that is due
    estimate: Callable[..., Metrics] = estimate
    # Replace `learn` where updates run in a thread.
    take: Callable[..., tuple[Rollout, TrajectoryState]] = take
    learn_from: Callable[[TrainState, Any, Rollout], tuple[TrainState, Any, Metrics]] | None = None
    ahead: MutableMapping[Any, Future[Any]] | None = None  # compiled updates by sizes, shared by learners


class _Turns:
    """Queue of compilations, in the order of the requests, with one thread per core.

    If 200 behaviors compiled at once, all would end together after minutes, also the one that is waited for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = 0

    def take(self, work: Callable[[], Any]) -> Future[Any]:
        """Queue `work` and return the future of its result, which can be cancelled until the work starts.

        Python waits for the thread when it exits: cut off within XLA, it would crash the process.
        """
        future = Future[Any]()
        with self._lock:
            self._waiting.append((future, work))
            if self._threads < (os.cpu_count() or 1):
                self._threads += 1
                threading.Thread(target=self._work, name="jaxrl-compile").start()
        return future

    def hurry(self, made: Future[Any]) -> None:
        """Move a queued future to the front, because it is waited for."""
        with self._lock:
            self._waiting = deque(sorted(self._waiting, key=lambda turn: turn[0] is not made))

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                future, work = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # the thread that waits for the future raises it
                    future.set_exception(error)


TURNS = _Turns()


def compile_ahead(name: str, program: Any, *arguments: Any) -> Future[Any] | None:
    """Compile a behavior's update in a thread, for arguments of these shapes; None if it is an ordinary function."""

    def work() -> Any:
        began = time.perf_counter()
        compiled = program.lower(*shapes).compile()
        release_memory()
        log.info("%s: the update is compiled, which took %.1f s.", name, time.perf_counter() - began)
        return compiled

    if not hasattr(program, "lower"):
        return None
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
    return TURNS.take(work)


class Learner:
    """Train state and store of one behavior, and its trainer step, counted in whole decisions."""

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
        self._compiling_since: float | None = time.perf_counter()  # until the first decision
        log.info("%s: compiling, once.", name)
        self.state, self.store, key_data = programs.start(algorithm, key)
        self.run_key: list[int] = np.asarray(key_data).tolist()  # for the actors
        self.step = 0  # counted on the host; state.step follows at each update
        self.stopped = False  # ended by one of the settings' `stop` rules
        self.updates = 0
        self.held = Held(0, 0)  # amount of data of the newest update that began
        self.fresh = 0  # decisions that were stored since the last update
        self.earned = EpisodeSums()  # payments of the reward signals, by episode
        self._programs = programs
        self._ahead: Future[Any] | None = None  # `programs.learn`, compiled for `_sizes`
        self._sizes: tuple[Any, Any] | None = None
        self._coming: tuple[Any, Any] | None = None  # sizes that have been constant for `_calm` messages
        self._calm = 0
        self._warned = False

    @property
    def policy(self) -> PolicyState:
        """Policy for the actor; in training with the critic, if that has memory too."""
        return acting(self.algorithm, self.state) if self.training else self.state.policy

    def fresh_state(self, key: jax.Array) -> TrainState:
        """Make a train state of new networks. The key is consumed."""
        return self._programs.start(self.algorithm, key)[0]

    def begin_anew(self) -> None:
        """Drop collected data, except a store that checkpoints save; keep the train state."""
        self.fresh, self.earned = 0, EpisodeSums()
        if not self.algorithm.storage.saved:
            self.store = self.algorithm.storage.init()

    def unfinished(self) -> bool:
        """Return whether there are steps left; inference goes on until it is interrupted."""
        return self.goes_on()

    def goes_on(self) -> bool:
        """Return whether this behavior, ignoring its team, has steps left."""
        return not self.training or (self.step <= self.settings.last_step and not self.stopped)

    def tell_ready(self) -> None:
        """Log once, after the first decision, how long it took to compile."""
        if self._compiling_since is not None:
            log.info(
                "%s: decisions are compiled, which took %.1f s.", self.name, time.perf_counter() - self._compiling_since
            )
            self._compiling_since = None

    def compile_for(self, actor: Collector, *, at_once: bool = False) -> None:
        """Begin to compile the update for the actor's buffer, once its sizes are stable or `at_once`."""
        if actor.buffer is None:
            return
        sizes = actor.buffer.sizes
        if self._lasts(sizes) or (at_once and self._sizes != sizes):
            self._compile(sizes, self._programs.learn, *self._given(actor))

    def _given(self, actor: Collector) -> tuple[Any, ...]:
        """Return the arguments of an update."""
        return *self._known, actor.buffer, *actor.begin

    @property
    def _known(self) -> tuple[Any, Any]:
        """Arguments of an update that are the learner's: its state and store."""
        return self.state, self.store

    def _lasts(self, sizes: tuple[Any, Any]) -> bool:
        """Return whether these sizes, not compiled for yet, have lasted `CALM` messages: growth comes in waves."""
        if sizes != self._coming:
            self._coming, self._calm, self._ahead, self._sizes = sizes, 0, None, None
        self._calm += 1
        return self._sizes is None and self._calm > CALM

    def _compile(self, sizes: tuple[Any, Any], program: Any, *arguments: Any) -> None:
        """Begin to compile the update, unless another learner that shares these programs has."""
        known = self._programs.ahead if self._programs.ahead is not None else {}
        self._ahead, self._sizes = known.get(sizes) or compile_ahead(self.name, program, *arguments), sizes
        if self._ahead is not None:
            known[sizes] = self._ahead

    def await_program(self, actor: Collector) -> None:
        """Wait until the update is compiled. An interrupt is safe meanwhile: no update is running."""
        self.compile_for(actor, at_once=True)
        if self._ahead is not None and not self._ahead.done():
            log.info("%s: the first update waits until it is compiled, once.", self.name)
            TURNS.hurry(self._ahead)
            await_telling(self._ahead, lambda: f"the update of {self.name} to be compiled")

    def give_up(self) -> None:
        """Cancel a compilation that has not started, at the end of the run."""
        if self._ahead is not None:
            self._ahead.cancel()

    def learn(self, actor: Collector) -> dict[str, float]:
        """Store all data that the actor has collected, and run one update if the algorithm is ready for it.

        Returns the metrics of the update as floats, empty if there was none.
        Raises DivergedError if one of them is not finite.
        """
        if not self._prepared(actor):
            return {}
        rows = actor.rows
        learn = self._programs.learn if self._ahead is None else self._ahead.result()
        state, store, buffer, metrics = learn(*self._given(actor))
        actor.taken(buffer)
        self.fresh = 0
        return self._learned(state, store, metrics, rows)

    def _learned(self, state: Any, store: Any, metrics: Any, rows: np.ndarray) -> dict[str, float]:
        """Book an update from pages that `rows` have written; return its metrics as floats. Raises as `learn`."""
        self.state, self.store, self.updates = state, store, self.updates + 1
        self.earned.add(metrics, rows)
        return self.checked({name: float(value) for name, value in metrics.items() if name != PAID})

    def _prepared(self, actor: Collector) -> bool:
        """Return whether an update is due with the actor's data; if not, store that data."""
        assert actor.buffer is not None
        if self._due(actor):
            return True
        arguments = (self.algorithm, self.state, self.store, actor.buffer, *actor.begin)
        rows = actor.rows
        self.state, self.store, buffer, metrics = self._programs.keep(*arguments)
        actor.taken(buffer)
        self.earned.add(metrics, rows)
        return False

    def _due(self, actor: Collector) -> bool:
        """Return whether an update is due with the actor's data; note its amount."""
        self.fresh += actor.fresh
        self.held = Held(actor.env_steps, actor.fresh)
        if not self.algorithm.storage.can_sample(self.store, Counts(fresh=self.fresh, total=self.step)):
            return False
        self._warn_of_few(actor.fresh)
        return True

    def take_told(self) -> dict[str, float]:
        """Return the metrics of an update of its team; empty for a behavior without a team."""
        return {}

    def checked(self, values: dict[str, float]) -> dict[str, float]:
        """Return an update's metrics. Raises DivergedError if one, or a normalizer statistic, is not finite."""
        for name, value in values.items():
            if not math.isfinite(value):
                raise DivergedError(self.name, f"{name} of the update at step {self.step} is {value}", self.settings)
        # If the squares of observations overflow, networks see zeros, and learning would go on.
        if not all(np.isfinite(x).all() for x in jax.device_get(jax.tree.leaves(self.state.policy.normalizer))):
            what = f"observations up to step {self.step} are too large for network_settings.normalize: scale them down"
            raise DivergedError(self.name, what, self.settings)
        return values

    def estimates(self, actor: Collector) -> dict[str, float]:
        """Compute value and entropy metrics between two updates; empty before the first message."""
        if actor.buffer is None:
            return {}
        metrics = self._programs.estimate(self.algorithm, self.state, actor.buffer)
        return {name: float(value) for name, value in metrics.items()}

    def _warn_of_few(self, decisions: int) -> None:
        wanted = self.algorithm.collect_size
        if self.settings.count_by == "env_steps":
            return  # the number of decisions in those depends on the environment
        if self._warned or 2 * decisions >= wanted:
            return
        self._warned = True
        log.warning(
            "%s: an update starts with %d of the %d decisions that hyperparameters.buffer_size asks for: most of its "
            "rows are empty, and room for more would take too much memory. Lower buffer_size, or let fewer agents "
            "share a team.",
            self.name, decisions, wanted,
        )  # fmt: skip
