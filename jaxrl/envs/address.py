"""Parses `--env` (env_settings.env_path), and lists the kinds of environments. No JAX here.

The module that makes an environment of a kind stands in `jaxrl.envs` (stepped by the host loop) or `jaxrl.jax_envs`
(compiled together with the learner).
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from jaxrl.near_names import unknown as unknown
from jaxrl.types import JaxrlError

_FUNCTION = re.compile(r"(.+\.py|[A-Za-z_]\w*(?:\.\w+)+):([A-Za-z_]\w*)", re.DOTALL)
_PREFIX = re.compile(r"([A-Za-z][\w-]+):(.*)", re.DOTALL)  # two signs at least: C:\game.exe is a path


class UnknownEnvironmentError(JaxrlError):
    """No environment, or no kind of environment, has that name."""


class Kind(StrEnum):
    """Source of an environment; the value is the prefix before the colon, except for UNITY, which has none."""

    UNITY = "unity"  # the path of a build, or nothing: the Editor
    PLAYER = "player"  # one of jaxrl's own, served by a process as a Unity build would be
    GYMNASIUM = "gymnasium"
    PETTINGZOO = "pettingzoo"
    RLLIB = "rllib"
    JAX = "jax"  # one of jaxrl's own, compiled
    JAXMARL = "jaxmarl"
    GYMNAX = "gymnax"
    FUNCTION = "function"  # FILE.py:FUNCTION or package.module:FUNCTION, which makes a JaxEnv; compiled

    @property
    def compiled(self) -> bool:
        """True if it runs inside the learner's own program."""
        return self in (Kind.JAX, Kind.JAXMARL, Kind.GYMNAX, Kind.FUNCTION)


PREFIXED = tuple(kind for kind in Kind if kind not in (Kind.UNITY, Kind.FUNCTION))


class Address(NamedTuple):
    """An environment by kind and name."""

    kind: Kind
    name: str | None  # within its kind, or the path of a Unity build; None: the Unity Editor


def parse_address(env_path: str | None) -> Address:
    """Parse `KIND:NAME`, the function of a file or module, the path of a Unity build, or None for the Editor.

    Raises:
        UnknownEnvironmentError: the word before the colon is no kind; the text lists the kinds.
    """
    match = _PREFIX.fullmatch(env_path or "")
    if (match is None or match.group(1) not in PREFIXED) and split_function(env_path or ""):
        return Address(kind=Kind.FUNCTION, name=env_path)
    if match is None:
        return Address(kind=Kind.UNITY, name=env_path)
    prefix, name = match.groups()
    if prefix in PREFIXED:
        return Address(kind=Kind(prefix), name=name)
    path = f"a path is written with a folder before it: ./{env_path}"
    known = unknown(f"{env_path}", prefix, PREFIXED, what=f"no kind of environment is called {prefix}", suffix=":")
    raise UnknownEnvironmentError(f"{known}; {path}")


def split_function(name: str) -> tuple[str, str] | None:
    """Return FILE.py or module, and the function, of a `Kind.FUNCTION`; None if it is none."""
    match = _FUNCTION.fullmatch(name)
    return None if match is None else (match.group(1), match.group(2))


def is_compiled(env_path: str | None) -> bool:
    """Return whether env_path names an environment that is compiled together with the learner.

    Raises:
        UnknownEnvironmentError: as `parse_address`.
    """
    return parse_address(env_path).kind.compiled
