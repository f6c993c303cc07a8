"""Types of the compiled loop: its functions, and the static arguments that they are bound to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.algorithms.interface import Algorithm
from jaxrl.algorithms.team import TeamAlgorithm
from jaxrl.jax_envs.scene import JaxScene, Sizes
from jaxrl.training.compiled.contest import rivals_of
from jaxrl.training.compiled.opponents import Rivals
from jaxrl.training.compiled.state import IterationLog, JittedState, Report, SceneState


class JittedTrainer(NamedTuple):
    """Compiled functions for one behavior, and the sizes that they are compiled for.

    init: (seeds, S whole numbers) → JittedState, a fresh start of every seed.
    run:  (JittedState, count) → (JittedState, IterationLog), `count` iterations; the state passed in is donated.
    place: (JittedState) → JittedState, a state from elsewhere (a checkpoint) put on the devices that `run` expects.
    save: (JittedState, path, keep=0) → folder of the checkpoint, written below `path`; see `trainer_checkpoint.save`.
    restore: (path) → JittedState, which continues bit for bit after `save`; see `trainer_checkpoint.restore`.
    take: (JittedState, first, count) → JittedState of `count` of its seeds, from number `first` on.
    put:  (JittedState, JittedState of some seeds, first) → JittedState with these seeds from number `first` on.
    begin_anew: (JittedState, bool [S]) → JittedState, in which all episodes of these seeds are broken off and begin
      anew.
    """

    init: Callable[[Sequence[int]], JittedState]
    run: Callable[[JittedState, int], tuple[JittedState, IterationLog]]
    place: Callable[[JittedState], JittedState]
    save: Callable[..., Path]
    restore: Callable[[str | Path], JittedState]
    take: Callable[[JittedState, int, int], JittedState]
    put: Callable[[JittedState, JittedState, int], JittedState]
    begin_anew: Callable[[JittedState, np.ndarray], JittedState]
    seeds: int  # S
    areas: int  # E
    steps: int  # T, decisions in each area per iteration
    agents: int  # of one area, at most
    devices: int
    bytes: int  # memory that a run takes on each device


class SceneTrainer(NamedTuple):
    """Like `JittedTrainer`, with a `SceneState`, a log for each behavior, and some numbers by behavior."""

    init: Callable[..., SceneState]  # (seeds, environment parameters [S]; default: those that it was made with)
    run: Callable[[SceneState, int], tuple[SceneState, dict[str, IterationLog]]]
    place: Callable[[SceneState], SceneState]
    take: Callable[[SceneState, int, int], SceneState]
    put: Callable[[SceneState, SceneState, int], SceneState]
    begin_anew: Callable[[SceneState, np.ndarray], SceneState]
    read: Callable[[Any], Any]  # arrays, perhaps spread over hosts → numpy arrays; every host calls it
    here: Callable[[SceneState], SceneState]  # state spread over hosts → arrays of this process; every host calls it
    report: Callable[..., dict[str, Report]]  # (SceneState, logs = {}) → values that are read between chunks
    seeds: int
    areas: int
    steps: int
    every: Mapping[str, int]  # iterations from one update to the next
    agents: Mapping[str, int]
    algorithms: Mapping[str, Algorithm]
    devices: int
    bytes: int
    shapes: SceneState  # of a state, as `jax.eval_shape` tells them


class Learner(NamedTuple):
    """Static arguments of one behavior's learning."""

    env: Sizes
    algorithm: Algorithm
    time_horizon: int
    max_steps: int  # agent steps after which a seed learns no more
    values: Mapping[str, Any] = {}  # settings in which seeds differ, float [S] by dotted key
    newest: int = 0  # largest number of episodes of each rollout that are reported one by one
    every: int = 1  # iterations from one update to the next
    alone: bool = True  # no other behavior still learns once this one is done
    by_turns: bool = False  # some iterations bring no data, because another behavior learns


class Plan(NamedTuple):
    """Static arguments of an iteration."""

    scene: JaxScene
    learners: Mapping[str, Learner]  # by behavior, in the order of the scene
    parameters: Mapping[str, Any]  # of the environment at the start: numbers, arrays [S] or distributions [S]
    areas: int  # E
    steps: int  # T
    rivals: Mapping[str, Rivals] = {}  # by behavior with self-play
    teams: Mapping[str, TeamAlgorithm] = {}  # by name: teams of several behaviors

    @property
    def together(self) -> list[tuple[dict[str, Learner], TeamAlgorithm | None]]:
        """Groups of behaviors that learn together, with their team algorithm; None for a behavior without a team."""
        mates = {name: team for team in self.teams.values() for name in team.kinds}
        alone = [({name: learner}, None) for name, learner in self.learners.items() if name not in mates]
        return [*alone, *(({name: self.learners[name] for name in team.kinds}, team) for team in self.teams.values())]

    @property
    def algorithms(self) -> dict[str, Algorithm]:
        """Algorithms by behavior, including those that act as rivals."""
        learners = {name: learner.algorithm for name, learner in self.learners.items()}
        return learners | {rivals_of(name): rivals.algorithm for name, rivals in self.rivals.items()}
