"""Makes RLlib's environments for the host loop: recipes for workers from `rllib:MODULE:CLASS` and settings.

`CLASS` of a module or of a file (`rllib:my_file.py:MyEnv`) has the interface of RLlib's `MultiAgentEnv`, without need
to be derived from it, and Ray is not imported here. As in RLlib, the class, or a function for `register_env`, is called
with one dictionary, its `env_config`: the `env_args` but for `team_reward`, `teams` and `action_scale`, which have the
meaning of PettingZoo's. It has RLlib's attributes `worker_index` and the like.
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
        UnknownEnvironmentError: there is no such module or class, or it is no environment's.
        OwnCodeError: importing it raised.
    """
    require_package("gymnasium", f"rllib:{name}")
    _maker(name or "")


def make_factory(name: str | None, settings: RunSettings, log_folder: str) -> EnvFactory:
    """Return a function worker → HostEnv for `EnvPool`. Raises as `check`; ArgumentsError for wrong env_args."""
    check(name)
    return recipe(open_area, f"rllib:{name}", settings, placed=True)


def open_area(
    name: str,
    config: dict[str, Any],
    drawing: DrawingOptions,
    options: AreaOptions = IN_TEAMS,
    place: Place = Place(),  # noqa: B008 (a tuple)
) -> Area:
    """Make one copy, which is never drawn. Raises any error of the environment."""
    from jaxrl.envs.rllib.area import MultiAgentArea

    return MultiAgentArea(_maker(name)(EnvContext(config, place)), options)


class EnvContext(dict[str, Any]):
    """The `env_config` of an environment, with RLlib's attributes of its worker.

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
        """Add missing keys."""
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
