"""Lessons of a scene: each seed has one set of them, which hears of all behaviors.

As `compiled/lessons.py`. Episodes of a behavior, and the environment's statistics for lessons that are judged by it,
are told with its rollouts; one that learns no more goes on to tell of its episodes, as in ML-Agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.settings import EnvironmentParameter
from jaxrl.training.compiled.iteration import IterationLog, step_of
from jaxrl.training.compiled.lessons import SeedLessons, present_parameters
from jaxrl.training.compiled.newest import Newest
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.compiled.scene.iteration import SceneState
from jaxrl.training.compiled.scene.trainer import SceneTrainer


class SceneLessons(SeedLessons):
    """The lessons of the S seeds of a run of several behaviors."""

    def __init__(self, parameters: Mapping[str, EnvironmentParameter] | None, subjects: Sequence[Subject]) -> None:
        super().__init__(parameters, subjects[0])
        self._subjects = {subject.name: subject for subject in subjects}
        self._steps = {name: np.zeros(self.count, int) for name in self._subjects}  # at the last look

    @property
    def newest_of(self) -> dict[str, int]:
        """By behavior, how many of the newest episodes of a rollout have to be told one by one."""
        return {name: self._each[0].kept(name) for name in self._subjects}

    def look_at(
        self,
        newest: Mapping[str, Newest],
        logs: Mapping[str, IterationLog],
        steps: Mapping[str, np.ndarray],
        frozen: Mapping[str, np.ndarray],
    ) -> bool:
        """An iteration is over: whether any seed went on to another lesson.

        All arguments are by behavior, of all S seeds; `newest` lacks those by which no lesson is judged. A
        behavior that is frozen in a seed tells it nothing. Once all behaviors of a seed are frozen, or had passed
        max_steps before this iteration, it stays in its lessons.
        """
        learned, changed = self._learning(self._steps, frozen), False
        for index in np.flatnonzero(learned).tolist():
            progress = {}
            for name, subject in self._subjects.items():
                progress[name] = float(steps[name][index]) / subject.settings.max_steps
                if name in newest and not frozen[name][index]:
                    self._hear(index, name, newest[name], logs[name].episodes.stats)
            changes = self._each[index].advance(progress)
            self._tell_of(index, changes)
            changed |= bool(changes)
        self._steps = {name: np.array(of) for name, of in steps.items()}
        some = np.flatnonzero(learned & self._learning(self._steps, frozen))
        self.open = any(not self._each[index].finished for index in some)
        return changed

    def _learning(self, steps: Mapping[str, np.ndarray], frozen: Mapping[str, np.ndarray]) -> np.ndarray:
        """bool [S], whether any behavior of the seed still learns."""
        subjects = self._subjects.items()
        return np.any([~frozen[name] & (steps[name] <= of.settings.last_step) for name, of in subjects], axis=0)

    def go_back_to(self, checkpoint: Path, known: Path, steps: Mapping[str, np.ndarray]) -> None:
        """As `resume`, with the steps [S] of each behavior. Every behavior's checkpoint notes the same lessons."""
        self.resume(checkpoint, known, steps[self.behavior])
        self._steps = dict(steps)


def resumed(state: SceneState, lessons: SceneLessons, folder: RunFolder) -> SceneState:
    """The state of a resumed run with the parameters of the lessons that its seeds were in at that moment."""
    if not lessons.several:
        return state
    step = step_of(state.parts[lessons.behavior])
    saved = next(item.path for item in checkpoints(folder.behavior(lessons.behavior)) if item.step == step)
    steps = {name: np.asarray(part.train.step) for name, part in state.parts.items()}
    lessons.go_back_to(saved, folder.status, steps)
    return state.replace(parameters=present_parameters(state.parameters, lessons))


def go_on(
    trainer: SceneTrainer, state: SceneState, lessons: SceneLessons, logs: Mapping[str, IterationLog]
) -> SceneState:
    """After an iteration: the state with the parameters of the present lessons, for episodes that begin."""
    if not lessons.open:
        return state
    told = jax.device_get({name: (part.newest, part.train.step, part.frozen) for name, part in state.parts.items()})
    newest, steps, frozen = ({name: of[i] for name, of in told.items()} for i in range(3))
    newest = {name: of for name, of in newest.items() if lessons.newest_of[name]}
    changed = lessons.look_at(newest, logs, steps, frozen)
    return trainer.place(state.replace(parameters=present_parameters(state.parameters, lessons))) if changed else state
