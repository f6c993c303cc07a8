"""JAX-native environments by short name. A new one is one file, one `make_<name>` function and one line here.

JAX is imported when an environment is made, so that a trainer can look up a name before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxrl import plugins, trust
from jaxrl.envs.address import Kind, UnknownEnvironmentError, parse_address, unknown
from jaxrl.envs.foreign.arguments import ArgumentsError, fitted, keyword_arguments, usual_arguments
from jaxrl.registry import Registry
from jaxrl.types import JaxrlError

if TYPE_CHECKING:
    from jaxrl.jax_envs.interface import JaxEnv
    from jaxrl.jax_envs.scene import JaxScene
    from jaxrl.settings.run import EnvironmentSettings

_FILES = {
    "ball3d": "ball3d",
    "basic": "basic",
    "baton_pass": "baton_pass",
    "crawler": "crawler",
    "dungeon_escape": "dungeon_escape",
    "food_collector": "food_collector",
    "grid_world": "grid_world",
    "grid_world_grid": "grid_world",
    "hallway": "hallway",
    "lock": "lock",
    "lock_and_key": "lock",
    "probe_entities": "probes",
    "probe_goal": "probes",
    "probe_image": "probes",
    "probe_memory": "probes",
    "probe_mixed": "probes",
    "probe_roles": "probes",
    "probe_team_memory": "probes",
    "match3": "match3",
    "match3_vector": "match3",
    "pong": "pong",
    "push_block": "push_block",
    "push_block_alone": "push_block",
    "pyramids": "pyramids",
    "simple_spread": "simple_spread",
    "soccer_twos": "soccer_twos",
    "sorter": "sorter",
    "strikers_vs_goalie": "strikers_vs_goalie",
    "wall_jump": "wall_jump",
}
"""File that holds `make_<name>`, by the environment's name."""
_MAKERS: Registry[str, Callable[..., Any]] = Registry(
    {name: f"jaxrl.jax_envs.{file}:make_{name}" for name, file in _FILES.items()}
)


def _make(name: str, /, **arguments: Any) -> JaxEnv | JaxScene:
    """Make one of jaxrl's own environments; `arguments` are those of its function, or fields of its `settings`."""
    make = _MAKERS[name]
    usual = usual_arguments(make)
    settings = usual.get("settings")
    try:
        if settings is not None:
            return make(settings._replace(**fitted(f"jax:{name}", arguments, settings._asdict())))
        return make(**fitted(f"jax:{name}", arguments, usual))
    except ValueError as error:
        raise ArgumentsError(f"jax:{name}: {error}") from None


ENVIRONMENTS: Registry[str, Callable[..., Any]] = Registry(
    {name: partial(_make, name) for name in _FILES},
    lambda name: name is not None and plugins.find(plugins.Kind.ENVIRONMENT, str(name)) is not None,
    lambda name: partial(import_module("jaxrl.jax_envs.adapters.function").make_installed, name),
)
"""Functions that make a `JaxEnv` or `JaxScene` with its usual settings, by the NAME in `jax:NAME` and `player:NAME`.

They include environments of installed packages; a name that several packages offer raises JaxrlError.
"""


def make_own(name: str, /, **arguments: Any) -> JaxEnv | JaxScene:
    """Make one of jaxrl's own environments, or one that an installed package offers (`jaxrl.plugins`).

    Raises UnknownEnvironmentError, with the nearest names; ArgumentsError; JaxrlError where that of a package cannot
    be made.
    """
    if name not in ENVIRONMENTS:
        raise UnknownEnvironmentError(unknown(f"jax:{name}", name, ENVIRONMENTS))
    return ENVIRONMENTS[name](**arguments)


ADAPTERS: Mapping[Kind, Callable[..., JaxEnv | JaxScene]] = Registry({
    Kind.JAX: "jaxrl.jax_envs:make_own",
    Kind.JAXMARL: "jaxrl.jax_envs.adapters.jaxmarl:make_jaxmarl",
    Kind.GYMNAX: "jaxrl.jax_envs.adapters.gymnax:make_gymnax",
    Kind.FUNCTION: "jaxrl.jax_envs.adapters.function:make_by_function",
})  # fmt: skip
"""Functions (name, **arguments) → environment, by kind, of every kind that is compiled with the learner."""


def environment_of(env_path: str, /, **arguments: Any) -> JaxEnv | JaxScene:
    """Make the environment that `jax:NAME`, `jaxmarl:NAME`, `gymnax:NAME` or `FILE.py:FUNCTION` names.

    A bare NAME is one of jaxrl's own. `arguments` are what `--env-args key=value` says on the command line. Raises
    UnknownEnvironmentError, with the nearest names; ArgumentsError for arguments that it does not take; JaxrlError
    when the package of an adapter is missing, or a file cannot be imported.
    """
    kind, name = parse_address(env_path)
    if kind is Kind.PLAYER:
        raise UnknownEnvironmentError(f"{env_path}: is played by a process of its own; compiled it is jax:{name}")
    if kind is not Kind.UNITY and kind not in ADAPTERS:
        raise UnknownEnvironmentError(
            f"{env_path}: is stepped by the host loop and cannot be compiled: `jaxrl train --env {env_path}` trains it"
        )
    return ADAPTERS[Kind.JAX if kind is Kind.UNITY else kind](name or "", **arguments)


def make_environment(env_path: str, /, **arguments: Any) -> JaxEnv:
    """Make the environment of one behavior that `jax:NAME`, `jaxmarl:NAME`, `gymnax:NAME` or `FILE.py:FUNCTION` names.

        env = jaxrl.make_environment("jaxmarl:HeuristicEnemySMAX", scenario="3m")

    Args:
      env_path: as `--env` of `jaxrl train`; a bare NAME is one of jaxrl's own.
      arguments: of the environment, as `--env-args key=value`: fields of the settings of jaxrl's own, arguments of the
        constructors of JaxMARL and gymnax, of the function of a file.

    Raises:
      UnknownEnvironmentError: there is none of this name; the text lists the nearest.
      ArgumentsError: an argument that it does not take, or a value of another type; the text lists what it takes.
      JaxrlError: the environment has several behaviors, see `make_scene`.
      JaxrlError: a package is missing, or a file cannot be imported.
    """
    from jaxrl.jax_envs.interface import JaxEnv

    trust.ours(env_path)
    env = environment_of(env_path, **arguments)
    if isinstance(env, JaxEnv):
        return env
    names = ", ".join(part.name for part in env.parts)
    raise JaxrlError(
        f"{env_path}: has several behaviors ({names}), this takes an environment of one. It can be trained "
        "(`jaxrl train`, `jaxrl sweep`) and watched (`jaxrl watch`); in Python `jaxrl.make_scene` makes it"
    )


def environment_in(options: EnvironmentSettings) -> JaxEnv | JaxScene:
    """Make the environment that `env_settings` name, as `environment_of` does."""
    return environment_of(options.env_path or "", **keyword_arguments(options.env_args))


def make_scene(env_path: str, /, **arguments: Any) -> JaxScene:
    """Make an environment of several behaviors, as `make_environment`. Raises JaxrlError for an environment of one."""
    from jaxrl.jax_envs.scene import JaxScene

    trust.ours(env_path)
    env = environment_of(env_path, **arguments)
    if not isinstance(env, JaxScene):
        raise JaxrlError(f"{env_path}: has one behavior, {env.name}: make it with `jaxrl.make_environment`")
    return env
