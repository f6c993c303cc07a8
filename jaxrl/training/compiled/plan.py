"""What the compiled loop is bound to, and the functions that it is given as."""

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
    """Two compiled functions and the sizes that they are compiled for, of one behavior.

    init: (seeds, S whole numbers) → JittedState, a fresh start of every seed.
    run:  (JittedState, count) → (JittedState, IterationLog), `count` iterations; the state given is used up.
    place: (JittedState) → JittedState, a state from elsewhere (a checkpoint) put where `run` expects it.
    save: (JittedState, path, keep=0) → folder of the checkpoint, written below `path`; see `trainer_checkpoint.save`.
    restore: (path) → JittedState, which goes on bit for bit where `save` was called; see `trainer_checkpoint.restore`.
    take: (JittedState, first, count) → JittedState of `count` of its seeds, from number `first` on.
    put:  (JittedState, JittedState of some seeds, first) → JittedState, in which these are from number `first` on.
    begin_anew: (JittedState, bool [S]) → JittedState, in which all episodes of these seeds are broken off and others
      begin.
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
    """As `JittedTrainer`, with a `SceneState`, a log for each behavior, and some numbers by behavior."""

    init: Callable[..., SceneState]  # (seeds, parameters [S] of the environment = those that it was made with)
    run: Callable[[SceneState, int], tuple[SceneState, dict[str, IterationLog]]]
    place: Callable[[SceneState], SceneState]
    take: Callable[[SceneState, int, int], SceneState]
    put: Callable[[SceneState, SceneState, int], SceneState]
    begin_anew: Callable[[SceneState, np.ndarray], SceneState]
    read: Callable[[Any], Any]  # arrays of it, which may lie on other hosts too → as numpy arrays; every host asks
    here: Callable[[SceneState], SceneState]  # as arrays of this process alone, where there are other hosts; each asks
    report: Callable[..., dict[str, Report]]  # (SceneState, logs = {}) → by behavior all that is read between chunks
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
    """What one behavior's learning is bound to."""

    env: Sizes
    algorithm: Algorithm
    time_horizon: int
    max_steps: int  # agent steps after which a seed learns no more
    values: Mapping[str, Any] = {}  # settings in which seeds differ, float [S] by dotted key
    newest: int = 0  # episodes of each rollout that are told one by one, at most
    every: int = 1  # iterations from one update to the next
    alone: bool = True  # no other behavior goes on to learn once this one is done
    by_turns: bool = False  # there are iterations in which nothing is met, because another behavior learns


class Plan(NamedTuple):
    """What an iteration is bound to."""

    scene: JaxScene
    learners: Mapping[str, Learner]  # by behavior, in the order of the scene
    parameters: Mapping[str, Any]  # of the environment at the start: numbers, arrays [S] or distributions [S]
    areas: int  # E
    steps: int  # T
    rivals: Mapping[str, Rivals] = {}  # by behavior that learns by self-play
    teams: Mapping[str, TeamAlgorithm] = {}  # by name: behaviors that learn together

    @property
    def together(self) -> list[tuple[dict[str, Learner], TeamAlgorithm | None]]:
        """The behaviors that learn with each other, most of them each for itself."""
        mates = {name: team for team in self.teams.values() for name in team.kinds}
        alone = [({name: learner}, None) for name, learner in self.learners.items() if name not in mates]
        return [*alone, *(({name: self.learners[name] for name in team.kinds}, team) for team in self.teams.values())]

    @property
    def algorithms(self) -> dict[str, Algorithm]:
        """By behavior, of those too that act as rivals."""
        learners = {name: learner.algorithm for name, learner in self.learners.items()}
        return learners | {rivals_of(name): of.algorithm for name, of in self.rivals.items()}
