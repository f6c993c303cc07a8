"""Environments written for RLlib, for the host loop: from `rllib:MODULE:CLASS` and settings to a recipe for workers.

`CLASS` of a module or of a file (`rllib:my_file.py:MyEnv`) has the interface of RLlib's `MultiAgentEnv`; whether it is
derived from it does not matter, and Ray is not imported here. As RLlib does, the class is called with one dictionary,
its `env_config`: what `env_args` say, but for `team_reward`, `teams` and `action_scale`, which mean
what they mean of PettingZoo's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxrl import own_code
from jaxrl.envs.address import UnknownEnvironmentError
from jaxrl.envs.foreign.imports import require_package
from jaxrl.envs.foreign.options import IN_TEAMS, AreaOptions
from jaxrl.envs.foreign.simulator import recipe
from jaxrl.envs.workers.handles import EnvFactory

if TYPE_CHECKING:
    from jaxrl.envs.foreign.area import Area
    from jaxrl.envs.foreign.rendering import DrawingOptions
    from jaxrl.settings import RunSettings


def check(name: str | None) -> None:
    """Import the module and look for the class, without making an environment.

    Raises:
        JaxrlError: Gymnasium, whose spaces such environments have, is not installed.
        UnknownEnvironmentError: there is no such module or class, or it is no class of environments.
        OwnCodeError: importing it raised.
    """
    require_package("gymnasium", f"rllib:{name}")
    _class(name or "")


def make_factory(name: str | None, settings: RunSettings, log_folder: str) -> EnvFactory:
    """A function worker → HostEnv for `EnvPool`. Raises as `check`; ArgumentsError: env_args are wrong."""
    check(name)
    return recipe(open_area, f"rllib:{name}", settings)


def open_area(name: str, config: dict[str, Any], drawing: DrawingOptions, options: AreaOptions = IN_TEAMS) -> Area:
    """One copy, which nobody draws. Raises whatever the environment raises."""
    from jaxrl.envs.rllib.area import MultiAgentArea

    return MultiAgentArea(_class(name)(dict(config)), options)


def _class(name: str) -> type[Any]:
    address = f"rllib:{name}"
    if own_code.split_address(name) is None:
        raise UnknownEnvironmentError(f"{address}: expected rllib:MODULE:CLASS or rllib:FILE.py:CLASS")
    try:
        found = own_code.load(name, what="class", where="rllib:")
    except own_code.NotThereError as error:
        raise UnknownEnvironmentError(str(error)) from None
    if not isinstance(found, type) or not all(callable(getattr(found, method, None)) for method in ("reset", "step")):
        raise UnknownEnvironmentError(
            f"{address}: {name.rpartition(':')[2]} is no class with reset and step, as RLlib's MultiAgentEnv is"
        )
    return found
