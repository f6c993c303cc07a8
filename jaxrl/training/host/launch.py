"""From settings to environments that start. No JAX, and no environment: each worker imports its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from jaxrl.artifacts.run_folder import RunFolder, only_evaluates
from jaxrl.envs import simulator
from jaxrl.envs.address import parse_address
from jaxrl.envs.workers.handles import EnvFactory
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.envs.workers.restarts import RestartLimits
from jaxrl.settings import PROCESSES, RunSettings
from jaxrl.training.interrupt import Interrupt, leave_if_busy


@contextmanager
def launched(settings: RunSettings, interrupt: Interrupt | None = None) -> Iterator[tuple[Interrupt, EnvPool]]:
    """Take over Ctrl-C, claim the run's folder, and start the environments; `EnvPool.ready` waits for them.

    Comes before JAX is imported: a player takes as long to start as the learner. Closes the environments at the end.
    `interrupt`: of a process that does nothing else; after a signal it then ends there if XLA still compiles. Without
    one, signals belong to this run while it goes on.

    Raises:
      RunFolderError, RunLockedError: the folder cannot be used as asked. Nothing was written or started.
      JaxrlError: no such environment, or no such kind of environment.
    """
    options, environment = settings.checkpoint_settings, settings.env_settings
    folder, evaluates = RunFolder(options.results_dir, options.run_id), only_evaluates(options)
    with ExitStack() as stack:
        signals = interrupt or stack.enter_context(Interrupt())
        stack.enter_context(folder.claimed(options, list(settings.behaviors)))
        with _log_folder(folder, kept=not evaluates) as logs:
            factory = make_factory(settings, str(logs))
            cluster = None if environment.workers == PROCESSES else environment.workers
            if cluster is not None:
                from jaxrl.envs.workers.ray_handle import connect

                connect(cluster)  # before anything is written
            if not evaluates:
                folder.prepare()
            pool = EnvPool(
                factory,
                environment.num_envs,
                inline=environment.inline,
                cluster=cluster,
                timeout=environment.timeout_wait + 10.0,  # the environment's own, better diagnosis comes first
                startup_timeout=max(environment.timeout_wait, environment.editor_wait) + 60.0,
                wait=False,
                limits=RestartLimits(
                    lifetime=environment.max_lifetime_restarts,
                    rate=environment.restarts_rate_limit_n,
                    period=environment.restarts_rate_limit_period_s,
                ),
                restart_bad_numbers=environment.on_bad_data == "restart",
            )
            with pool:
                yield signals, pool
    if interrupt is not None and interrupt.requested:
        leave_if_busy(interrupt.exit_code)


@contextmanager
def _log_folder(folder: RunFolder, *, kept: bool) -> Iterator[Path]:
    """Where the players' logs go: the run's folder, or one that goes with a good end, for a run that writes nothing."""
    if kept:
        yield folder.logs
        return
    logs = Path(tempfile.mkdtemp(prefix="jaxrl-evaluation-"))
    try:
        yield logs
    except BaseException:
        with suppress(OSError):  # the error may name a log in it: only an empty one goes
            logs.rmdir()
        raise
    shutil.rmtree(logs, ignore_errors=True)


def make_factory(settings: RunSettings, log_folder: str) -> EnvFactory:
    """A function worker → HostEnv for `EnvPool`, of the simulator that `env_settings.env_path` names.

    Raises JaxrlError: no such environment, or no such kind of environment.
    """
    kind, name = parse_address(settings.env_settings.env_path)
    return simulator(kind).make_factory(name, settings, log_folder)
