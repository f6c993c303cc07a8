"""Reads `env_args` of environments that a Python function makes: `key=value`, as keyword arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import yaml

from jaxrl.near_names import unknown
from jaxrl.settings.reading import load_yaml
from jaxrl.types import JaxrlError


class ArgumentsError(JaxrlError):
    """`env_args` cannot be read, or name something unknown."""


def keyword_arguments(env_args: Sequence[str] | None) -> dict[str, Any]:
    """Return `("gravity=-9.8", "wind=true")` as `{"gravity": -9.8, "wind": True}`: values are read as YAML.

    Raises:
        ArgumentsError: one is no `key=value`, its value is no YAML or has aliases, or a key is there twice.
    """
    arguments: dict[str, Any] = {}
    for text in env_args or ():
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise ArgumentsError(f"env_settings.env_args: got {text!r}, expected key=value, such as max_cycles=25")
        if key in arguments:
            raise ArgumentsError(f"env_settings.env_args: {key} is there twice; leave one of them")
        try:
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(value)):
                raise ArgumentsError(f"env_settings.env_args: {text!r}: an alias (*name) is not read; write the value")
            arguments[key] = load_yaml(value)
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: such as the date 2024-13-01
            why = getattr(error, "problem", None) or error  # that of YAML's, without its picture of the place
            raise ArgumentsError(f"env_settings.env_args: the value of {text!r} is no YAML: {why}") from None
    return arguments


def usual_arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a function's parameters by name with their defaults; ... for those without a default."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind in by_name]
    return {p.name: ... if p.default is p.empty else p.default for p in parameters}


def fitted(where: str, arguments: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the types of the usual values that they replace.

    A whole number may stand for a real one, the name of a choice for the choice (an Enum), a list for an array or a
    tuple; keys that a mapping does not name stay unchanged. None and ... may be replaced by anything.

    Args:
        where: the address of the environment, for texts.
        usual: all known names, with their default values.

    Raises:
        ArgumentsError: a name is unknown (the text lists the known ones), or a value has another type.
    """
    typed = {}
    for key, value in arguments.items():
        if key not in usual:
            what, there_are = f"takes no argument {key}", "it takes"
            raise ArgumentsError(unknown(where, key, usual, what=what, there_are=there_are))
        try:
            typed[key] = _fit(value, usual[key])
        except ValueError as error:
            raise ArgumentsError(f"{where}: argument {key}: got {value!r}, expected {error}") from None
    return typed


def _fit(value: Any, usual: Any) -> Any:
    """Return `value` in the type of `usual`. Raises ValueError, whose text says what was expected."""
    if usual is None or usual is ...:
        return value
    if isinstance(usual, Enum):
        choices = {member.name.lower(): member for member in type(usual)}
        if not isinstance(value, str) or value.lower() not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return choices[value.lower()]
    if isinstance(usual, bool):
        return _of(value, (bool,), "true or false")
    if isinstance(usual, int):
        return _of(value, (int,), f"a whole number, such as {usual}")
    if isinstance(usual, float):
        return float(_of(_number(value), (int, float), f"a number, such as {usual:g}"))
    if isinstance(usual, str):
        return _of(value, (str,), f"text, such as {usual}")
    if isinstance(usual, Mapping):
        mapping = _of(value, (Mapping,), f"a mapping, such as {{{next(iter(usual), 'key')}: ...}}")
        like: Any = type(usual)
        return like({**usual, **fitted("there", mapping, usual)})
    listed = _of(value, (list, tuple), "a list, such as [1, 2]")
    return tuple(listed) if isinstance(usual, tuple) else _array(listed, usual)


def _of(value: Any, types: tuple[type, ...], expected: str) -> Any:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise ValueError(expected)
    return value


def _number(value: Any) -> Any:
    """Convert texts such as 1e-3, which YAML does not read as numbers."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    return value


def _array(listed: Any, usual: Any) -> Any:
    if not hasattr(usual, "dtype"):
        return listed
    array = np.asarray(listed)
    if array.ndim != usual.ndim or array.dtype.kind not in "biuf":
        raise ValueError(f"numbers in {usual.ndim} list(s), one in the other, as in {np.asarray(usual).tolist()}")
    return array.astype(usual.dtype)


def take_switch(arguments: dict[str, Any], key: str, default: bool) -> bool:
    """Take a truth value that is meant for jaxrl, not for the environment, out of `arguments`.

    Raises:
        ArgumentsError: it is no truth value.
    """
    value = arguments.pop(key, default)
    if not isinstance(value, bool):
        raise ArgumentsError(f"env_settings.env_args: {key}: got {value!r}, expected true or false")
    return value
