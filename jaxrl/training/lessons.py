"""Lessons of one run: the present value of each environment parameter, and when a curriculum advances.

A run (each seed of several) has one `Lessons`. Its loop reports episodes that ended and statistics, calls `advance`
once per environment message, and sends the changes to the environments. Episodes count for one lesson only: when any
lesson is over, all are forgotten. Imports no JAX.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.artifacts import status
from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.status import LESSON
from jaxrl.settings import Curriculum, EnvironmentParameter, Lesson, Sampler
from jaxrl.settings.environment_parameters import (
    MEASURES,
    CompletionCriteria,
    ConstantSampler,
    GaussianSampler,
    MultiRangeUniformSampler,
    UniformSampler,
)
from jaxrl.types import ParameterValue, SamplerSpec

log = logging.getLogger(__name__)

EPISODES = "lessons"
"""Key in training_status.json of the newest episodes of a behavior that lessons are measured by."""
KEPT = 0.25
"""Weight of the previous value in a smoothed measure."""
_SEEDS = 2**31
_UNSEEDED = -1


class Stage(NamedTuple):
    """Lesson, with the value that is sent to environments."""

    name: str
    value: ParameterValue
    criteria: CompletionCriteria | None  # None: it never ends


class LessonChange(NamedTuple):
    """Change of a parameter to another lesson."""

    parameter: str
    number: int  # of the lesson that begins, from 0
    name: str
    value: ParameterValue
    require_reset: bool  # all environments begin anew, open episodes are discarded

    @property
    def line(self) -> str:
        """Log line of the change."""
        return f"Environment parameter {self.parameter}: lesson '{self.name}' begins. {value_text(self.value)}."


class Lessons:
    """Present lesson of every parameter, and the data that decides when the next ones begin.

    Args:
      parameters: `environment_parameters` of the settings. A constant or a sampler is a curriculum of one lesson.
      seed: the run's. A sampler without a seed gets it, plus the number of such values before it in the file;
        constants count, as in ML-Agents, which treats them as samplers.
    """

    def __init__(self, parameters: Mapping[str, EnvironmentParameter] | None, seed: int) -> None:
        self._stages = _stages(parameters or {}, seed)
        self._numbers = dict.fromkeys(self._stages, 0)
        self._smoothed = dict.fromkeys(self._stages, 0.0)
        self._since_look = {name: [0.0, 0] for name in self._stages}  # sum and count of a statistic's values
        self._elos: dict[str, float] = {}  # by behavior
        lengths: dict[str, int] = {}
        for criteria in (stage.criteria for stages in self._stages.values() for stage in stages):
            if criteria is not None:
                lengths[criteria.behavior] = max(criteria.min_lesson_length, lengths.get(criteria.behavior, 1))
        self._returns = {name: deque[float](maxlen=length) for name, length in lengths.items()}
        self._team_returns = {name: deque[float](maxlen=length) for name, length in lengths.items()}

    @property
    def numbers(self) -> dict[str, int]:
        """Number of the present lesson, from 0, of every parameter."""
        return dict(self._numbers)

    @property
    def finished(self) -> bool:
        """True if every parameter is in its last lesson, so that `advance` changes nothing any more."""
        return all(number + 1 == len(self._stages[name]) for name, number in self._numbers.items())

    def values(self) -> dict[str, ParameterValue]:
        """Return the present value of every parameter: a number, or the sampler that environments draw from."""
        return {name: self._present(name).value for name in self._stages}

    def possible(self) -> dict[str, tuple[ParameterValue, ...]]:
        """Return the values of all lessons of every parameter."""
        return {name: tuple(stage.value for stage in stages) for name, stages in self._stages.items()}

    def kept(self, behavior: str) -> int:
        """Return how many of the newest episodes of a behavior count at most; 0 if no lesson is judged by it."""
        return self._returns[behavior].maxlen or 0 if behavior in self._returns else 0

    def lines(self) -> list[str]:
        """Return log lines with the present lesson of every parameter that has several, and every sampler's value."""
        texts = []
        for name, stages in self._stages.items():
            stage = self._present(name)
            if len(stages) > 1:
                place = f"lesson '{stage.name}' ({self._numbers[name] + 1} of {len(stages)})"
                texts.append(f"Environment parameter {name}: {place}. {value_text(stage.value)}.")
            elif isinstance(stage.value, SamplerSpec):
                texts.append(f"Environment parameter {name}: {value_text(stage.value)}.")
        return texts

    def episodes(self, behavior: str, returns: Iterable[float], team_returns: Iterable[float] = ()) -> None:
        """Add episodes of a behavior that have ended, in this order.

        Args:
          returns: individual returns of agents.
          team_returns: group returns of teams.
        """
        if behavior in self._returns:
            self._returns[behavior].extendleft(returns)
            self._team_returns[behavior].extendleft(team_returns)

    def statistic(self, tag: str, value: float, behavior: str | None = None) -> None:
        """Add a value that an environment or a callback has reported under this tag.

        `behavior`: if given, only for lessons that are judged by it.
        """
        for name in self._stages:
            criteria = self._present(name).criteria
            if criteria is not None and behavior in (None, criteria.behavior) and criteria.measure == tag:
                total, count = self._since_look[name]
                self._since_look[name] = [total + float(value), count + 1]

    def rated(self, behavior: str, elo: float) -> None:
        """Set the present ELO rating of a behavior with self_play."""
        self._elos[behavior] = elo

    def awaited(self) -> dict[str, tuple[str, CompletionCriteria]]:
        """Return path in the file and criteria of each parameter whose present lesson a statistic decides."""
        awaited = {}
        for name, number in self._numbers.items():
            criteria = self._present(name).criteria
            if criteria is not None and criteria.measure not in MEASURES and number + 1 < len(self._stages[name]):
                path = f"environment_parameters.{name}.curriculum[{number}].completion_criteria.measure"
                awaited[name] = path, criteria
        return awaited

    def advance(self, progress: Mapping[str, float]) -> list[LessonChange]:
        """Check every parameter once, begin the next lesson where one is over, and return the changes.

        Args:
          progress: trainer step / max_steps, by behavior that has been seen.
        """
        changes = []
        for name, stages in self._stages.items():
            number, criteria = self._numbers[name], self._present(name).criteria
            if criteria is None or number + 1 == len(stages) or criteria.behavior not in progress:
                continue
            if self._over(name, criteria, progress[criteria.behavior]):
                self._numbers[name], stage = number + 1, stages[number + 1]
                changes.append(LessonChange(name, number + 1, stage.name, stage.value, criteria.require_reset))
        if changes:
            self.forget()
        return changes

    def forget(self) -> None:
        """Forget all episodes and reported values; smoothed measures stay."""
        for returns in (*self._returns.values(), *self._team_returns.values()):
            returns.clear()
        self._since_look = {name: [0.0, 0] for name in self._stages}

    def state(self) -> dict[str, Any]:
        """Return all data that `advance` depends on, as plain JSON values."""
        parameters = {
            name: {
                "lesson_num": number,
                "smoothed": _plain(self._smoothed[name]),
                "since_look": [_plain(self._since_look[name][0]), self._since_look[name][1]],
            }
            for name, number in self._numbers.items()
        }
        behaviors: dict[str, dict[str, Any]] = {
            name: {"returns": list(map(_plain, returns)), "team_returns": list(map(_plain, self._team_returns[name]))}
            for name, returns in self._returns.items()
        }
        for name in self._elos.keys() & behaviors.keys():
            behaviors[name]["elo"] = _plain(self._elos[name])
        return {"parameters": parameters, "behaviors": behaviors}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`. A parameter with only a lesson number in it has its other data reset.

        A lesson that the file does not have any more becomes its last one, with a warning.
        """
        for name, saved in state.get("parameters", {}).items():
            if name not in self._stages:
                continue
            number, last = int(saved.get("lesson_num") or 0), len(self._stages[name]) - 1
            if number > last:
                text = "environment_parameters.%s: the run was in lesson %d, and there are %d now: it is in the last."
                log.warning(text, name, number, last + 1)
            self._numbers[name] = min(number, last)
            self._smoothed[name] = float(saved.get("smoothed", 0.0))
            total, count = saved.get("since_look", (0.0, 0))
            self._since_look[name] = [float(total), int(count)]
        for name, saved in state.get("behaviors", {}).items():
            for key, returns in (("returns", self._returns), ("team_returns", self._team_returns)):
                if name in returns:
                    returns[name].clear()
                    returns[name].extend(map(float, saved[key][: returns[name].maxlen]))
            if name in self._returns and "elo" in saved:
                self._elos[name] = float(saved["elo"])

    def _present(self, name: str) -> Stage:
        return self._stages[name][self._numbers[name]]

    def _over(self, name: str, criteria: CompletionCriteria, progress: float) -> bool:
        measured = self._team_returns if criteria.measure == "group_reward" else self._returns
        if len(measured[criteria.behavior]) < criteria.min_lesson_length:
            return False
        if criteria.measure == "progress":
            return progress > criteria.threshold
        mean = self._mean(name, criteria)
        if math.isnan(mean):
            return False
        if criteria.signal_smoothing:
            mean = self._smoothed[name] = KEPT * self._smoothed[name] + (1.0 - KEPT) * mean
        return mean > criteria.threshold

    def _mean(self, name: str, criteria: CompletionCriteria) -> float:
        """Compute the mean of the criteria's measure, NaN without values. Resets the values of a statistic."""
        if criteria.measure == "elo":
            return self._elos.get(criteria.behavior, math.nan)
        if criteria.measure in MEASURES:
            returns = self._team_returns if criteria.measure == "group_reward" else self._returns
            total, count = sum(returns[criteria.behavior]), len(returns[criteria.behavior])
        else:
            total, count = self._since_look[name]
            self._since_look[name] = [0.0, 0]
        return total / count if count else math.nan


def value_text(value: ParameterValue) -> str:
    """Return the text of a value for log lines."""
    if not isinstance(value, SamplerSpec):
        return f"Float: value={value}"
    if value.kind == "multirangeuniform":
        pairs = list(zip(value.values[::2], value.values[1::2], strict=True))
        return f"MultiRangeUniform sampler: intervals={pairs}"
    first, second = value.values
    if value.kind == "uniform":
        return f"Uniform sampler: min={first}, max={second}"
    return f"Gaussian sampler: mean={first}, stddev={second}"


def present_values(
    parameters: Mapping[str, EnvironmentParameter] | None, seed: int, state: Mapping[str, Any] | None = None
) -> dict[str, ParameterValue]:
    """Return the value of every parameter in the lessons of a `Lessons.state`; without one, in the first lessons."""
    lessons = Lessons(parameters, seed)
    lessons.restore(state or {})
    return lessons.values()


def entries_of(lessons: Lessons) -> dict[str, dict[str, Any]]:
    """Return the lessons' entries for training_status.json: `lesson_num` of every parameter, as ML-Agents has it.

    They also hold the data of an exact resume: smoothed measures, and each behavior's newest episodes. ML-Agents leaves
    keys that it does not know unchanged.
    """
    state = lessons.state()
    entries = {name: dict(noted) for name, noted in state["parameters"].items()}
    for name, episodes in state["behaviors"].items():
        entries.setdefault(name, {})[EPISODES] = episodes
    return entries


def read_lessons(path: Path) -> dict[str, Any]:
    """Read the argument of `Lessons.restore`; empty without a status file, or, with a warning, if it is unreadable."""
    if not path.is_file():
        return {}
    try:
        values = status.read(path)
    except ArtifactError as error:
        log.warning("%s Taking the first lesson of every environment parameter.", error)
        return {}
    parameters = {name: entries for name, entries in values.items() if isinstance(entries.get(LESSON), int)}
    behaviors = {name: entries[EPISODES] for name, entries in values.items() if EPISODES in entries}
    return {"parameters": parameters, "behaviors": behaviors}


def _stages(parameters: Mapping[str, EnvironmentParameter], seed: int) -> dict[str, tuple[Stage, ...]]:
    unseeded = 0
    by_parameter = {}
    for name, parameter in parameters.items():
        stages = []
        for lesson in _lessons(parameter):
            value, used = _value(lesson.value, (seed + unseeded) % _SEEDS)
            unseeded += used
            stages.append(Stage(lesson.name, value, lesson.completion_criteria))
        by_parameter[name] = tuple(stages)
    return by_parameter


def _lessons(parameter: EnvironmentParameter) -> tuple[Lesson, ...]:
    if isinstance(parameter, Curriculum):
        return parameter.curriculum
    return (Lesson(name="", value=parameter, completion_criteria=None),)


def _value(value: Sampler | float, seed: int) -> tuple[ParameterValue, bool]:
    """Return the value that is sent to environments, and whether it uses `seed`, having none of its own."""
    if not isinstance(value, Sampler):
        return float(value), True
    sampler = value.sampler_parameters
    unseeded = sampler.seed == _UNSEEDED
    seed = seed if unseeded else sampler.seed
    if isinstance(sampler, ConstantSampler):
        return sampler.value, unseeded
    if isinstance(sampler, UniformSampler):
        return SamplerSpec("uniform", (sampler.min_value, sampler.max_value), seed, unseeded), unseeded
    if isinstance(sampler, GaussianSampler):
        return SamplerSpec("gaussian", (sampler.mean, sampler.st_dev), seed, unseeded), unseeded
    assert isinstance(sampler, MultiRangeUniformSampler)
    bounds = tuple(bound for pair in sampler.intervals for bound in pair)
    return SamplerSpec("multirangeuniform", bounds, seed, unseeded), unseeded


def _plain(value: float) -> float | str:
    """Return a number as strict JSON can hold it, text if not finite; `float` reads both."""
    return value if math.isfinite(value) else str(value)
