"""The lessons of one run: which value each environment parameter has now, and when a curriculum goes on.

A run (each seed of several) has one `Lessons`. Its loop tells of episodes that ended and of statistics, and asks
`advance` once per environment result; what has changed then goes to the environments. Episodes count for one lesson
alone: when any lesson is over, all of them are forgotten. No JAX here.
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
"""Entry in training_status.json of a behavior that lessons are measured by: its newest episodes."""
KEPT = 0.25
"""Share of the value before in a smoothed measure."""
_SEEDS = 2**31
_UNSEEDED = -1


class Stage(NamedTuple):
    """One lesson, with the value that environments are sent."""

    name: str
    value: ParameterValue
    criteria: CompletionCriteria | None  # None: it never ends


class LessonChange(NamedTuple):
    """A parameter has gone on to another lesson."""

    parameter: str
    number: int  # of the lesson that begins, from 0
    name: str
    value: ParameterValue
    require_reset: bool  # all environments begin anew, open episodes are discarded

    @property
    def line(self) -> str:
        """For the log."""
        return f"Environment parameter {self.parameter}: lesson '{self.name}' begins. {value_text(self.value)}."


class Lessons:
    """Present lesson of every parameter, and what the next ones wait for.

    Args:
      parameters: `environment_parameters` of the settings. A constant or a sampler is a curriculum of one lesson.
      seed: of the run. A sampler without a seed gets it, plus the number of such values before it in the file;
        constants count, as in ML-Agents, which takes them for samplers.
    """

    def __init__(self, parameters: Mapping[str, EnvironmentParameter] | None, seed: int) -> None:
        self._stages = _stages(parameters or {}, seed)
        self._numbers = dict.fromkeys(self._stages, 0)
        self._smoothed = dict.fromkeys(self._stages, 0.0)
        self._since_look = {name: [0.0, 0] for name in self._stages}  # of a statistic: sum and count
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
        """Whether every parameter is in its last lesson, so that `advance` changes nothing any more."""
        return all(number + 1 == len(self._stages[name]) for name, number in self._numbers.items())

    def values(self) -> dict[str, ParameterValue]:
        """What environments are told about every parameter now: a number, or the sampler that they draw from."""
        return {name: self._present(name).value for name in self._stages}

    def possible(self) -> dict[str, tuple[ParameterValue, ...]]:
        """The values of all lessons of every parameter."""
        return {name: tuple(stage.value for stage in stages) for name, stages in self._stages.items()}

    def kept(self, behavior: str) -> int:
        """How many of the newest episodes of a behavior count at most; 0 where no lesson is judged by it."""
        return self._returns[behavior].maxlen or 0 if behavior in self._returns else 0

    def lines(self) -> list[str]:
        """For the log: the present lesson of every parameter that has several, the value of every sampler."""
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
        """Episodes of a behavior have ended, in this order.

        Args:
          returns: of agents, their individual rewards.
          team_returns: of teams, what they earned together.
        """
        if behavior in self._returns:
            self._returns[behavior].extendleft(returns)
            self._team_returns[behavior].extendleft(team_returns)

    def statistic(self, tag: str, value: float, behavior: str | None = None) -> None:
        """An environment or a callback has reported a value under this tag.

        `behavior`: it concerns only lessons that are judged by this one.
        """
        for name in self._stages:
            criteria = self._present(name).criteria
            if criteria is not None and behavior in (None, criteria.behavior) and criteria.measure == tag:
                total, count = self._since_look[name]
                self._since_look[name] = [total + float(value), count + 1]

    def rated(self, behavior: str, elo: float) -> None:
        """What a behavior with self_play is rated now."""
        self._elos[behavior] = elo

    def awaited(self) -> dict[str, tuple[str, CompletionCriteria]]:
        """Of the parameters that a statistic decides about now: where in the file it is named, and the criteria."""
        found = {}
        for name, number in self._numbers.items():
            criteria = self._present(name).criteria
            if criteria is not None and criteria.measure not in MEASURES and number + 1 < len(self._stages[name]):
                path = f"environment_parameters.{name}.curriculum[{number}].completion_criteria.measure"
                found[name] = path, criteria
        return found

    def advance(self, progress: Mapping[str, float]) -> list[LessonChange]:
        """Look at every parameter once; those whose lesson is over are in the next one.

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
        """No episode has ended and nothing was reported yet; smoothed measures stay."""
        for kept in (*self._returns.values(), *self._team_returns.values()):
            kept.clear()
        self._since_look = {name: [0.0, 0] for name in self._stages}

    def state(self) -> dict[str, Any]:
        """All that `advance` depends on, as plain JSON values."""
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
        """Go on from a `state`. Of a parameter whose lesson number alone is there, the rest begins anew.

        A lesson that the file does not have any more becomes its last one, with a warning.
        """
        for name, found in state.get("parameters", {}).items():
            if name not in self._stages:
                continue
            number, last = int(found.get("lesson_num") or 0), len(self._stages[name]) - 1
            if number > last:
                text = "environment_parameters.%s: the run was in lesson %d, and there are %d now: it is in the last."
                log.warning(text, name, number, last + 1)
            self._numbers[name] = min(number, last)
            self._smoothed[name] = float(found.get("smoothed", 0.0))
            total, count = found.get("since_look", (0.0, 0))
            self._since_look[name] = [float(total), int(count)]
        for name, found in state.get("behaviors", {}).items():
            for key, kept in (("returns", self._returns), ("team_returns", self._team_returns)):
                if name in kept:
                    kept[name].clear()
                    kept[name].extend(map(float, found[key][: kept[name].maxlen]))
            if name in self._returns and "elo" in found:
                self._elos[name] = float(found["elo"])

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
        """Of what the criteria measure; NaN without any. The statistic's values are used up."""
        if criteria.measure == "elo":
            return self._elos.get(criteria.behavior, math.nan)
        if criteria.measure in MEASURES:
            kept = self._team_returns if criteria.measure == "group_reward" else self._returns
            total, count = sum(kept[criteria.behavior]), len(kept[criteria.behavior])
        else:
            total, count = self._since_look[name]
            self._since_look[name] = [0.0, 0]
        return total / count if count else math.nan


def value_text(value: ParameterValue) -> str:
    """A value as log lines show it."""
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
    """Value of every parameter in the lessons of a `Lessons.state`; without one in the first."""
    lessons = Lessons(parameters, seed)
    lessons.restore(state or {})
    return lessons.values()


def entries_of(lessons: Lessons) -> dict[str, dict[str, Any]]:
    """What training_status.json is to hold of them: `lesson_num` of every parameter, as ML-Agents has it.

    Beside it stands what an exact continuation needs: what is smoothed, and below each behavior its newest episodes.
    ML-Agents leaves keys that it does not know as they are.
    """
    state = lessons.state()
    entries = {name: dict(noted) for name, noted in state["parameters"].items()}
    for name, episodes in state["behaviors"].items():
        entries.setdefault(name, {})[EPISODES] = episodes
    return entries


def read_lessons(path: Path) -> dict[str, Any]:
    """What `Lessons.restore` takes; nothing where there is no status, or, with a warning, none that can be read."""
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
    found = {}
    for name, parameter in parameters.items():
        stages = []
        for lesson in _lessons(parameter):
            value, used = _value(lesson.value, (seed + unseeded) % _SEEDS)
            unseeded += used
            stages.append(Stage(lesson.name, value, lesson.completion_criteria))
        found[name] = tuple(stages)
    return found


def _lessons(parameter: EnvironmentParameter) -> tuple[Lesson, ...]:
    if isinstance(parameter, Curriculum):
        return parameter.curriculum
    return (Lesson(name="", value=parameter, completion_criteria=None),)


def _value(value: Sampler | float, seed: int) -> tuple[ParameterValue, bool]:
    """What an environment is sent, and whether `seed` stands for one that was not given."""
    if not isinstance(value, Sampler):
        return float(value), True
    given = value.sampler_parameters
    unseeded = given.seed == _UNSEEDED
    seed = seed if unseeded else given.seed
    if isinstance(given, ConstantSampler):
        return given.value, unseeded
    if isinstance(given, UniformSampler):
        return SamplerSpec("uniform", (given.min_value, given.max_value), seed, unseeded), unseeded
    if isinstance(given, GaussianSampler):
        return SamplerSpec("gaussian", (given.mean, given.st_dev), seed, unseeded), unseeded
    assert isinstance(given, MultiRangeUniformSampler)
    bounds = tuple(bound for pair in given.intervals for bound in pair)
    return SamplerSpec("multirangeuniform", bounds, seed, unseeded), unseeded


def _plain(value: float) -> float | str:
    """A number that strict JSON can hold; `float` reads both."""
    return value if math.isfinite(value) else str(value)
