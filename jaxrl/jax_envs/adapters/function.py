"""Environments made by a user's function or package: `--env my_file.py:make_env`, `module:make_env`, `jax:NAME`.

The function is called with the arguments of `--env-args key=value`, if any, and returns a `JaxEnv`
(see `jaxrl.jax_envs.interface`) or a `JaxScene` (`jaxrl.jax_envs.scene`). `jaxrl.own_code` finds files and modules,
`jaxrl.plugins` finds packages.
"""

from __future__ import annotations

from typing import Any

from jaxrl import own_code, plugins
from jaxrl.envs.address import UnknownEnvironmentError, split_function
from jaxrl.envs.foreign.arguments import fitted, usual_arguments
from jaxrl.jax_envs.contract import JaxEnvError
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.scene import JaxScene
from jaxrl.types import JaxrlError


def make_by_function(name: str, /, **arguments: Any) -> JaxEnv | JaxScene:
    """Make the environment of `FILE.py:FUNCTION` or `module:FUNCTION`.

    Raises:
      UnknownEnvironmentError: no such file, module or function; the text lists the nearest functions.
      JaxrlError: importing the file or calling the function raised; the text has the error and its line.
      ArgumentsError: the function takes no such argument.
      JaxEnvError: the function's result is no JaxEnv and no JaxScene.
    """
    split = split_function(name)
    if split is None:
        raise UnknownEnvironmentError(f"{name}: expected FILE.py:FUNCTION or package.module:FUNCTION")
    try:
        maker: Any = own_code.load(name)
    except own_code.NotThereError as error:
        raise UnknownEnvironmentError(str(error)) from None
    except own_code.OwnCodeError as error:
        raise JaxrlError(str(error)) from error
    return _made(name, split[1], maker, arguments)


def make_installed(name: str, /, **arguments: Any) -> JaxEnv | JaxScene:
    """Make the environment that an installed package offers. Raises as `make_by_function`, and PluginError."""
    maker = plugins.load(plugins.Kind.ENVIRONMENT, name, where=f"jax:{name}: ")
    return _made(f"jax:{name}", name, maker, arguments)


def _made(name: str, function: str, maker: Any, arguments: dict[str, Any]) -> JaxEnv | JaxScene:
    if not callable(maker):
        raise UnknownEnvironmentError(f"{name}: {function} is a {type(maker).__name__}, expected a function")
    checked_arguments = fitted(name, arguments, usual_arguments(maker)) if arguments else {}
    try:
        env = maker(**checked_arguments)
    except Exception as error:  # whatever somebody else's code does
        raise JaxrlError(f"{name}: {function}() raised {own_code.told(error)}") from error
    if not isinstance(env, JaxEnv | JaxScene):
        raise JaxEnvError(f"{name}: returns a {type(env).__name__}, expected a jaxrl.JaxEnv or jaxrl.JaxScene")
    return env
