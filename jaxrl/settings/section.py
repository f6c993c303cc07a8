"""`Section`: a frozen, strict mapping of settings that names every mistake by its path, with the nearest known key."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from jaxrl.types import JaxrlError

Location = tuple[str | int, ...]

VARIABLE: dict[str, Any] = {"variable": True}
"""`json_schema_extra` of a field whose value may differ between runs of one compiled program, see `traced.py`."""

_OURS = frozenset({"expected", "unknown", "conflict", "required"})
_LONGEST_VALUE = 80


class SettingsError(JaxrlError):
    """Settings that cannot be used. `problems` holds one text per mistake, each beginning with the path of its key."""

    def __init__(self, problems: str | Sequence[str], source: str = "") -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        if not source:
            text = "\n".join(self.problems)
        elif len(self.problems) == 1:
            text = f"{source}: {self.problems[0]}"
        else:
            text = "\n  ".join((f"{source} has {len(self.problems)} problems:", *self.problems))
        super().__init__(text)


def expected(text: str) -> PydanticCustomError:
    """Make a problem that reads "PATH: got VALUE, expected TEXT"."""
    return PydanticCustomError("expected", f"expected {text}")  # pyright: ignore[reportArgumentType]


def conflict(text: str) -> PydanticCustomError:
    """Make a problem that reads "PATH: TEXT"."""
    return PydanticCustomError("conflict", text)  # pyright: ignore[reportArgumentType]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that resembles `word` most, or None when none does."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def unknown_key(
    key: object, known: Iterable[str], hints: Mapping[str, str] | None = None, *, advice: str = "", whose: str = ""
) -> PydanticCustomError:
    """Make a problem that reads "PATH: unknown key, did you mean KEY?", or lists the known keys if none is near.

    `advice`: other keys that may stand there. `whose`: the owner of the key, where it is known.
    """
    known, hint = list(known), (hints or {}).get(str(key))
    if whose and not hint:
        return PydanticCustomError("unknown", f"unknown key, it belongs to {whose}")  # pyright: ignore[reportArgumentType]
    match = hint or nearest(str(key), known)
    text = f"did you mean {match}?" if match else f"known keys: {', '.join(known)}"
    rest = f"{' ' if match else '; '}{advice}" if advice else ""
    return PydanticCustomError("unknown", f"unknown key, {text}{rest}")  # pyright: ignore[reportArgumentType]


def problem(error: PydanticCustomError, location: Location, value: object) -> InitErrorDetails:
    """Make one problem for `reject`."""
    return InitErrorDetails(type=error, loc=location, input=value)


def reject(title: str, problems: list[InitErrorDetails]) -> None:
    """Raise all problems as one ValidationError, whose locations pydantic joins with those of the caller."""
    if problems:
        raise ValidationError.from_exception_data(title, problems)


def reworded(error: ValidationError, prefix: Location = ()) -> list[InitErrorDetails]:
    """Return the problems of a ValidationError in jaxrl's words, their locations behind `prefix`."""
    return [
        problem(_reword(detail), prefix + tuple(detail["loc"]), detail["input"])
        for detail in error.errors(include_url=False)
        if not _follows(detail)
    ]


def _follows(detail: Any) -> bool:
    """Return whether a problem only follows from another one: pydantic counts the items of a list that are right."""
    miscounted = detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]
    return miscounted or detail["type"] == "default_factory_not_called"


def _reword(detail: Any) -> PydanticCustomError:
    kind, text = detail["type"], detail["msg"]
    if kind in _OURS:
        return PydanticCustomError(kind, text)
    if kind == "missing":
        return PydanticCustomError("required", "this key is required")
    if kind == "literal_error":
        return expected(f"one of {detail['ctx']['expected']}")
    if kind in ("dict_type", "mapping_type"):
        return expected("a mapping of names to settings")
    if kind in ("tuple_type", "list_type"):
        return expected("a list")
    if kind == "too_short" and detail["ctx"]["field_type"] in ("Tuple", "List"):
        return expected(f"a list of at least {detail['ctx']['min_length']}")
    if kind == "string_too_short":
        return expected("text that is not empty")
    text = text.removeprefix("Input should be ")
    return expected(f"a value {text}" if text.startswith(("greater", "less")) else text)


def problems_of(error: ValidationError) -> list[tuple[Location, str]]:
    """Return location and full text, path first, of every problem of a ValidationError."""
    lines = []
    for detail in error.errors(include_url=False):
        value = repr(detail["input"])
        value = value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 3] + "..."
        got = f"got {value}, " if detail["type"] == "expected" else ""
        lines.append((tuple(detail["loc"]), f"{dotted(detail['loc'])}: {got}{detail['msg']}"))
    return lines


def dotted(location: Iterable[str | int]) -> str:
    """Write a location as the user would: `curriculum[0].value`."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return path.removeprefix(".")


def setting_at(settings: Any, key: str) -> Any:
    """Return the setting at a dotted key of a section; None where there is no such key."""
    for name in key.split("."):
        settings = settings.get(name) if isinstance(settings, Mapping) else getattr(settings, name, None)
    return settings


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings into one with dotted keys; an empty mapping counts as a value."""
    if not isinstance(value, Mapping) or not value:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, below in value.items():
        flat |= flatten(below, f"{prefix}.{key}" if prefix else str(key))
    return flat


def unwritten(default: Any, description: str) -> Any:
    """Make a field that is not written where it has its default, so that files of earlier runs stay the same."""
    return Field(default=default, exclude_if=lambda value: value == default, description=description)


class Section(BaseModel):
    """Base of all settings: immutable, no unknown keys, every problem of a section reported at once.

    `conflicts` between several keys are looked for once each key of the section is right by itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hints: ClassVar[Mapping[str, str]] = {}
    """Key to write instead, by a key that stands in the wrong place or had another name once."""

    @classmethod
    def whose(cls, key: object, context: Mapping[str, Any]) -> str:
        """Return the owner of a key that is unknown here; empty if there is none."""
        return ""

    @classmethod
    def amend(cls, written: dict[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
        """Fill in defaults that depend on other written keys."""
        return written

    @classmethod
    def omissions(cls, written: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Yield location and text of each broken rule about which keys must be written."""
        yield from ()

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield location and text of each broken rule between keys."""
        yield from ()

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, value: Any, handler: Callable[[Any], Self], info: ValidationInfo) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            default = "null or no such key for none" if value is False else "{} for the defaults"
            raise expected(f"a mapping of settings ({default})")
        known, context = cls.model_fields, info.context or {}
        problems = [
            problem(unknown_key(key, known, cls.hints, whose=cls.whose(key, context)), (key,), value[key])
            for key in value
            if key not in known
        ]
        problems += [problem(conflict(text), location, None) for location, text in cls.omissions(value)]
        written = cls.amend({key: value[key] for key in value if key in known}, context)
        try:
            section = handler(written)
        except ValidationError as error:
            reject(cls.__name__, problems + reworded(error))
            raise
        problems += [problem(conflict(text), location, None) for location, text in section.conflicts()]
        reject(cls.__name__, problems)
        return section


def _integer(value: object) -> object:
    number = finite_number(value)
    if number is None or number != int(number):
        raise expected("an integer")
    return int(number)


def _number(value: object) -> object:
    number = finite_number(value)
    if number is None:
        raise expected("a number")
    return float(number)


def finite_number(value: object) -> int | float | None:
    """Return a value of a file as a number, also one that YAML reads as text; None if it is no finite number."""
    if isinstance(value, str):
        value = _parse(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return None
    return value


def _parse(text: str) -> int | float | None:
    """Parse a number written as text, such as "3e-4", which YAML 1.1 reads as text for want of a point; else None."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _boolean(value: object) -> object:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value not in (0, 1):
        raise expected("true or false")
    return bool(value)


def _text(value: object) -> object:
    if isinstance(value, int | float | date) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise expected("text")
    return value


Integer = Annotated[int, BeforeValidator(_integer)]
"""A whole number; 5.0e5 and "10" are taken, 5.5 and true are not."""
Count = Annotated[Integer, Field(ge=1)]
Number = Annotated[float, BeforeValidator(_number)]
"""A finite float; "3e-4" is taken."""
Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Boolean = Annotated[bool, BeforeValidator(_boolean)]
Text = Annotated[str, BeforeValidator(_text)]
"""Text; numbers and dates, which YAML tells apart from text, are taken too."""
