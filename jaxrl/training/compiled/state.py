"""State and logs of the compiled loop. The letters are those of `iteration.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from jaxrl.algorithms.interface import Metrics, TrainState
from jaxrl.jax_envs.interface import Areas
from jaxrl.jax_envs.sampling import Value
from jaxrl.training.compiled.contest import TURN, rivals_of
from jaxrl.training.compiled.opponents import RivalState
from jaxrl.training.compiled.play import Play, Transitions, World
from jaxrl.training.compiled.recent_returns import RecentReturns
from jaxrl.training.compiled.stacking import EpisodeFigures, Moments, together


class JittedState(struct.PyTreeNode):
    """State of the training of one behavior. Every array has the leading axis S."""

    train: TrainState
    store: Any  # the algorithm's store between iterations; () on-policy; `Pending` if rollouts span iterations
    fresh: Array  # int32 [S], decisions that were stored since the last update
    play: Play  # [S, E, ...]
    parameters: dict[str, Value]  # of the environment, float32 [S] or a distribution [S]: for episodes that begin
    values: dict[str, Array]  # settings in which seeds differ, float32 [S], by dotted key
    key: Array  # typed key [S], never consumed: iteration n draws from fold_in(key, n)
    iteration: Array  # uint32 [S]
    frozen: Array  # bool [S], numbers of this seed were not finite: it plays on, without learning or reporting
    recent: RecentReturns  # recent returns of each seed
    newest: Any = ()  # `NewestEpisodes` [S] of the last iteration, if lessons are judged by episodes
    last_step: Any = ()  # int32 [S], the trainer step after which it learns no more, if others then go on; else ()
    rivals: Any = ()  # `RivalState` with self-play; else ()
    paid: Any = ()  # float32 [S, B, A] by signal, reward sums of open episodes; () without signal rewards


class Pending(struct.PyTreeNode):
    """`JittedState.store` of a behavior whose rollout is longer than an iteration."""

    own: Any  # the algorithm's store
    steps: Transitions  # [S, `every` * T, ...], filled from the front


def stored(state: JittedState) -> Any:
    """Return the algorithm's store, without the decisions of an incomplete rollout."""
    return state.store.own if isinstance(state.store, Pending) else state.store


def with_stored(state: JittedState, own: Any) -> JittedState:
    """Return the state with the algorithm's store replaced."""
    return state.replace(store=state.store.replace(own=own) if isinstance(state.store, Pending) else own)


class SceneState(struct.PyTreeNode):
    """Whole state of a run. Every array has the leading axis S."""

    areas: Areas  # [S, E]
    parts: dict[str, JittedState]  # by behavior; without areas and parameters, which are shared
    parameters: dict[str, Value]  # of the environment, float32 [S] or a distribution [S]: for episodes that begin

    def of(self, name: str) -> JittedState:
        """Return one behavior's state with the areas and parameters, as its checkpoint holds it."""
        part = self.parts[name]
        return part.replace(play=part.play._replace(areas=self.areas), parameters=self.parameters)

    @staticmethod
    def made_of(states: Mapping[str, JittedState]) -> SceneState:
        """Make the whole state from the states that `of` returns for each behavior."""
        first = next(iter(states.values()))
        parts = {name: part.replace(play=part.play._replace(areas=()), parameters={}) for name, part in states.items()}
        return SceneState(first.play.areas, parts, first.parameters)

    @property
    def world(self) -> World:
        """Areas, and the plays of all behaviors and rivals."""
        plays = {name: part.play for name, part in self.parts.items()}
        return self.areas, plays | {rivals_of(name): rivals.play for name, rivals in self.rivals.items()}

    @property
    def rivals(self) -> dict[str, RivalState]:
        """Self-play states, by behavior with self-play."""
        return {name: part.rivals for name, part in self.parts.items() if isinstance(part.rivals, RivalState)}

    @property
    def episodes(self) -> dict[str, Value]:
        """Parameters of new episodes: `parameters`, and with self-play the learning side."""
        turn = next((rivals.turn for rivals in self.rivals.values()), None)  # equal for all behaviors
        return self.parameters if turn is None else {**self.parameters, TURN: turn.astype(jnp.float32)}


class IterationLog(NamedTuple):
    """Log of one or several iterations of `JittedTrainer.run`. Every array has the leading axis S."""

    updates: Array  # int32 [S], iterations in which the seed learned: an update was due, and max_steps not passed yet
    metric_sums: Metrics  # float32 [S] by name, over these updates
    episodes: EpisodeFigures
    fault: Array  # int32 [S, 4]: iteration, and its first non-finite number as in `fault_of`; or -1

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """Mean of each metric over the updates by name, float64 [S]; NaN for a seed without updates."""
        with np.errstate(invalid="ignore"):
            return {
                name: np.asarray(total, np.float64) / np.asarray(self.updates)
                for name, total in self.metric_sums.items()
            }

    def metric(self, name: str) -> np.ndarray:
        """Return one of `metrics`."""
        return self.metrics[name]

    @property
    def group_reward(self) -> np.ndarray:
        """Mean group return of the team episodes that ended, float64 [S]; NaN where none did."""
        return _mean(self.episodes.group_reward)

    @property
    def reward(self) -> np.ndarray:
        """Mean return of the agent episodes that ended, float64 [S]; NaN where none did."""
        return _mean(self.episodes.reward)


class Report(NamedTuple):
    """All values of a behavior that the host reads after a chunk, as numpy arrays with the leading axis S."""

    step: Any  # int32 [S], trainer step
    frozen: Any  # bool [S]
    iteration: Any  # uint32 [S]
    values: Any  # float32 [S] by dotted key
    recent: RecentReturns
    newest: Any  # `NewestEpisodes` of the last iteration, or ()
    log: Any = ()  # `IterationLog` of these iterations; () before any

    def slowest(self) -> int:
        """Return the step of the slowest seed that is not frozen, or of the slowest of all if all are frozen."""
        return int(self.step.min() if self.frozen.all() else self.step[~self.frozen].min())


def step_of(state: JittedState) -> int:
    """Compute `Report.slowest` from a state."""
    steps, frozen = np.asarray(state.train.step), np.asarray(state.frozen)
    return int(steps.min() if frozen.all() else steps[~frozen].min())


def empty_log(shapes: IterationLog) -> IterationLog:
    """Return a log of zeros: of no iteration, or of one without an update and a report."""
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return empty._replace(fault=empty.fault - 1)


def add_log(total: IterationLog, log: IterationLog) -> IterationLog:
    """Add a later log to a total, keeping the first fault."""
    fault = jnp.where(total.fault[:, :1] < 0, log.fault, total.fault)
    return together(total, log)._replace(fault=fault)


def _mean(moments: Moments) -> np.ndarray:
    return np.where(np.asarray(moments.count) > 0, np.asarray(moments.mean, np.float64), np.nan)
