"""Settings that may differ between runs of one compiled program: numbers that are computed with, not sizes or kinds.

Each says so where it is declared (`section.VARIABLE`). Their values stand in arrays that are traced, so that changing
one of them compiles nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from jaxrl.settings.behavior import BehaviorSettings
from jaxrl.settings.section import VARIABLE, Section, reworded, setting_at


def variable(settings: BehaviorSettings) -> dict[str, float]:
    """Return the value of every such setting of a behavior, by dotted key (`hyperparameters.learning_rate`)."""
    values = dict(_of_section(settings.hyperparameters, "hyperparameters"))
    for name, signal in settings.reward_signals.items():
        values |= _of_section(signal, f"reward_signals.{name}")
    return values


def with_values(settings: BehaviorSettings, values: Mapping[str, Any]) -> BehaviorSettings:
    """Return the settings with other values, numbers or traced ones, at keys of `variable`. They are not checked."""
    for key, value in values.items():
        settings = _replaced(settings, key.split("."), value)
    return settings


def problem_with(settings: BehaviorSettings, key: str, value: float) -> str | None:
    """Return the problem of a number at a dotted key of `variable`: "got VALUE, expected ..."; None if it is right."""
    above, _, name = key.rpartition(".")
    field = type(setting_at(settings, above)).model_fields[name]
    try:
        kind: Any = Annotated[field.annotation, *field.metadata]  # pyright: ignore[reportInvalidTypeForm]
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        (problem,) = reworded(error)
        return f"got {value!r}, {problem['type'].message()}"  # pyright: ignore[reportAttributeAccessIssue]
    return None


def by_seed(numbers: Sequence[Mapping[str, float]], seeds: int) -> dict[str, tuple[float, ...]]:
    """Return the numbers that differ between runs, by name: one for each of the `seeds` of each run."""
    numbers_by_name = {name: tuple(values[name] for values in numbers for _ in range(seeds)) for name in numbers[0]}
    return {name: values for name, values in numbers_by_name.items() if len(set(values)) > 1}


def _of_section(section: Section, prefix: str) -> Iterator[tuple[str, float]]:
    for name, field in type(section).model_fields.items():
        if field.json_schema_extra == VARIABLE:
            yield f"{prefix}.{name}", getattr(section, name)


def _replaced(section: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    name, *rest = path
    if isinstance(section, Mapping):
        return {**section, name: _replaced(section[name], rest, value)}
    return section.model_copy(update={name: _replaced(getattr(section, name), rest, value)})
