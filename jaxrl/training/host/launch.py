"""From settings to environments that start. No JAX, and no environment: each worker imports its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.envs.interface import HostEnv
from jaxrl.envs.workers.handles import EnvFactory
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.jax_envs.served.launcher import resolve_player
from jaxrl.settings import RunSettings
from jaxrl.training.interrupt import Interrupt, leave_if_busy

PLAYER_PREFIX = "player:"
"""Marks an environment of jaxrl's own in env_path: `player:dungeon_escape`."""


@contextmanager
def launched(settings: RunSettings, *, owns_process: bool = True) -> Iterator[tuple[Interrupt, EnvPool]]:
    """Take over Ctrl-C, check and make the run's folder, and start the environments; `EnvPool.ready` waits for them.

    Comes before JAX is imported: a player takes as long to start as the learner. Closes the environments at the end.
    An interrupted run whose process does nothing else (`owns_process`) then ends it if XLA still compiles.

    Raises:
      RunFolderError: the folder cannot be used as asked. Nothing was written or started.
      JaxrlError: unknown player name.
    """
    options, environment = settings.checkpoint_settings, settings.env_settings
    folder = RunFolder(options.results_dir, options.run_id)
    folder.check(options.resume, options.force, options.initialize_from, list(settings.behaviors))
    factory = make_factory(settings, str(folder.logs))
    folder.prepare()
    with Interrupt() as interrupt:
        pool = EnvPool(
            factory,
            environment.num_envs,
            inline=environment.inline,
            timeout=environment.timeout_wait + 10.0,  # the environment's own, better diagnosis comes first
            startup_timeout=environment.timeout_wait + 60.0,
            wait=False,
        )
        with pool:
            yield interrupt, pool
        if interrupt.requested and owns_process:
            leave_if_busy()


def make_factory(settings: RunSettings, log_folder: str) -> EnvFactory:
    """A function worker → HostEnv for `EnvPool`; worker i gets seed + i and port base_port + i.

    `player:NAME` is one of jaxrl's own environments, a path is a Unity build, None the Unity Editor.

    Raises JaxrlError for an unknown player name.
    """
    options, engine = settings.env_settings, settings.engine_settings
    path = options.env_path
    if path is not None and path.startswith(PLAYER_PREFIX):
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
    from jaxrl.envs.unity.environment import UnityHostEnv

    hidden = no_graphics or (no_graphics_monitor and worker > 0)
    return UnityHostEnv(worker=worker, seed=seed + worker, no_graphics=hidden, **arguments)
