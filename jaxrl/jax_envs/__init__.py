"""JAX-native environments by short name. A new one is one file, one `make_<name>` function and one line here.

JAX is imported when an environment is made, so that a trainer can look up a name before.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from jaxrl.types import JaxrlError

if TYPE_CHECKING:
    from jaxrl.jax_envs.interface import JaxEnv

_FILES = ("ball3d", "basic", "baton_pass", "dungeon_escape", "push_block", "simple_spread", "soccer_twos")


def _make(name: str) -> JaxEnv:
    return getattr(import_module(f"jaxrl.jax_envs.{name}"), f"make_{name}")()


ENVIRONMENTS: dict[str, Callable[[], JaxEnv]] = {name: partial(_make, name) for name in _FILES}
"""Functions that make a `JaxEnv` with its usual settings, by the name used in `jax:NAME` and `player:NAME`."""

OWN, JAXMARL, GYMNAX = "jax:", "jaxmarl:", "gymnax:"
"""Marks in env_path of environments that are compiled together with the learner."""


class UnknownEnvironmentError(JaxrlError):
    """No JAX environment has that name."""


def is_jax_environment(env_path: str | None) -> bool:
    """Whether env_path names an environment that is compiled together with the learner."""
    return env_path is not None and env_path.startswith((OWN, JAXMARL, GYMNAX))


def make_environment(env_path: str) -> JaxEnv:
    """The environment that `jax:NAME`, `jaxmarl:NAME` or `gymnax:NAME` names; a bare NAME is one of jaxrl's own.

    Raises UnknownEnvironmentError, with the nearest names; JaxrlError when the package of an adapter is missing.
    """
    if env_path.startswith(JAXMARL):
        from jaxrl.jax_envs.adapters.jaxmarl import make_jaxmarl

        return make_jaxmarl(env_path.removeprefix(JAXMARL))
    if env_path.startswith(GYMNAX):
        from jaxrl.jax_envs.adapters.gymnax import make_gymnax

        return make_gymnax(env_path.removeprefix(GYMNAX))
    name = env_path.removeprefix(OWN)
    if name not in ENVIRONMENTS:
        raise UnknownEnvironmentError(unknown(env_path, name, ENVIRONMENTS))
    return ENVIRONMENTS[name]()


def unknown(
    path: str,
    name: str,
    known: Iterable[str],
    *,
    what: str = "no such environment",
    there_are: str = "there are",
    prefix: str = "",
) -> str:
    """What to say of `path` when `name` is not among the `known` ones: the nearest, and all, with `prefix`."""
    by_lowered = {entry.lower(): prefix + entry for entry in sorted(known)}
    near = [by_lowered[hit] for hit in difflib.get_close_matches(name.lower(), by_lowered, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{path}: {what}, {hint}{there_are} {', '.join(by_lowered.values())}"
