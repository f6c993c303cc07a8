"""Common part of the simulators of foreign environments: makes a worker's recipe from settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

from jaxrl.envs import SIMULATORS
from jaxrl.envs.address import Kind, parse_address
from jaxrl.envs.foreign.arguments import keyword_arguments
from jaxrl.envs.foreign.options import Place, take_options
from jaxrl.envs.foreign.rendering import NOTHING_DRAWN, DrawingOptions
from jaxrl.envs.interface import HostEnv
from jaxrl.envs.workers.handles import EnvFactory

if TYPE_CHECKING:
    from jaxrl.envs.foreign.area import Area
    from jaxrl.settings import RunSettings


def recipe(
    open_area: Callable[..., Area],
    address: str,
    settings: RunSettings,
    *,
    package: str | None = None,
    one_agent: bool = False,
    placed: bool = False,
    drawing: DrawingOptions = NOTHING_DRAWN,
) -> EnvFactory:
    """Return a function worker → HostEnv for `EnvPool`.

    Args:
        open_area: (name, arguments, drawing, options) → one copy; at a module's top level.
        address: KIND:NAME.
        package: name of the environment's package, for the log.
        placed: `open_area` takes the `Place` of the copy as well.
        one_agent: `env_args` may not name teams.

    Raises ArgumentsError for wrong env_args.
    """
    options = settings.env_settings
    arguments = keyword_arguments(options.env_args)
    area_options, team_reward = take_options(arguments, one_agent=one_agent)
    return partial(
        make_environment,
        partial(open_area, address.partition(":")[2], arguments, options=area_options),
        address,
        package=package,
        areas=options.num_areas,
        seed=options.seed,
        team_reward=team_reward,
        workers=options.num_envs if placed else None,
        timeout=options.timeout_wait,
        drawing=drawing,
    )


def open_area(
    address: str, env_args: Sequence[str] | None, drawing: DrawingOptions = NOTHING_DRAWN, **place: Place
) -> Area:
    """Make one copy of an environment by its address, in this process; one of RLlib's may be told its `place`.

    Raises ArgumentsError, UnknownEnvironmentError, or any error of the environment.
    """
    kind, name = parse_address(address)
    module, arguments = SIMULATORS[kind], keyword_arguments(env_args)
    module.check(name)
    options, _ = take_options(arguments, one_agent=kind is Kind.GYMNASIUM)
    return module.open_area(name, arguments, drawing, options, **place)


def make_environment(
    open_area: Callable[..., Area],
    address: str,
    worker: int,
    *,
    package: str | None = None,
    areas: int = 1,
    seed: int,
    team_reward: bool = False,
    workers: int | None = None,
    timeout: float = 60.0,
    drawing: DrawingOptions = NOTHING_DRAWN,
) -> HostEnv:
    """Build one worker's environment; runs inside the worker. `workers`: number in the run, if `open_area` takes it.

    The environment of the evaluation, whose number follows theirs, is told the place of the first one.

    Raises:
        EnvironmentFailure: it cannot be made, or jaxrl cannot read its spaces.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    from jaxrl.envs.foreign.environment import ForeignEnvironment

    version = f" of {package} {metadata.version(package.lower())}" if package else ""

    def make_area(area: int) -> Area:
        place = {} if workers is None else {"place": Place(worker % workers, area, workers)}
        return open_area(drawing if worker == area == 0 else NOTHING_DRAWN, **place)

    return ForeignEnvironment(
        worker=worker,
        name=address,
        make_area=make_area,
        areas=areas,
        seed=seed + worker,
        team_reward=team_reward,
        timeout=timeout,
        drawing=drawing,
        about=f"{address}{version}, {areas} side by side",
    )
