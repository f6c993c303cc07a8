"""Start the environments that the settings name. Imports no JAX and no environment: each worker imports its own."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from jaxrl.artifacts.metrics.writers import check_writers
from jaxrl.artifacts.run_folder import RunFolder, only_evaluates
from jaxrl.envs import simulator
from jaxrl.envs.address import parse_address
from jaxrl.envs.behavior_names import BehaviorNames
from jaxrl.envs.interface import HostEnv
from jaxrl.envs.workers.handles import EnvFactory
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.envs.workers.restarts import RestartLimits
from jaxrl.settings import PROCESSES, RunSettings, SettingsError
from jaxrl.training.interrupt import Interrupt, leave_if_busy

log = logging.getLogger(__name__)


@contextmanager
def launched(settings: RunSettings, interrupt: Interrupt | None = None) -> Iterator[tuple[Interrupt, EnvPool]]:
    """Take over Ctrl-C, claim the run's folder, and start the environments; `EnvPool.ready` waits for them.

    Call it before JAX is imported: a player takes as long to start as the learner. Closes the environments at the end.
    `interrupt`: the one of a process that only runs this; after a signal the process exits even if XLA still compiles.
    Without it, signals belong to this run while it goes on.

    Raises:
      RunFolderError, RunLockedError: the folder cannot be used as asked. Nothing was written or started.
      SettingsError: the requested evaluation cannot have an environment.
      RecordError: statistics cannot be written to the requested place.
      JaxrlError: no such environment, or no such kind of environment.
    """
    options, environment = settings.checkpoint_settings, settings.env_settings
    check_writers(settings.record_settings)
    check_evaluation(settings)
    folder, evaluates = RunFolder(options.results_dir, options.run_id), only_evaluates(options)
    with ExitStack() as stack:
        signals = interrupt or stack.enter_context(Interrupt())
        starts = {name: behavior.init_path for name, behavior in settings.behaviors.items()}
        stack.enter_context(folder.claimed(options, starts))
        folder.check_sources(options, [behavior.init_path for _, behavior in settings.every_behavior()])
        with _log_folder(folder, kept=not evaluates) as logs:
            factory = make_factory(settings, str(logs))
            if environment.workers != PROCESSES:
                from jaxrl.envs.workers.ray_handle import connect

                connect(environment.workers)  # before anything is written
            if not evaluates:
                folder.prepare()
            with make_pool(settings, factory, environment.num_envs) as pool:
                yield signals, pool
    if interrupt is not None and interrupt.requested:
        leave_if_busy(interrupt.exit_code)


def make_pool(settings: RunSettings, factory: EnvFactory, workers: int, names: BehaviorNames | None = None) -> EnvPool:
    """Begin to start workers, with the time-outs and limits of the settings; `EnvPool.ready` waits for them."""
    environment = settings.env_settings
    return EnvPool(
        factory,
        workers,
        inline=environment.inline,
        cluster=None if environment.workers == PROCESSES else environment.workers,
        timeout=environment.timeout_wait + 10.0,  # the environment's own, better diagnosis comes first
        startup_timeout=max(environment.timeout_wait, environment.editor_wait) + 60.0,
        wait=False,
        limits=RestartLimits(
            lifetime=environment.max_lifetime_restarts,
            rate=environment.restarts_rate_limit_n,
            period=environment.restarts_rate_limit_period_s,
        ),
        restart_bad_data=environment.on_bad_data == "restart",
        names=names,
    )


def evaluation_pool(settings: RunSettings, seed: int, names: BehaviorNames | None = None) -> EnvPool:
    """Start one environment for evaluations; its number, port and log follow those of the workers.

    It is neither rendered nor filmed. `names` are those of the run. Raises JaxrlError, as `make_factory`.
    """
    environment = settings.env_settings
    number, quiet = environment.num_envs, {"render": False, "video_every": 0, "seed": seed}
    quiet = settings.model_copy(update={"env_settings": environment.model_copy(update=quiet)})
    folder = RunFolder(settings.checkpoint_settings.results_dir, settings.checkpoint_settings.run_id)
    return make_pool(settings, partial(_numbered, make_factory(quiet, str(folder.logs)), number), 1, names)


def check_evaluation(settings: RunSettings) -> None:
    """Raise SettingsError if a requested evaluation cannot have its own environment."""
    options = settings.env_settings
    asked = [path for path, behavior in settings.every_behavior() if behavior.evaluation is not None]
    if not asked or settings.checkpoint_settings.inference:
        return
    if options.env_path is None:
        raise SettingsError(
            f"{asked[0]}.evaluation: got a section, expected null with the Unity Editor, which is one environment: "
            "evaluation episodes need a second one beside the training's; build the scene (--env=PATH)"
        )
    if options.base_port + options.num_envs > 65535:
        raise SettingsError(
            f"env_settings.base_port: got {options.base_port}, expected a port that leaves {options.num_envs} workers "
            "and the environment of the evaluation up to 65535"
        )


def _numbered(factory: EnvFactory, number: int, worker: int) -> HostEnv:
    return factory(number + worker)


@contextmanager
def _log_folder(folder: RunFolder, *, kept: bool) -> Iterator[Path]:
    """Yield the folder of players' logs: the run's, or a temporary one, which stays, for a run that writes nothing."""
    if kept:
        yield folder.logs
        return
    logs = Path(tempfile.mkdtemp(prefix="jaxrl-evaluation-"))
    try:
        yield logs
    finally:
        if any(logs.iterdir()):
            log.info("The folder of the run stays as it is: logs of the players are in %s.", logs)
        else:
            logs.rmdir()


def make_factory(settings: RunSettings, log_folder: str) -> EnvFactory:
    """Return a function worker → HostEnv for `EnvPool`, of the simulator that `env_settings.env_path` names.

    Raises JaxrlError: no such environment, or no such kind of environment.
    """
    kind, name = parse_address(settings.env_settings.env_path)
    return simulator(kind).make_factory(name, settings, log_folder)
