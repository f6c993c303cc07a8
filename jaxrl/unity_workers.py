"""From settings to a picklable recipe for the environments. Imports no environment: each worker does that itself."""

from __future__ import annotations

from functools import partial
from typing import Any

from jaxrl.envs.handles import EnvFactory
from jaxrl.envs.interface import HostEnv
from jaxrl.settings import RunSettings

PLAYER_PREFIX = "player:"
"""Marks an environment of jaxrl's own in env_path: `player:dungeon_escape`."""


def make_factory(settings: RunSettings, log_folder: str) -> EnvFactory:
    """A function worker → HostEnv for `EnvPool`; worker i gets seed + i and port base_port + i.

    `player:NAME` is one of jaxrl's own environments, a path is a Unity build, None the Unity Editor.

    Raises JaxrlError for an unknown player name.
    """
    options, engine = settings.env_settings, settings.engine_settings
    path = options.env_path
    if path is not None and path.startswith(PLAYER_PREFIX):
        from jaxrl.jax_envs.launcher import resolve_player  # here, because it knows JAX and a worker imports this file

        path = str(resolve_player(path.removeprefix(PLAYER_PREFIX)))
    arguments = {
        "file_name": path,
        "base_port": options.base_port,
        "timeout_wait": options.timeout_wait,
        "env_args": tuple(options.env_args or ()),
        "num_areas": options.num_areas,
        "width": engine.width,
        "height": engine.height,
        "quality_level": engine.quality_level,
        "time_scale": engine.time_scale,
        "target_frame_rate": engine.target_frame_rate,
        "capture_frame_rate": engine.capture_frame_rate,
        "log_folder": log_folder,
    }
    return partial(make_unity, arguments, options.seed, engine.no_graphics, engine.no_graphics_monitor)


def make_unity(
    arguments: dict[str, Any], seed: int, no_graphics: bool, no_graphics_monitor: bool, worker: int
) -> HostEnv:
    """Build one worker's environment; runs inside the worker."""
    from jaxrl.envs.unity import UnityHostEnv

    hidden = no_graphics or (no_graphics_monitor and worker > 0)
    return UnityHostEnv(worker=worker, seed=seed + worker, no_graphics=hidden, **arguments)
