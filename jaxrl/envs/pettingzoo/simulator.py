"""Makes PettingZoo's environments for the host loop: recipes for workers from `pettingzoo:MODULE` and settings.

`MODULE` is imported and its `parallel_env`, or else its `env`, is called: `mpe2.simple_spread_v3`. `MODULE:NAME` calls
`NAME` of the module instead: a class of PettingZoo's environments, or a function of the user's or of a package that is
made for PettingZoo; nothing else is ever called. A name with a slash, such as `sisl/multiwalker-v9`, stands in
PettingZoo's registry (1.27 or newer). `env_args` are keyword arguments of the environment's maker, but for these:
- `team_reward=true`: the mean of a team's rewards is paid to all its members as group reward, in place of their own;
- `teams=false`: every agent is alone. Else all agents of one behavior in one environment are a team;
- `teams={player_0: 0, player_1: 1}`: they play against each other, for self-play: a team is all agents of one behavior
  and number. `red: 0` stands for red_0, red_1, ...;
- `action_scale=S`: the largest action where an action space has no bound, from its other bound or from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from jaxrl import trust
from jaxrl.envs.address import UnknownEnvironmentError, unknown
from jaxrl.envs.foreign.imports import belongs_to_others, import_for, require_package
from jaxrl.envs.foreign.options import IN_TEAMS, AreaOptions
from jaxrl.envs.foreign.rendering import DrawingOptions, drawing_options, make_drawn
from jaxrl.envs.foreign.simulator import recipe
from jaxrl.envs.workers.handles import EnvFactory

if TYPE_CHECKING:
    from jaxrl.envs.foreign.area import Area
    from jaxrl.settings import RunSettings

_MAKERS = ("parallel_env", "env")
_FACTORIES = (*_MAKERS, "raw_env")


def check(name: str | None) -> None:
    """Import the module and find the maker of its environment, without calling it.

    Raises:
        UntrustedError: a folder, not the user, names it, and it is no environment of an installed package.
        JaxrlError: PettingZoo is not installed.
        UnknownEnvironmentError: the module cannot be imported, or holds no such function.
    """
    require_package("pettingzoo", f"pettingzoo:{name}")
    maker, (_, _, wanted) = _maker(name or ""), (name or "").partition(":")
    if wanted:
        _check_maker(f"pettingzoo:{name}", wanted, maker)


def make_factory(name: str | None, settings: RunSettings, log_folder: str) -> EnvFactory:
    """Return a function worker → HostEnv for `EnvPool`. Raises as `check`; ArgumentsError for wrong env_args."""
    check(name)
    return recipe(open_area, f"pettingzoo:{name}", settings, package="PettingZoo", drawing=drawing_options(settings))


def open_area(name: str, arguments: dict[str, Any], drawing: DrawingOptions, options: AreaOptions = IN_TEAMS) -> Area:
    """Make one copy, which can be drawn where that is `wanted`. Raises any error of the environment."""
    from jaxrl.envs.pettingzoo.area import PettingZooArea

    make = partial(_maker(name), **arguments)
    return PettingZooArea(make_drawn(make, drawing) if drawing.wanted else make(), options)


def _maker(name: str) -> Callable[..., Any]:
    address = f"pettingzoo:{name}"
    if "/" in name:
        return _registered(address, name)
    path, _, wanted = name.partition(":")
    module = import_for(address, path, "pettingzoo") if path else None
    makers = (wanted,) if wanted else _MAKERS
    for maker in makers:
        if callable(getattr(module, maker, None)):
            return getattr(module, maker)
    known = (
        [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")] if module else []
    )
    raise UnknownEnvironmentError(
        f"{address}: module {path or '(none)'} has no {' or '.join(makers)}; expected pettingzoo:MODULE, whose "
        f"parallel_env or env makes the environment, or pettingzoo:MODULE:NAME; it has {', '.join(known) or 'nothing'}"
    )


def _check_maker(address: str, wanted: str, maker: Callable[..., Any]) -> None:
    """Raise UnknownEnvironmentError, before the call, for a maker of other things, such as `os:system`."""
    from pettingzoo import AECEnv, ParallelEnv

    expected = "expected a class of PettingZoo's environments, or a function that makes one"
    if isinstance(maker, type):
        if not issubclass(maker, AECEnv | ParallelEnv):
            raise UnknownEnvironmentError(f"{address}: the class {wanted} is no AECEnv and no ParallelEnv; {expected}")
        return
    if wanted not in _FACTORIES:
        trust.require(address)
    home = str(getattr(getattr(maker, "func", maker), "__module__", None) or "builtins")
    if belongs_to_others("pettingzoo", home):
        raise UnknownEnvironmentError(f"{address}: {wanted} belongs to {home}, which makes no environments; {expected}")


def _registered(address: str, name: str) -> Callable[..., Any]:
    """Return the maker of an environment in PettingZoo's registry, which has one table for each of its two kinds."""
    import pettingzoo

    registry: Any = pettingzoo
    if not hasattr(registry, "make"):
        raise UnknownEnvironmentError(
            f"{address}: PettingZoo {registry.__version__} has no registry yet; write pettingzoo:MODULE"
        )
    for kind in ("parallel", "aec"):
        try:
            spec = registry.spec(kind, name)
        except Exception:  # its own errors derive from Exception, and have changed their names before
            continue
        return partial(registry.make, kind, spec)
    known = sorted({*registry.parallel_registry, *registry.aec_registry})
    raise UnknownEnvironmentError(unknown(address, name, known, prefix="pettingzoo:"))
