"""One behavior in the host loop: its slots, its trajectory buffer and its learner, and when it learns.

Knows nothing of processes, files or the console. The two compiled programs are handed in (`jax.jit` stays in the
training loops): `decide`, one call per environment result that acts and appends, and `learn`, one call per update.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.algorithms.interface import Algorithm, Metrics, PolicyState, TrainState
from jaxrl.networks.actions import to_environment
from jaxrl.rollout import noise, trajectory
from jaxrl.rollout.episodes import EpisodeRecords
from jaxrl.rollout.records import RowSteps
from jaxrl.rollout.slots import Ingested, Slots, Source, first_size
from jaxrl.rollout.trajectory import TrajectoryState
from jaxrl.settings import BehaviorSettings
from jaxrl.training.errors import DivergedError
from jaxrl.types import Action, AgentSteps, BehaviorSpec

log = logging.getLogger(__name__)

SLACK = 1.25
"""Row capacity over the states that fill `buffer_size` when everybody acts: room for dead members and uneven rows."""


def start(algorithm: Algorithm, key: jax.Array) -> tuple[TrainState, jax.Array]:
    """A fresh learner, and the key data that all its decisions are drawn from. The key is consumed."""
    init_key, act_key = jax.random.split(key)
    return algorithm.init(init_key), jax.random.key_data(act_key)


class Programs(NamedTuple):
    """The compiled programs of a behavior."""

    decide: Callable[..., tuple[Action, TrajectoryState]]
    learn: Callable[[TrainState, TrajectoryState], tuple[TrainState, TrajectoryState, Metrics]]
    # Once per run. They do the same uncompiled, then as some 200 small programs, which takes seconds.
    start: Callable[[Algorithm, jax.Array], tuple[TrainState, jax.Array]] = start
    allocate: Callable[..., TrajectoryState] = trajectory.init


def decide(
    algorithm: Algorithm,
    time_horizon: int,
    policy: PolicyState,
    state: TrajectoryState,
    steps: RowSteps,
    key_data: Any,
) -> tuple[Action, TrajectoryState]:
    """Choose actions for the new states and append them: the one call per environment result.

    Returns:
      Actions for the environment, dense [B, A, ...], and the buffer.
    """
    obs = tuple(o[1] for o in steps.obs)
    action, log_prob = algorithm.act(policy, obs, steps.action_mask, noise.typed(key_data))
    state = trajectory.add(state, steps, action, log_prob, time_horizon=time_horizon)
    return to_environment(action), state


def learn(
    algorithm: Algorithm, state: TrainState, buffer: TrajectoryState
) -> tuple[TrainState, TrajectoryState, Metrics]:
    """Take all rows, prepare them and run all epochs: the one call per update."""
    rollout, buffer = trajectory.take(buffer)
    state, batch, estimates = algorithm.prepare(state, rollout)
    state, metrics = algorithm.update(state, batch)
    return state, buffer, estimates | metrics


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


def capacity(buffer_size: int, rows: int, members: int) -> int:
    """T, states per row: enough for `buffer_size` agent steps with slack, and two states for the last message."""
    return math.ceil(SLACK * buffer_size / (rows * members)) + 3


class Behavior:
    """Acts, collects and learns for one behavior."""

    def __init__(
        self,
        name: str,
        spec: BehaviorSpec,
        settings: BehaviorSettings,
        algorithm: Algorithm,
        programs: Programs,
        key: jax.Array,
        *,
        training: bool,
    ) -> None:
        self.name = name
        self.spec = spec
        self.settings = settings
        self.algorithm = algorithm
        self.programs = programs
        self.training = training
        state, key_data = programs.start(algorithm, key)
        self.state: TrainState = state
        self.step = 0  # the trainer step, counted on the host; state.step follows at each update
        self.stored = 0  # finished decisions in the buffer
        self.updates = 0
        self._run_key: list[int] = np.asarray(key_data).tolist()
        self._decisions = 0
        self._slots: Slots | None = None
        self._buffer: TrajectoryState | None = None
        self._ahead: Future[Any] | None = None  # `programs.learn`, compiled while the first buffer fills

    def restore(self, state: TrainState, *, decisions: int) -> None:
        """Continue from a checkpoint: parameters, optimiser, normaliser, step and keys."""
        self.state = state
        self.step = int(state.step)
        self._decisions = decisions

    @property
    def moment(self) -> tuple[int, int, int]:
        """Changes whenever a checkpoint would."""
        return self.step, self.updates, self._decisions

    @property
    def decisions(self) -> int:
        """Calls of `decide` so far; with the run's key it fixes the next action noise."""
        return self._decisions

    def act(self, messages: Mapping[Source, AgentSteps]) -> tuple[dict[Source, Action], list[EpisodeRecords]]:
        """Book one message per source; return each source's actions in its agents' order, and finished episodes."""
        slots, buffer = self._tables(messages)
        ingested = slots.ingest(messages)
        buffer = self._follow(buffer, slots)
        key_data = noise.noise_key(self._run_key, self._decisions)
        action, self._buffer = self.programs.decide(self.state.policy, buffer, ingested.steps, key_data)
        self._decisions += 1
        chosen = Action(continuous=np.asarray(action.continuous), discrete=np.asarray(action.discrete))
        if self.unfinished():
            self.step += ingested.finished
            self.stored += ingested.finished
        return _by_source(ingested, chosen), ingested.episodes

    def unfinished(self) -> bool:
        """Whether there is something left to do: inference goes on until it is interrupted."""
        return not self.training or self.step <= self.settings.max_steps

    def recorded(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Newest real observations and action masks, [N, *shape] and [N, M], for checking an exported policy."""
        if self._slots is None:
            zeros = tuple(np.zeros((1, *sensor.shape), np.float32) for sensor in self.spec.observations)
            return zeros, np.ones((1, self.spec.action.mask_size), bool)
        return self._slots.recorded()

    def ready(self) -> bool:
        """More than buffer_size decisions are stored, or a row has no room for another message."""
        if not self.training or not self.unfinished() or self._buffer is None or self._slots is None:
            return False
        full = self.stored > 0 and int(self._slots.size.max()) + 2 > self._buffer.shape[0]
        return self.stored > self.settings.hyperparameters.buffer_size or full

    def await_program(self) -> None:
        """Wait until the update is compiled. Nothing is under way meanwhile, so an interrupt may strike."""
        if self._ahead is None:  # the buffer has grown
            self._ahead = compile_ahead(self.programs.learn, self.state, self._buffer)
        while self._ahead is not None and not self._ahead.done():
            wait((self._ahead,), 0.5)  # in slices: Windows notices no interrupt before the end of one

    def learn(self) -> dict[str, float]:
        """One update over everything stored; returns its metrics as floats.

        Raises DivergedError if one of them is not finite.
        """
        assert self._slots is not None and self._buffer is not None
        learn = self.programs.learn if self._ahead is None else self._ahead.result()
        self.state, self._buffer, metrics = learn(self.state, self._buffer)
        self._slots.taken()
        self.stored = 0
        self.updates += 1
        values = {name: float(value) for name, value in metrics.items()}
        for name, value in values.items():
            if not math.isfinite(value):
                rate = self.settings.hyperparameters.learning_rate
                raise DivergedError(self.name, f"{name} of the update at step {self.step} is {value}", rate)
        return values

    def _tables(self, messages: Mapping[Source, AgentSteps]) -> tuple[Slots, TrajectoryState]:
        if self._slots is None or self._buffer is None:
            rows, members = first_size(messages, team_rows=self.algorithm.team_rows)
            self._slots = Slots(self.spec, team_rows=self.algorithm.team_rows, rows=rows, members=members)
            room = self._capacity(rows, members)
            self._buffer = self.programs.allocate(self.spec, capacity=room, rows=rows, members=members)
            if self.training:
                self._ahead = compile_ahead(self.programs.learn, self.state, self._buffer)
        return self._slots, self._buffer

    def _capacity(self, rows: int, members: int) -> int:
        return capacity(self.settings.hyperparameters.buffer_size, rows, members) if self.training else 3

    def _follow(self, buffer: TrajectoryState, slots: Slots) -> TrajectoryState:
        """Let the device buffer follow the tables; compiled programs are then built once more.

        More rows need fewer states each. A buffer that already holds too many is shortened after the next update.
        """
        states, rows, members = buffer.shape
        fitting = self._capacity(slots.rows, slots.members)
        if int(slots.size.max()) + 2 > fitting:
            fitting = states
        if (states, rows, members) == (fitting, slots.rows, slots.members):
            return buffer
        log.info(
            "%s: room for %d teams of %d agents (was %d of %d); the programs are compiled once more.",
            self.name, slots.rows, slots.members, rows, members,
        )  # fmt: skip
        self._ahead = None
        return trajectory.resize(buffer, capacity=fitting, rows=slots.rows, members=slots.members)


def _by_source(ingested: Ingested, action: Action) -> dict[Source, Action]:
    return {
        source: Action(continuous=action.continuous[places], discrete=action.discrete[places])
        for source, places in ingested.decisions.items()
    }
