"""JAX-native environments by short name. A new one is one file, one `make_<name>` function and one line here.

JAX is imported when an environment is made, so that a trainer can look up a name before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from jaxrl import plugins
from jaxrl.envs.address import Kind, UnknownEnvironmentError, parse_address, unknown

if TYPE_CHECKING:
    from jaxrl.jax_envs.interface import JaxEnv

_FILES = {
    "ball3d": "ball3d",
    "basic": "basic",
    "baton_pass": "baton_pass",
    "dungeon_escape": "dungeon_escape",
    "food_collector": "food_collector",
    "grid_world": "grid_world",
    "grid_world_grid": "grid_world",
    "hallway": "hallway",
    "probe_entities": "probes",
    "probe_goal": "probes",
    "probe_image": "probes",
    "probe_memory": "probes",
    "probe_mixed": "probes",
    "probe_team_memory": "probes",
    "match3": "match3",
    "match3_vector": "match3",
    "push_block": "push_block",
    "simple_spread": "simple_spread",
    "soccer_twos": "soccer_twos",
    "sorter": "sorter",
}
"""By name: the file with its `make_<name>`."""


def _make(name: str) -> JaxEnv:
    return getattr(import_module(f"jaxrl.jax_envs.{_FILES[name]}"), f"make_{name}")()


ENVIRONMENTS: dict[str, Callable[[], JaxEnv]] = {name: partial(_make, name) for name in _FILES}
"""Functions that make a `JaxEnv` with its usual settings, by the name used in `jax:NAME` and `player:NAME`."""


def make_own(name: str) -> JaxEnv:
    """One of jaxrl's own environments, or one that an installed package offers (`jaxrl.plugins`).

    Raises UnknownEnvironmentError, with the nearest names; JaxrlError where that of a package cannot be made.
    """
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]()
    if not is_installed(name):
        raise UnknownEnvironmentError(unknown(f"jax:{name}", name, ENVIRONMENTS))
    return import_module("jaxrl.jax_envs.adapters.function").make_installed(name)


def is_installed(name: str | None) -> bool:
    """Whether a package offers an environment of this name. Raises JaxrlError where several do."""
    return name is not None and plugins.find(plugins.Kind.ENVIRONMENT, name) is not None


ADAPTERS: dict[Kind, tuple[str, str]] = {
    Kind.JAX: ("jaxrl.jax_envs", "make_own"),
    Kind.JAXMARL: ("jaxrl.jax_envs.adapters.jaxmarl", "make_jaxmarl"),
    Kind.GYMNAX: ("jaxrl.jax_envs.adapters.gymnax", "make_gymnax"),
    Kind.FUNCTION: ("jaxrl.jax_envs.adapters.function", "make_by_function"),
}
"""Modules and their functions name → `JaxEnv`, by kind: everything that is compiled together with the learner."""


def make_environment(env_path: str) -> JaxEnv:
    """The environment that `jax:NAME`, `jaxmarl:NAME`, `gymnax:NAME` or `FILE.py:FUNCTION` names.

    A bare NAME is one of jaxrl's own. Raises UnknownEnvironmentError, with the nearest names; JaxrlError when the
    package of an adapter is missing, or a file cannot be imported.
    """
    kind, name = parse_address(env_path)
    if kind is Kind.PLAYER:
        raise UnknownEnvironmentError(f"{env_path}: is played by a process of its own; compiled it is jax:{name}")
    module, maker = ADAPTERS[Kind.JAX if kind is Kind.UNITY else kind]
    return getattr(import_module(module), maker)(name or "")
