"""Environments written for RLlib, for the host loop: from `rllib:MODULE:CLASS` and settings to a recipe for workers.

`CLASS` of a module or of a file (`rllib:my_file.py:MyEnv`) has the interface of RLlib's `MultiAgentEnv`; whether it is
derived from it does not matter, and Ray is not imported here. As RLlib does, the class, or a function as `register_env`
takes it, is called with one dictionary, its `env_config`: what `env_args` say, but for `team_reward`, `teams` and
`action_scale`, which mean what they mean of PettingZoo's. It has RLlib's `worker_index` and the like as attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

from jaxrl import own_code
from jaxrl.envs.address import UnknownEnvironmentError
from jaxrl.envs.foreign.imports import belongs_to_others, require_package
from jaxrl.envs.foreign.options import IN_TEAMS, AreaOptions, Place
from jaxrl.envs.foreign.simulator import recipe
from jaxrl.envs.workers.handles import EnvFactory

if TYPE_CHECKING:
    from jaxrl.envs.foreign.area import Area
    from jaxrl.envs.foreign.rendering import DrawingOptions
    from jaxrl.settings import RunSettings


def check(name: str | None) -> None:
    """Import the module and look for the class or function, without making an environment.

    Raises:
        JaxrlError: Gymnasium, whose spaces such environments have, is not installed.
        UnknownEnvironmentError: there is no such module or class, or it is no class of environments.
        OwnCodeError: importing it raised.
    """
    require_package("gymnasium", f"rllib:{name}")
    _maker(name or "")


def make_factory(name: str | None, settings: RunSettings, log_folder: str) -> EnvFactory:
    """A function worker → HostEnv for `EnvPool`. Raises as `check`; ArgumentsError: env_args are wrong."""
    check(name)
    return recipe(open_area, f"rllib:{name}", settings, placed=True)


def open_area(
    name: str,
    config: dict[str, Any],
    drawing: DrawingOptions,
    options: AreaOptions = IN_TEAMS,
    place: Place = Place(),  # noqa: B008 (a tuple)
) -> Area:
    """One copy, which nobody draws. Raises whatever the environment raises."""
    from jaxrl.envs.rllib.area import MultiAgentArea

    return MultiAgentArea(_maker(name)(EnvContext(config, place)), options)


class EnvContext(dict[str, Any]):
    """The `env_config` of an environment: RLlib's, with what its workers are called there.

    Attributes:
      worker_index: from 1 on.
      vector_index: of the copy in its worker.
      num_workers: of the run.
    """

    remote, recreated_worker = False, False

    def __init__(self, config: Mapping[str, Any], place: Place) -> None:
        super().__init__(config)
        self.worker_index, self.vector_index, self.num_workers = place.worker + 1, place.copy, place.workers

    def set_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Add what is not there."""
        for key, value in defaults.items():
            self.setdefault(key, value)


def _maker(name: str) -> Callable[[EnvContext], Any]:
    address, wanted = f"rllib:{name}", name.rpartition(":")[2]
    if own_code.split_address(name) is None:
        raise UnknownEnvironmentError(f"{address}: expected rllib:MODULE:CLASS or rllib:FILE.py:CLASS")
    try:
        maker = own_code.load(name, what="class", where="rllib:")
    except own_code.NotThereError as error:
        raise UnknownEnvironmentError(str(error)) from None
    if isinstance(maker, type) and all(callable(getattr(maker, method, None)) for method in ("reset", "step")):
        return maker
    if isinstance(maker, FunctionType) and not belongs_to_others("ray", maker.__module__):
        return maker
    raise UnknownEnvironmentError(
        f"{address}: {wanted} is no class with reset and step, as RLlib's MultiAgentEnv is, and no function that makes "
        "such an environment from an env_config, as register_env takes it"
    )
