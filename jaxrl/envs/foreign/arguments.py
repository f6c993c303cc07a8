"""`env_args` of environments that are made by a Python function: `key=value`, as keyword arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from jaxrl.settings.reading import load_yaml
from jaxrl.types import JaxrlError


class ArgumentsError(JaxrlError):
    """`env_args` cannot be read, or name something that is not there."""


def keyword_arguments(env_args: Sequence[str] | None) -> dict[str, Any]:
    """`("gravity=-9.8", "wind=true")` as `{"gravity": -9.8, "wind": True}`: values are read as YAML.

    Raises:
        ArgumentsError: one is no `key=value`, its value no YAML, or a key is there twice.
    """
    arguments: dict[str, Any] = {}
    for text in env_args or ():
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise ArgumentsError(f"env_settings.env_args: got {text!r}, expected key=value, such as max_cycles=25")
        if key in arguments:
            raise ArgumentsError(f"env_settings.env_args: {key} is there twice; leave one of them")
        try:
            arguments[key] = load_yaml(value)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ArgumentsError(f"env_settings.env_args: the value of {text!r} is no YAML: {error}") from None
    return arguments


def take_switch(arguments: dict[str, Any], key: str, default: bool) -> bool:
    """Take a truth value that is meant for jaxrl, not for the environment, out of `arguments`.

    Raises:
        ArgumentsError: it is no truth value.
    """
    value = arguments.pop(key, default)
    if not isinstance(value, bool):
        raise ArgumentsError(f"env_settings.env_args: {key}: got {value!r}, expected true or false")
    return value
