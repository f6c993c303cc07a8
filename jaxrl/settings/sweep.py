"""Points of a sweep: settings written as KEY=VALUE, as overrides of a configuration, and every combination of them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product
from typing import Any, NamedTuple

import yaml

from jaxrl.settings.inheritance import EVERY, merge
from jaxrl.settings.reading import load_yaml
from jaxrl.settings.run import RunSettings
from jaxrl.settings.section import SettingsError

_OF_SWEEP = (
    "checkpoint_settings", "torch_settings", "debug", "callbacks", "env_settings.env_path", "env_settings.env_args",
    "env_settings.seed", "env_settings.seeds", "env_settings.base_port", "env_settings.listen",
    "behaviors", "default_settings",
)  # fmt: skip
"""Keys that have one value for all points."""
_EXAMPLE = "such as hyperparameters.learning_rate=1e-3,3e-4"
_SPACE = "such as hyperparameters.learning_rate=1e-4:1e-2 or hyperparameters.batch_size=32,64"
_ODD = re.compile(r"[^A-Za-z0-9.+_-]+")
_NUMBER = re.compile(r"[-+]?\d+e[-+]?\d+", re.IGNORECASE)
"""3e-4, which YAML 1.1 reads as text because it has no point."""


class Point(NamedTuple):
    """Combination of values."""

    name: str  # of its folder: learning_rate=1e-3_beta=0.01, the varied values as they were written
    values: Mapping[str, Any]  # by dotted key


def parsed(text: str, flag: str = "--set") -> tuple[str, list[Any]]:
    """Split KEY=VALUE[,VALUE...] into key and values, which are read as YAML. Raises SettingsError."""
    key, equals, written = text.partition("=")
    if not (equals and key and written):
        form = "KEY=LOW:HIGH or KEY=VALUE,VALUE" if flag == "--search" else "KEY=VALUE[,VALUE...]"
        raise SettingsError(f"{flag} {text}: expected {form}, {_SPACE if flag == '--search' else _EXAMPLE}")
    try:
        values = load_yaml(f"[{written}]")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{flag} {text}: the values cannot be read as YAML ({error})") from None
    if not values:
        raise SettingsError(f"{flag} {text}: no value is given, {_EXAMPLE}")
    return key, values


class Space(NamedTuple):
    """Values to search: one of some choices, or a number from `low` to `high`."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False  # uniform in its logarithm
    whole: bool = False
    choices: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        """Return whether this is a value of the space."""
        if self.choices:
            return value in self.choices
        if not isinstance(value, (int, float)) or (self.whole and not float(value).is_integer()):
            return False
        return self.low <= value <= self.high or math.isclose(value, self.low) or math.isclose(value, self.high)

    def suggested(self, trial: Any, key: str) -> Any:
        """Return the value that a trial of Optuna proposes."""
        if self.choices:
            return trial.suggest_categorical(key, self.choices)
        if self.whole:
            return trial.suggest_int(key, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(key, self.low, self.high, log=self.log)


def space(text: str) -> tuple[str, Space]:
    """Split KEY=LOW:HIGH[:log][:int] or KEY=VALUE,VALUE... into key and space. Raises SettingsError."""
    key, _, written = text.partition("=")
    if ":" not in written:
        key, values = parsed(text, "--search")
        check_key(key, "--search")
        return key, Space(choices=tuple(map(_number, values)))
    check_key(key, "--search")
    first, second, *kinds = written.split(":")
    try:
        low, high = float(first), float(second)
    except ValueError:
        low, high = 1.0, 0.0
    log, whole = "log" in kinds, "int" in kinds
    right = math.isfinite(low) and low < high < math.inf and not (log and low <= 0)
    if not right or set(kinds) - {"log", "int"} or (whole and not (low.is_integer() and high.is_integer())):
        raise SettingsError(
            f"--search {text}: expected KEY=LOW:HIGH with LOW below HIGH, then :log (LOW above 0) and :int (both "
            "whole) if wanted, such as hyperparameters.learning_rate=1e-5:1e-2:log; or KEY=VALUE,VALUE..."
        )
    return key, Space(low, high, log, whole)


def overrides_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Shape values at dotted keys like a configuration file; keys of a behavior are set for every behavior."""
    overrides: dict[str, Any] = {}
    for key, value in values.items():
        path = key.split(".")
        if path[0] not in RunSettings.model_fields:
            path = ["behaviors", EVERY, *path]
        for part in reversed(path):
            value = {part: value}
        overrides = merge(overrides, value)
    return overrides


def grid(written: Sequence[str]) -> list[Point]:
    """Make every combination of the values of KEY=VALUE,VALUE... texts, the last key's changing fastest.

    Raises SettingsError for any other text, a key or value given twice, or a key with one value for all points.
    """
    axes: dict[str, list[Any]] = {}
    for text in written:
        key, values = parsed(text)
        check_key(key)
        if key in axes:
            raise SettingsError(f"--set {key}: is given twice; write all its values behind one --set, {_EXAMPLE}")
        twice = [text for text, count in Counter(str(_number(value)) for value in values).items() if count > 1]
        if twice:
            raise SettingsError(f"--set {text}: {twice[0]} is given twice")
        axes[key] = values
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    varied = [key for key, values in axes.items() if len(values) > 1] or list(axes)
    names = names_of({key: values[key] for key in varied} for values in points)
    return [
        Point(name, {key: _number(value) for key, value in values.items()})
        for name, values in zip(names, points, strict=True)
    ]


def check_key(key: str, flag: str = "--set") -> None:
    """Raise SettingsError for a key in which the points of a sweep cannot differ."""
    section, _, rest = key.partition(".")
    if section == "behaviors" and "." in rest:
        raise SettingsError(
            f"{flag} {key}: a key of a behavior is written without behaviors.NAME and holds for every behavior: "
            f"{rest.partition('.')[2]}"
        )
    for fixed in _OF_SWEEP:
        if key == fixed or key.startswith(f"{fixed}."):
            raise SettingsError(
                f"{flag} {key}: is one for all points of a sweep; expected a key of a behavior, {_EXAMPLE}, or of "
                "environment_parameters, engine_settings or env_settings"
            )


def names_of(points: Iterable[Mapping[str, Any]]) -> list[str]:
    """Name the folder of each point, with the last part of each key, or the whole key where two end alike."""
    points = list(points)
    ends = Counter(key.rpartition(".")[2] for key in dict.fromkeys(chain(*points)))
    texts = [
        "_".join(f"{_short(key, ends)}={_ODD.sub('-', str(value))}" for key, value in values.items())
        for values in points
    ]
    seen = Counter(texts)
    return [text if seen[text] == 1 else f"{text}_{i}" for i, text in enumerate(texts)]


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _short(key: str, ends: Counter[str]) -> str:
    end = key.rpartition(".")[2]
    return end if ends[end] == 1 else key
