"""Curriculum and sampler files of before ML-Agents 0.18 as `environment_parameters`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.settings.environment_parameters import SAMPLERS
from jaxrl.settings.section import SettingsError

INTERVALS = ("resampling-interval", "episode-length")
"""Names, the later one in front, of how long a sampler's value lasted."""
_CURRICULUM = frozenset(("measure", "thresholds", "parameters"))
_TYPES = ("sampler-type", "sampler_type")


def is_curriculum(section: Any) -> bool:
    """Whether it is the curriculum of one behavior."""
    return isinstance(section, Mapping) and set(section) >= _CURRICULUM


def is_sampler(section: Any) -> bool:
    """Whether it is the sampler of one parameter."""
    return isinstance(section, Mapping) and any(key in section for key in _TYPES)


def curricula(by_behavior: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Lessons by parameter. Raises SettingsError where values and thresholds do not fit together."""
    found: dict[str, Any] = {}
    for behavior, section in by_behavior.items():
        if not is_curriculum(section) or not isinstance(section["parameters"], Mapping):
            expected = "expected a curriculum: measure, thresholds, min_lesson_length, signal_smoothing, parameters"
            raise SettingsError(f"{behavior}: got {section!r}, {expected}")
        for name, values in section["parameters"].items():
            if name in found:
                notes.append(f"{behavior}.parameters.{name}: dropped, another behavior's curriculum has it already")
                continue
            found[name] = {"curriculum": _lessons(behavior, name, section, values)}
    return found


def _lessons(behavior: str, name: str, section: Mapping[str, Any], values: Any) -> list[dict[str, Any]]:
    thresholds = section["thresholds"]
    if not isinstance(values, list) or not isinstance(thresholds, list) or len(values) != len(thresholds) + 1:
        raise SettingsError(
            f"{behavior}.parameters.{name}: got {values!r}, expected a list of numbers, one more than thresholds, "
            f"which is {thresholds!r}"
        )
    lessons: list[dict[str, Any]] = [{"name": f"Lesson{i}", "value": value} for i, value in enumerate(values)]
    shared = {key: section[key] for key in ("min_lesson_length", "signal_smoothing") if key in section}
    for lesson, threshold in zip(lessons, thresholds, strict=False):
        criteria = {"behavior": behavior, "measure": section["measure"], **shared, "threshold": threshold}
        lesson["completion_criteria"] = criteria
    return lessons


def named_lessons(parameter: Any) -> Any:
    """A curriculum whose lessons were written as `Lesson0: {...}` for one release, with today's `name: Lesson0`."""
    if not isinstance(parameter, Mapping) or not isinstance(parameter.get("curriculum"), list):
        return parameter
    return {"curriculum": [_named(lesson) for lesson in parameter["curriculum"]]}


def _named(lesson: Any) -> Any:
    if isinstance(lesson, Mapping) and len(lesson) == 1:
        ((name, content),) = lesson.items()
        if isinstance(content, Mapping) and "value" in content:
            return {"name": name, **content}
    return lesson


def samplers(by_parameter: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Samplers by parameter. Raises SettingsError for a distribution that there is not."""
    found: dict[str, Any] = {}
    for name, section in by_parameter.items():
        if name in INTERVALS:
            notes.append(f"{name}: dropped, the environment draws anew at the beginning of each episode")
            continue
        if not is_sampler(section):
            raise SettingsError(f"{name}: got {section!r}, expected a sampler: sampler-type and its parameters")
        if "sampler_parameters" in section:
            found[name] = dict(section)
            continue
        parameters = {key: value for key, value in section.items() if key not in _TYPES}
        kind = str(next(section[key] for key in _TYPES if key in section)).replace("_", "").lower()
        if kind not in SAMPLERS:
            raise SettingsError(f"{name}.sampler-type: got {kind!r}, expected one of {', '.join(SAMPLERS)}")
        found[name] = {"sampler_type": kind, "sampler_parameters": parameters}
    return found
