"""Makes Gymnasium's environments for the host loop: a worker's recipe from `gymnasium:ID` and settings.

`ID` is an argument of `gymnasium.make`: `CartPole-v1`, `namespace/Name-v0`, or `module:ID` for an environment that is
registered when `module` is imported. The behavior has its name in the registry, without module and namespace.
`env_args` are keyword arguments of `gymnasium.make`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from jaxrl import trust
from jaxrl.envs.address import UnknownEnvironmentError, unknown
from jaxrl.envs.foreign.imports import import_for, require_package
from jaxrl.envs.foreign.options import ALONE, AreaOptions
from jaxrl.envs.foreign.rendering import DrawingOptions, drawing_options, make_drawn
from jaxrl.envs.foreign.simulator import recipe
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.workers.handles import EnvFactory

if TYPE_CHECKING:
    from jaxrl.envs.foreign.area import Area
    from jaxrl.settings import RunSettings


def check(name: str | None) -> None:
    """Look the environment up in Gymnasium's registry, without making it.

    Raises:
        UntrustedError: a folder, not the user, names a module that is not made for Gymnasium.
        JaxrlError: Gymnasium is not installed.
        UnknownEnvironmentError: there is no such environment, or its module cannot be imported.
    """
    require_package("gymnasium", f"gymnasium:{name}")
    import gymnasium

    module, _, environment = (name or "").rpartition(":")
    if module:
        import_for(f"gymnasium:{name}", module, "gymnasium")
    if environment.startswith("GymV"):  # its arguments name a module of the old Gym
        trust.require(f"gymnasium:{name}")
    try:
        gymnasium.spec(environment)
    except gymnasium.error.Error:
        known = (entry for entry in gymnasium.registry if not entry.startswith(("phys2d/", "tabular/", "GymV")))
        raise UnknownEnvironmentError(unknown(f"gymnasium:{name}", environment, known, prefix="gymnasium:")) from None


def make_factory(name: str | None, settings: RunSettings, log_folder: str) -> EnvFactory:
    """Return a function worker → HostEnv for `EnvPool`. Raises as `check`; ArgumentsError for wrong env_args."""
    check(name)
    drawing = drawing_options(settings)
    return recipe(open_area, f"gymnasium:{name}", settings, package="Gymnasium", one_agent=True, drawing=drawing)


def open_area(name: str, arguments: dict[str, Any], drawing: DrawingOptions, options: AreaOptions = ALONE) -> Area:
    """Make one copy, which can be drawn where that is `wanted`.

    Raises EnvironmentFailure if one of its packages is missing, else any error of the environment.
    """
    import gymnasium

    from jaxrl.envs.gymnasium.area import GymnasiumArea

    make = partial(gymnasium.make, name, disable_env_checker=True, **arguments)
    try:
        env = make_drawn(make, drawing) if drawing.wanted else make()
    except gymnasium.error.DependencyNotInstalled as error:
        raise EnvironmentFailure(f"gymnasium:{name} needs a package that is not installed: {error}") from error
    return GymnasiumArea(env, name.rpartition(":")[2].rpartition("/")[2], options)
