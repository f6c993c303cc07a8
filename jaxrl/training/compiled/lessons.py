"""Lessons in the compiled loop: each seed has its own, looked at after every iteration while any of them may go on.

So what a seed learns does not depend on how many iterations the host lets pass between two looks at its program: while
a lesson is open these are chunks of one iteration. When all seeds are in their last lessons, chunks grow again. A
lesson changes arrays alone (`JittedState.parameters`), never the program.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.artifacts import status
from jaxrl.artifacts.checkpoint import document
from jaxrl.artifacts.checkpoint.loop import LESSONS
from jaxrl.artifacts.checkpoint.store import require_latest
from jaxrl.artifacts.metrics.statistics import Summary, lesson_tag
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import LESSON
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.sampling import Distribution, intervals_of, of_seeds
from jaxrl.jax_envs.scene import JaxScene
from jaxrl.settings import EnvironmentParameter, RunSettings
from jaxrl.training.compiled.iteration import IterationLog, JittedState, JittedTrainer
from jaxrl.training.compiled.newest import Newest
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.lessons import LessonChange, Lessons

log = logging.getLogger(__name__)


class SeedLessons:
    """The lessons of the seeds of one run: S = `count` of them."""

    def __init__(
        self, parameters: Mapping[str, EnvironmentParameter] | None, subject: Subject, prefix: str = ""
    ) -> None:
        """`prefix` stands before what is logged."""
        self._subject, self._prefix = subject, prefix
        self.behavior = subject.name
        self._each = [Lessons(parameters, seed) for seed in subject.seeds]
        self.count = len(self._each)
        self.open = any(not lessons.finished for lessons in self._each)
        """Whether a seed that still learns may go on to another lesson."""
        self._before = np.zeros(self.count, int)  # trainer step of each seed at the last look
        self.several = self.open
        """Whether there is a curriculum, of several lessons."""

    @property
    def newest(self) -> int:
        """How many of the newest episodes of an iteration have to be told one by one."""
        return self._each[0].kept(self._subject.name)

    def intervals(self) -> dict[str, int]:
        """By parameter, the most intervals that its sampler has in any lesson; 0 where it is a number in all."""
        return {name: intervals_of(values) for name, values in self._each[0].possible().items()}

    def values(self, intervals: Mapping[str, int]) -> dict[str, np.ndarray | Distribution]:
        """Every parameter in the present lessons, float32 [S] or a distribution [S] with so many intervals."""
        present = [lessons.values() for lessons in self._each]
        return {name: of_seeds([values[name] for values in present], intervals[name]) for name in present[0]}

    def look(self, newest: Newest, stats: Mapping[str, Any], step: np.ndarray, frozen: np.ndarray) -> dict[int, bool]:
        """An iteration is over: by the index of each seed that went on to another lesson, whether it begins anew.

        Args:
          newest, step, frozen: of all S seeds. Those that are frozen, or had passed max_steps before this iteration,
            stay in their lessons.
          stats: by tag, moments of what the environment told of the episodes that ended, [S].
        """
        found = {}
        last, learned = self._subject.settings.last_step, ~frozen & (self._before <= self._subject.settings.last_step)
        for index in np.flatnonzero(learned).tolist():
            changes = self._looked(index, newest, stats, float(step[index]))
            self._tell_of(index, changes)
            if changes:
                found[index] = any(change.require_reset for change in changes)
        self._before = np.array(step)
        self.open = any(not self._each[index].finished for index in np.flatnonzero(learned & (step <= last)))
        return found

    def _looked(self, index: int, newest: Newest, stats: Mapping[str, Any], step: float) -> list[LessonChange]:
        self._hear(index, self._subject.name, newest, stats)
        return self._each[index].advance({self._subject.name: step / self._subject.settings.max_steps})

    def _hear(self, index: int, name: str, newest: Newest, stats: Mapping[str, Any]) -> None:
        """What an iteration has told of the behavior `name`, for the lessons of the seed at `index`."""
        own, team = newest.reward[index], newest.group_reward[index]
        own, team = own[: newest.rewards[index]], team[: newest.group_rewards[index]]
        self._each[index].episodes(name, own[::-1].tolist(), team[::-1].tolist())
        for tag, moments in stats.items():
            if moments.count[index] > 0:
                self._each[index].statistic(tag, float(moments.total[index]) / float(moments.count[index]), name)

    def _tell_of(self, index: int, changes: Sequence[LessonChange]) -> None:
        for change in changes:
            whose = "" if self.count == 1 else f"Seed {self._subject.seeds[index]}: "
            anew = " All its areas begin anew." if change.require_reset else ""
            log.info("%s%s%s%s", self._prefix, whose, change.line, anew)

    def tell(self) -> None:
        """Log where all seeds stand."""
        for line in self._lines():
            log.info("%s%s", self._prefix, line)

    def _lines(self) -> list[str]:
        every = dict.fromkeys(line for lessons in self._each for line in lessons.lines())
        if self.count == 1 or all(lessons.lines() == list(every) for lessons in self._each):
            return list(every)
        numbered = zip(self._subject.seeds, self._each, strict=True)
        return [f"Seed {seed}: {line}" for seed, lessons in numbered for line in lessons.lines()]

    def summaries(self, index: int) -> dict[str, Summary]:
        """What the event file of one seed gets, by tag."""
        return {lesson_tag(name): _constant(float(number)) for name, number in self._each[index].numbers.items()}

    def reached(self) -> np.ndarray:
        """int [S], lessons that each seed has left behind, of all parameters."""
        return np.array([sum(lessons.numbers.values()) for lessons in self._each], int)

    def entries(self) -> dict[str, dict[str, Any]]:
        """Of training_status.json, by parameter: its lesson number, with several seeds a list of them."""
        numbers = {name: [lessons.numbers[name] for lessons in self._each] for name in self._each[0].numbers}
        return {name: {LESSON: of[0] if self.count == 1 else of} for name, of in numbers.items()}

    def state(self, index: int | None = None) -> dict[str, Any]:
        """What a checkpoint notes beside the settings: the lessons of all seeds, or of the one at `index`."""
        chosen = self._each if index is None else [self._each[index]]
        return {LESSONS: [lessons.state() for lessons in chosen]} if self.several else {}

    def resume(self, checkpoint: Path, known: Path, step: np.ndarray) -> None:
        """Go on where a checkpoint was saved, at trainer steps `step` [S].

        Where it notes no lessons, those of training_status.json `known` are taken.
        """
        saved = document.read_info(checkpoint).settings.get(LESSONS)
        states = saved if saved is not None else _of_status(known, self.count)
        for lessons, state in zip(self._each, states, strict=True):
            lessons.restore(state)
        self._before = step
        self.open = any(not lessons.finished for lessons in self._each)


def resumed(
    trainer: JittedTrainer, state: JittedState, lessons: SeedLessons, first: int, run: RunSettings, folder: RunFolder
) -> JittedState:
    """With --resume: the state with the parameters of the lessons that its seeds from number `first` on were in."""
    if not (run.checkpoint_settings.resume and lessons.several):
        return state
    step = np.asarray(state.train.step)[first : first + lessons.count]
    lessons.resume(require_latest(folder.behavior(lessons.behavior)), folder.status, step)
    return trainer.place(with_parameters(state, lessons, first))


def _constant(value: float) -> Summary:
    return Summary(value=value, mean=value, std=0.0, sum=value, count=1, histogram=None)


def _of_status(path: Path, count: int) -> list[dict[str, Any]]:
    entries = status.read(path) if path.is_file() else {}
    numbers = [status.lesson_numbers(entries, index) for index in range(count)]
    return [{"parameters": {name: {LESSON: n} for name, n in of_seed.items()}} for of_seed in numbers]


def parameters_at_start(env: JaxEnv | JaxScene, runs: Sequence[SeedLessons]) -> dict[str, Any]:
    """Every parameter of the environment for all seeds of all `runs`, as `make_jitted_trainer` takes them."""
    names = dict.fromkeys(name for lessons in runs for name in lessons.intervals())
    intervals = {name: max(lessons.intervals().get(name, 0) for lessons in runs) for name in names}
    usual = {name: of_seeds([value], intervals.get(name, 0)) for name, value in env.parameters.items()}
    found: dict[str, Any] = dict(env.parameters)
    for name in names:
        of_runs = [lessons.values({**lessons.intervals(), name: intervals[name]}).get(name) for lessons in runs]
        parts = [
            jax.tree.map(lambda x, n=lessons.count: np.repeat(x, n, axis=0), usual[name]) if part is None else part
            for lessons, part in zip(runs, of_runs, strict=True)
        ]
        found[name] = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return found


def with_parameters(state: JittedState, lessons: SeedLessons, first: int) -> JittedState:
    """The state with the parameters of the present lessons for the seeds from number `first` on."""
    return state.replace(parameters=present_parameters(state.parameters, lessons, first))


def present_parameters(of_state: Mapping[str, Any], lessons: SeedLessons, first: int = 0) -> dict[str, Any]:
    """Those of a state, with what the seeds from number `first` on have in their present lessons."""
    parameters: dict[str, Any] = jax.device_get(dict(of_state))
    intervals = {name: x.low.shape[-1] if isinstance(x, Distribution) else 0 for name, x in parameters.items()}

    def put(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        return np.concatenate([old[:first], new, old[first + lessons.count :]])

    changed = {name: jax.tree.map(put, parameters[name], x) for name, x in lessons.values(intervals).items()}
    return {**parameters, **changed}


def go_on(
    trainer: JittedTrainer, state: JittedState, lessons: SeedLessons, first: int, numbers: IterationLog
) -> JittedState:
    """After an iteration: the state with the parameters of the lessons in which seeds from number `first` on are now.

    `numbers` are those of these seeds. In seeds whose change asks for it all episodes begin anew.
    """
    if not lessons.open:
        return state
    of_all = jax.device_get((state.newest, state.train.step, state.frozen))
    newest, step, frozen = jax.tree.map(lambda x: x[first : first + lessons.count], of_all)
    changed = lessons.look(newest, numbers.episodes.stats, step, frozen)
    if not changed:
        return state
    state = trainer.place(with_parameters(state, lessons, first))
    anew = np.zeros(trainer.seeds, bool)
    anew[[first + index for index, wanted in changed.items() if wanted]] = True
    return trainer.begin_anew(state, anew) if anew.any() else state
