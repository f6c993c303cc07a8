"""Trains runs of a sweep whose environments are processes: each is a `jaxrl train` of its own, some at a time."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl import platforms
from jaxrl.artifacts import lock
from jaxrl.artifacts.files import write_error, write_text
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.orphans import Guard
from jaxrl.settings import RunSettings, to_yaml
from jaxrl.training.interrupt import Interrupt
from jaxrl.types import JaxrlError

_log = logging.getLogger(__name__)

TERMINATED = 143
"""Exit code of a run that has saved after SIGTERM."""
LOOK_SECONDS = 0.5
"""Seconds between two looks at the processes."""
END_SECONDS = 120.0
"""Seconds that a run may take to save once it is asked to end; then it is killed."""
SILENT_SECONDS = 600.0
"""A run is named, once, if it has written nothing into its log for so many seconds."""
_LAST_BYTES = 2**16  # of a log, which contain its last line
_ORPHAN_SECONDS = 30  # as END_SECONDS, for a run whose sweep was killed


class Job(NamedTuple):
    """Runs that begin and end together: one point, or all seeds of a trial."""

    label: Any
    runs: Sequence[RunSettings]


class Ended(NamedTuple):
    """The end of a job."""

    failed: list[str]  # names of its runs that failed
    told_to: bool  # by a signal, or because it was given up


class _Child(NamedTuple):
    """A run whose process is running."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]
    guard: Guard  # ends the run with this process

    def kill(self) -> None:
        """Kill the run and its workers, which are in its process group."""
        with suppress(OSError):
            platforms.end_session(self.process, kill=True)

    def silent(self) -> float:
        """Return seconds since the run last wrote into its log; 0 if the log is gone."""
        with suppress(OSError):
            return time.time() - self.log.stat().st_mtime
        return 0.0


class _UnderWay:
    """A job whose runs are running."""

    def __init__(self, job: Job, children: list[_Child]) -> None:
        self.job = job
        self.children = children
        self.told_to_end = False
        self._kill_at = float("inf")
        self._named = set[str]()

    @property
    def over(self) -> bool:
        """True if all runs of the job have ended."""
        return not any(self._running())

    def look_after(self) -> None:
        """Name runs whose logs are silent, and kill runs that were told to end and have not."""
        for child in self._running():
            if time.monotonic() >= self._kill_at:
                _log.error("%s: did not end within %g s after SIGTERM: killed.", child.name, END_SECONDS)
                child.kill()
            elif child.name not in self._named and child.silent() > SILENT_SECONDS:
                self._named.add(child.name)
                _log.warning(
                    "%s: process %d has written nothing for %.0f minutes: it may hang. The last lines of %s say where.",
                    child.name, child.process.pid, child.silent() / 60, child.log,
                )  # fmt: skip

    def end(self) -> None:
        """Ask the runs to save and end, once: a second signal would make them leave without saving."""
        if not self.told_to_end:
            self.told_to_end = True
            self._kill_at = time.monotonic() + END_SECONDS
            for child in self._running():
                platforms.ask_to_end(child.process)

    def _running(self) -> list[_Child]:
        return [child for child in self.children if child.process.poll() is None]


def train_in_processes(runs: Sequence[RunSettings], interrupt: Interrupt, parallel: int) -> JaxrlError | None:
    """Train all runs, `parallel` at a time, each with ports of its own; the output of one goes to RUN.log.

    Ends after the last, or after a signal, when the running ones have saved. A failed run is reported at once, and the
    others go on; the error returned names them all. Raises ArtifactError before any run starts if a folder is unusable.
    """
    if any(run.checkpoint_settings.resume for run in runs):
        await_writers([folder_of(run) for run in runs], interrupt)
    for run in runs:
        options, folder = run.checkpoint_settings, folder_of(run)
        starts = {name: behavior.init_path for name, behavior in run.behaviors.items()}
        folder.check(options.resume, options.force, options.initialize_from, starts)
    waiting, failed = iter([Job(None, [run]) for run in runs]), list[str]()
    go_through(lambda: next(waiting, None), interrupt, parallel, ended=lambda _, end: failed.extend(end.failed))
    if not failed:
        return None
    return JaxrlError(f"{len(failed)} of {len(runs)} runs failed: {', '.join(failed)}. Their .log files say why.")


def await_writers(folders: Sequence[RunFolder], interrupt: Interrupt, patience: float = _ORPHAN_SECONDS + 10) -> None:
    """Wait until no process writes to the folders: runs of a sweep that was killed take their time to save and end.

    Ends after `patience` seconds or at a signal in any case; a run that is still locked then reports it itself.
    """
    until, reported = time.monotonic() + patience, set[Path]()
    while time.monotonic() < until and not interrupt.requested:
        busy = [(folder, held) for folder in folders if (held := lock.look(folder.path)) is not None and held.held]
        if not busy:
            return
        for folder, held in busy:
            if folder.path not in reported:
                reported.add(folder.path)
                _log.info("%s: waits for %s, which saves and ends.", folder.path.name, held.owner or "its writer")
        time.sleep(LOOK_SECONDS)


def folder_of(run: RunSettings) -> RunFolder:
    """Return the folder of a run."""
    return RunFolder(run.checkpoint_settings.results_dir, run.checkpoint_settings.run_id)


def go_through(
    next_job: Callable[[], Job | None],
    interrupt: Interrupt,
    parallel: int,
    *,
    ended: Callable[[Job, Ended], object],
    hopeless: Callable[[Job], bool] = lambda _: False,
) -> None:
    """Begin jobs while there are any, `parallel` at a time, and call `ended` for each.

    `hopeless` is asked at every look; a hopeless job saves and ends early. After a signal all jobs do, and none begins.
    """
    places: dict[int, _UnderWay] = {}  # a place decides on ports
    while True:
        for place in range(parallel):
            job = None if place in places or interrupt.requested else next_job()
            if job is not None:
                count = len(job.runs)
                places[place] = _UnderWay(
                    job, [_started(_with_port(run, place * count + i)) for i, run in enumerate(job.runs)]
                )
        if not places:
            return
        time.sleep(LOOK_SECONDS)
        for place, under_way in list(places.items()):
            if under_way.over:
                del places[place]
                failed = [child.name for child in under_way.children if not _told(child, under_way.told_to_end)]
                ended(under_way.job, Ended(failed, under_way.told_to_end))
            elif interrupt.requested or (not under_way.told_to_end and hopeless(under_way.job)):
                under_way.end()
            under_way.look_after()


def _with_port(run: RunSettings, place: int) -> RunSettings:
    """Give a run ports that no other running one has; one more than its workers take is left between runs."""
    environment = run.env_settings
    port = environment.base_port + place * (environment.num_envs + 1)
    return run.model_copy(update={"env_settings": environment.model_copy(update={"base_port": port})})


def _started(run: RunSettings) -> _Child:
    options = run.checkpoint_settings
    folder, name = Path(options.results_dir), options.run_id
    config, log = folder / f"{name}.yaml", folder / f"{name}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(config, to_yaml(run))
        if log.is_symlink() or (log.exists() and not log.is_file()):
            raise OSError(errno.EINVAL, "it is no file: move it away", str(log))
        output = log.open("ab")
    except OSError as error:
        raise write_error(log, error) from error
    with output:
        process = platforms.begin(  # no Ctrl-C reaches it: this process receives it and passes it on once
            [sys.executable, "-m", "jaxrl.cli", "train", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    _log.info("%s: begun, process %d; it tells what it does in %s.", name, process.pid, log)
    return _Child(name, log, process, Guard(process.pid, _ORPHAN_SECONDS))


def _told(child: _Child, told_to_end: bool) -> bool:
    """Log how a run ended; return whether it ended well."""
    child.guard.release()
    code = child.process.returncode
    if told_to_end and code == TERMINATED:
        _log.info("%s: saved and ended.", child.name)
        return True
    with child.log.open("rb") as file:
        file.seek(-min(_LAST_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
        lines = file.read(_LAST_BYTES).decode(errors="replace").splitlines()
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    if code == 0:
        _log.info("%s: done.", child.name)
    else:
        _log.error("%s: ended with exit code %d: %s", child.name, code, last.strip())
    return code == 0
