"""Lessons in the compiled loop: each seed has its own, checked after every iteration while any of them may advance.

So a seed's training does not depend on the number of iterations between two checks by the host: while a lesson is open,
chunks have one iteration. When all seeds are in their last lessons, chunks grow again. A lesson only changes arrays
(`SceneState.parameters`), never the program.

With several behaviors, each seed's lessons get the data of all of them. Episodes of a behavior, and the environment's
statistics for lessons that are judged by it, are reported with its rollouts; a behavior that learns no more still
reports its episodes, as in ML-Agents.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from jaxrl.artifacts.checkpoint import document
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.checkpoint.loop import LESSONS
from jaxrl.artifacts.checkpoint.store import require_latest
from jaxrl.artifacts.metrics.statistics import ELO, Summary, lesson_tag
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import LESSON
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.sampling import Distribution, intervals_of, of_seeds
from jaxrl.jax_envs.scene import JaxScene
from jaxrl.settings import EnvironmentParameter
from jaxrl.training.compiled.plan import SceneTrainer
from jaxrl.training.compiled.recent_returns import NewestEpisodes
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.compiled.state import Report, SceneState
from jaxrl.training.lessons import LessonChange, Lessons

log = logging.getLogger(__name__)


class SeedLessons:
    """Lessons of the S = `count` seeds of one run. Each seed's lessons get the data of all its behaviors."""

    def __init__(
        self, parameters: Mapping[str, EnvironmentParameter] | None, subjects: Sequence[Subject], prefix: str = ""
    ) -> None:
        """Make the lessons of the behaviors `subjects`; `prefix` begins each log line."""
        self._prefix, self._seeds = prefix, subjects[0].seeds
        self._subjects = {subject.name: subject for subject in subjects}
        self._each = [Lessons(parameters, seed) for seed in self._seeds]
        self.count = len(self._each)
        self.open = any(not lessons.finished for lessons in self._each)
        """True if a seed that still learns may advance to another lesson."""
        self._steps = {name: np.zeros(self.count, int) for name in self._subjects}  # of each seed at the last `look`
        self.several = self.open
        """True if there is a curriculum of several lessons."""

    @property
    def newest(self) -> dict[str, int]:
        """Number of the newest episodes of a rollout that must be reported one by one, by behavior."""
        return {name: self._each[0].kept(name) for name in self._subjects}

    def intervals(self) -> dict[str, int]:
        """Return, by parameter, the largest number of intervals of its sampler in any lesson; 0 if always a number."""
        return {name: intervals_of(values) for name, values in self._each[0].possible().items()}

    def values(self, intervals: Mapping[str, int]) -> dict[str, np.ndarray | Distribution]:
        """Return every parameter in the present lessons, float32 [S] or a distribution [S] with so many intervals."""
        present = [lessons.values() for lessons in self._each]
        return {name: of_seeds([values[name] for values in present], intervals[name]) for name in present[0]}

    def look(self, told: Mapping[str, Report]) -> dict[int, bool]:
        """Advance lessons after an iteration; return, by index of each seed that advanced, whether it begins anew.

        `told`: reports of all S seeds, by behavior. A behavior that is frozen in a seed is ignored there. Once all
        behaviors of a seed are frozen, or had passed max_steps before this iteration, the seed stays in its lessons.
        """
        frozen, advanced = {name: report.frozen for name, report in told.items()}, {}
        learned = self._learning(frozen)
        for index in np.flatnonzero(learned).tolist():
            progress = {}
            for name, subject in self._subjects.items():
                progress[name] = float(told[name].step[index]) / subject.settings.max_steps
                if not frozen[name][index]:
                    self._hear(index, name, told[name])
            changes = self._each[index].advance(progress)
            self._tell_of(index, changes)
            if changes:
                advanced[index] = any(change.require_reset for change in changes)
        self._steps = {name: np.array(report.step) for name, report in told.items()}
        some = np.flatnonzero(learned & self._learning(frozen))
        self.open = any(not self._each[index].finished for index in some)
        return advanced

    def _learning(self, frozen: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return whether any behavior of the seed still learns, bool [S]."""
        last = {name: subject.settings.last_step for name, subject in self._subjects.items()}
        return np.any([~frozen[name] & (self._steps[name] <= step) for name, step in last.items()], axis=0)

    def _hear(self, index: int, name: str, told: Report) -> None:
        """Add an iteration's report of the behavior `name` to the lessons of the seed at `index`."""
        rating = told.log.episodes.stats.get(ELO)
        if rating is not None and rating.count[index] > 0:
            self._each[index].rated(name, float(rating.mean[index]))
        if not isinstance(told.newest, NewestEpisodes):
            return  # no lesson is judged by it
        own, team = (
            values[index][: count[index]][::-1].tolist()
            for values, count in (
                (told.newest.reward, told.newest.rewards),
                (told.newest.group_reward, told.newest.group_rewards),
            )
        )
        self._each[index].episodes(name, own, team)
        for tag, moments in told.log.episodes.stats.items():
            if moments.count[index] > 0:
                self._each[index].statistic(tag, float(moments.total[index]) / float(moments.count[index]), name)

    def _tell_of(self, index: int, changes: Sequence[LessonChange]) -> None:
        for change in changes:
            whose = "" if self.count == 1 else f"Seed {self._seeds[index]}: "
            anew = " All its areas begin anew." if change.require_reset else ""
            log.info("%s%s%s%s", self._prefix, whose, change.line, anew)

    def tell(self) -> None:
        """Log the present lessons of all seeds."""
        for line in self._lines():
            log.info("%s%s", self._prefix, line)

    def _lines(self) -> list[str]:
        every = dict.fromkeys(line for lessons in self._each for line in lessons.lines())
        if self.count == 1 or all(lessons.lines() == list(every) for lessons in self._each):
            return list(every)
        numbered = zip(self._seeds, self._each, strict=True)
        return [f"Seed {seed}: {line}" for seed, lessons in numbered for line in lessons.lines()]

    def summaries(self, index: int) -> dict[str, Summary]:
        """Return the summaries for the event file of one seed, by tag."""
        return {lesson_tag(name): Summary.of(float(number)) for name, number in self._each[index].numbers.items()}

    def reached(self) -> np.ndarray:
        """Return the number of lessons that each seed has passed, summed over parameters, int [S]."""
        return np.array([sum(lessons.numbers.values()) for lessons in self._each], int)

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return the entries for training_status.json: each parameter's lesson number, or a list for several seeds."""
        numbers = {name: [lessons.numbers[name] for lessons in self._each] for name in self._each[0].numbers}
        return {name: {LESSON: seeds[0] if self.count == 1 else seeds} for name, seeds in numbers.items()}

    def state(self, index: int | None = None) -> dict[str, Any]:
        """Return the checkpoint's entries beside the settings: the lessons of all seeds, or of the one at `index`."""
        chosen = self._each if index is None else [self._each[index]]
        return {LESSONS: [lessons.state() for lessons in chosen]} if self.several else {}

    def noted(self, folder: RunFolder, told: Mapping[str, Report]) -> list[dict[str, Any]]:
        """Read each seed's lesson state from the checkpoint of the moment that the reports `told` show.

        The checkpoints of all behaviors hold the same lessons; empty if the run had no curriculum yet.
        """
        name, step = next((name, report.slowest()) for name, report in told.items())
        place = folder.behavior(name)
        saved = next((item.path for item in checkpoints(place) if item.step == step), None) or require_latest(place)
        return document.read_info(saved).settings.get(LESSONS) or [{}] * self.count

    def resume(self, states: Sequence[dict[str, Any]], told: Mapping[str, Report]) -> None:
        """Continue from the lesson `states` of all seeds; `told`: reports of the resumed seeds."""
        for lessons, state in zip(self._each, states, strict=True):
            lessons.restore(state)
        self._steps = {name: np.array(report.step) for name, report in told.items()}
        self.open = any(not lessons.finished for lessons in self._each)


def parameters_at_start(env: JaxEnv | JaxScene, runs: Sequence[SeedLessons]) -> dict[str, Any]:
    """Return every environment parameter for all seeds of all `runs`, in the form for `make_jitted_trainer`."""
    names = dict.fromkeys(name for lessons in runs for name in lessons.intervals())
    intervals = {name: max(lessons.intervals().get(name, 0) for lessons in runs) for name in names}
    usual = {name: of_seeds([value], intervals.get(name, 0)) for name, value in env.parameters.items()}
    parameters: dict[str, Any] = dict(env.parameters)
    for name in names:
        of_runs = [lessons.values({**lessons.intervals(), name: intervals[name]}).get(name) for lessons in runs]
        parts = [
            jax.tree.map(lambda x, n=lessons.count: np.repeat(x, n, axis=0), usual[name]) if part is None else part
            for lessons, part in zip(runs, of_runs, strict=True)
        ]
        parameters[name] = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return parameters


def with_parameters(state: SceneState, lessons: SeedLessons, first: int) -> SceneState:
    """Return the state with the parameters of the present lessons for the seeds from number `first` on."""
    before = state.parameters
    intervals = {name: x.low.shape[-1] if isinstance(x, Distribution) else 0 for name, x in before.items()}

    def put(old: Array, new: np.ndarray) -> Any:
        return new if len(new) == len(old) else old.at[first : first + len(new)].set(new)

    changed = {name: jax.tree.map(put, before[name], x) for name, x in lessons.values(intervals).items()}
    return state.replace(parameters={**before, **changed})


def go_on(
    trainer: SceneTrainer, state: SceneState, lessons: SeedLessons, first: int, told: Mapping[str, Report]
) -> SceneState:
    """Advance lessons after an iteration; return the state with the new parameters of seeds from number `first` on.

    `told`: reports of these seeds. Where a change asks for it, all episodes of the seed begin anew.
    """
    changed = lessons.look(told) if lessons.open else {}
    if not changed:
        return state
    state = trainer.place(with_parameters(state, lessons, first))
    anew = np.zeros(trainer.seeds, bool)
    anew[[first + index for index, wanted in changed.items() if wanted]] = True
    return trainer.begin_anew(state, anew) if anew.any() else state
