"""What the compiled loop continues from, and what it has brought. The letters are those of `iteration.py`."""

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
    """What the training of one behavior continues from. Every array has the leading axis S."""

    train: TrainState
    store: Any  # what the algorithm keeps from one iteration to the next; () on-policy; `Pending` of a longer rollout
    fresh: Array  # int32 [S], decisions that the store was given since the last update
    play: Play  # [S, E, ...]
    parameters: dict[str, Value]  # of the environment, float32 [S] or a distribution [S]: for episodes that begin
    values: dict[str, Array]  # settings in which seeds differ, float32 [S], by dotted key
    key: Array  # typed key [S], never consumed: iteration n draws from fold_in(key, n)
    iteration: Array  # uint32 [S]
    frozen: Array  # bool [S], numbers of this seed were not finite: it plays on, but learns and tells nothing any more
    recent: RecentReturns  # what each seed is worth lately
    newest: Any = ()  # `NewestEpisodes` [S] of the last iteration, where lessons are judged by episodes
    last_step: Any = ()  # int32 [S], the trainer step after which it learns no more, where others then go on; else ()
    rivals: Any = ()  # `RivalState` where it learns by self-play; else ()
    paid: Any = ()  # float32 [S, B, A] by signal, what episodes under way were paid; () where nothing is added up


class Pending(struct.PyTreeNode):
    """`JittedState.store` of a behavior whose rollout is longer than an iteration."""

    own: Any  # what the algorithm keeps
    steps: Transitions  # [S, `every` * T, ...], filled from the front


def stored(state: JittedState) -> Any:
    """What the algorithm keeps, without what it has not been given yet."""
    return state.store.own if isinstance(state.store, Pending) else state.store


def with_stored(state: JittedState, own: Any) -> JittedState:
    """The state in which the algorithm keeps this."""
    return state.replace(store=state.store.replace(own=own) if isinstance(state.store, Pending) else own)


class SceneState(struct.PyTreeNode):
    """Everything that a run continues from. Every array has the leading axis S."""

    areas: Areas  # [S, E]
    parts: dict[str, JittedState]  # by behavior; without areas and parameters, which are everybody's
    parameters: dict[str, Value]  # of the environment, float32 [S] or a distribution [S]: for episodes that begin

    def of(self, name: str) -> JittedState:
        """One behavior's state with the areas: what its checkpoint holds."""
        part = self.parts[name]
        return part.replace(play=part.play._replace(areas=self.areas), parameters=self.parameters)

    @staticmethod
    def made_of(states: Mapping[str, JittedState]) -> SceneState:
        """The whole of what `of` tells of each behavior."""
        first = next(iter(states.values()))
        parts = {name: of.replace(play=of.play._replace(areas=()), parameters={}) for name, of in states.items()}
        return SceneState(first.play.areas, parts, first.parameters)

    @property
    def world(self) -> World:
        """Where all behaviors stand."""
        plays = {name: part.play for name, part in self.parts.items()}
        return self.areas, plays | {rivals_of(name): of.play for name, of in self.rivals.items()}

    @property
    def rivals(self) -> dict[str, RivalState]:
        """By behavior that learns by self-play."""
        return {name: part.rivals for name, part in self.parts.items() if isinstance(part.rivals, RivalState)}

    @property
    def episodes(self) -> dict[str, Value]:
        """`parameters`, with whose turn it is to learn."""
        turn = next((of.turn for of in self.rivals.values()), None)  # the same of all
        return self.parameters if turn is None else {**self.parameters, TURN: turn.astype(jnp.float32)}


class IterationLog(NamedTuple):
    """What one or several iterations of `JittedTrainer.run` have brought. Every array has the leading axis S."""

    updates: Array  # int32 [S], iterations in which the seed learned: it was due, and max_steps not passed yet
    metric_sums: Metrics  # float32 [S] by name, over these updates
    episodes: EpisodeFigures
    fault: Array  # int32 [S, 4]: iteration, and what was not finite in it, as in `fault_of`; or -1

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """By name each metric's mean over the updates, float64 [S]; NaN for a seed that made none."""
        with np.errstate(invalid="ignore"):
            return {
                name: np.asarray(total, np.float64) / np.asarray(self.updates)
                for name, total in self.metric_sums.items()
            }

    def metric(self, name: str) -> np.ndarray:
        """One of `metrics`."""
        return self.metrics[name]

    @property
    def group_reward(self) -> np.ndarray:
        """Mean return of the team episodes that ended, float64 [S]; NaN where none did."""
        return _mean(self.episodes.group_reward)

    @property
    def reward(self) -> np.ndarray:
        """Mean return of the agent episodes that ended, float64 [S]; NaN where none did."""
        return _mean(self.episodes.reward)


class Report(NamedTuple):
    """All that the host reads of a behavior after some iterations, as numpy arrays with the leading axis S."""

    step: Any  # int32 [S], of the trainer
    frozen: Any  # bool [S]
    iteration: Any  # uint32 [S]
    values: Any  # float32 [S] by dotted key
    recent: RecentReturns
    newest: Any  # `NewestEpisodes` of the last iteration, or ()
    log: Any = ()  # `IterationLog` of these iterations; () before any

    def slowest(self) -> int:
        """Step of the slowest seed that still learns; of the slowest of all where none does."""
        return int(self.step.min() if self.frozen.all() else self.step[~self.frozen].min())


def step_of(state: JittedState) -> int:
    """`Report.slowest` of a state."""
    steps, frozen = np.asarray(state.train.step), np.asarray(state.frozen)
    return int(steps.min() if frozen.all() else steps[~frozen].min())


def empty_log(shapes: IterationLog) -> IterationLog:
    """Of no iteration, or of one in which a behavior has learned nothing, and told nothing."""
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return empty._replace(fault=empty.fault - 1)


def add_log(total: IterationLog, log: IterationLog) -> IterationLog:
    """Both together, with the first fault."""
    fault = jnp.where(total.fault[:, :1] < 0, log.fault, total.fault)
    return together(total, log)._replace(fault=fault)


def _mean(moments: Moments) -> np.ndarray:
    return np.where(np.asarray(moments.count) > 0, np.asarray(moments.mean, np.float64), np.nan)
