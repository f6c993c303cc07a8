"""Makes Unity builds, and the Editor, for the host loop: a worker's recipe from settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from jaxrl.envs.interface import HostEnv
from jaxrl.envs.unity.launch import check_executable
from jaxrl.envs.workers.handles import EnvFactory

if TYPE_CHECKING:
    from jaxrl.settings import RunSettings


RESEEDS = False  # a player takes a seed at its start alone
_SEEDS = 2**31  # number of seeds from 0 on in the protocol's int32


def check(path: str | None) -> None:
    """Raise EnvironmentFailure if `path` is no executable; None is the Editor."""
    if path is not None:
        check_executable(path)


def make_factory(path: str | None, settings: RunSettings, log_folder: str) -> EnvFactory:
    """Return a function worker → HostEnv; worker i gets seed + i (0 after the largest) and port base_port + i."""
    options, engine = settings.env_settings, settings.engine_settings
    arguments = {
        "file_name": path,
        "base_port": options.base_port,
        "listen": options.listen,
        "message_megabytes": options.message_megabytes,
        "timeout_wait": options.timeout_wait,
        "editor_wait": options.editor_wait,
        "env_args": tuple(options.env_args or ()),
        "num_areas": options.num_areas,
        "log_folder": log_folder,
        **engine.model_dump(exclude={"no_graphics", "no_graphics_monitor"}),  # the worker decides about these
    }
    return partial(make_unity, arguments, options.seed, engine.no_graphics, engine.no_graphics_monitor)


def make_unity(
    arguments: dict[str, Any], seed: int, no_graphics: bool, no_graphics_monitor: bool, worker: int
) -> HostEnv:
    """Build one worker's environment; runs inside the worker, which alone needs gRPC.

    Raises:
        EnvironmentFailure: it cannot be started, see `UnityHostEnv`.
    """
    from jaxrl.envs.unity.environment import UnityHostEnv

    hidden = no_graphics or (no_graphics_monitor and worker > 0)
    return UnityHostEnv(worker=worker, seed=(seed + worker) % _SEEDS, no_graphics=hidden, **arguments)
