"""Runs of a sweep whose environments are processes: each is a `jaxrl train` of its own, some at a time."""

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
"""Between two looks at the processes."""
END_SECONDS = 120.0
"""A run that was told to end may take so long for saving; then it is killed."""
SILENT_SECONDS = 600.0
"""A run that has written nothing into its log for so long is named, once."""
_LAST_BYTES = 2**16  # of a log, in which its last line stands
_ORPHAN_SECONDS = 30  # the same for one whose sweep was killed


class Job(NamedTuple):
    """Runs that begin and end together: one point, or all seeds of a trial."""

    label: Any
    runs: Sequence[RunSettings]


class Ended(NamedTuple):
    """How a job ended."""

    failed: list[str]  # names of its runs that did not end well
    told_to: bool  # by a signal, or because it was given up


class _Child(NamedTuple):
    """A run under way."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]
    guard: Guard  # ends it with this process

    def kill(self) -> None:
        """The run and its workers, which are of its group."""
        with suppress(OSError):
            platforms.end_session(self.process, kill=True)

    def silent(self) -> float:
        """Seconds since it last wrote into its log; 0 if that is gone."""
        with suppress(OSError):
            return time.time() - self.log.stat().st_mtime
        return 0.0


class _UnderWay:
    """A job whose runs go on."""

    def __init__(self, job: Job, children: list[_Child]) -> None:
        self.job = job
        self.children = children
        self.told_to_end = False
        self._kill_at = float("inf")
        self._named = set[str]()

    @property
    def over(self) -> bool:
        """Whether all of its runs have ended."""
        return not any(self._running())

    def look_after(self) -> None:
        """Name runs that say nothing, and kill those that were told to end and do not."""
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
        """Ask the runs to save and end, once: a second signal would be one to leave without saving."""
        if not self.told_to_end:
            self.told_to_end = True
            self._kill_at = time.monotonic() + END_SECONDS
            for child in self._running():
                platforms.ask_to_end(child.process)

    def _running(self) -> list[_Child]:
        return [child for child in self.children if child.process.poll() is None]


def train_in_processes(runs: Sequence[RunSettings], interrupt: Interrupt, parallel: int) -> JaxrlError | None:
    """Train all runs, `parallel` at a time, each with ports of its own; what one says goes to RUN.log.

    Ends after the last, or after a signal, when those under way have saved. One that fails is told at once, and the
    others go on; the error returned names them all. Raises ArtifactError, before any starts, for a folder that cannot
    be used.
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
    """Wait until nobody writes to the folders: runs of a sweep that was killed take their time to save and end.

    Ends after `patience` seconds or at a signal in any case; a run that is still locked then says so itself.
    """
    until, told = time.monotonic() + patience, set[Path]()
    while time.monotonic() < until and not interrupt.requested:
        busy = [(folder, held) for folder in folders if (held := lock.look(folder.path)) is not None and held.held]
        if not busy:
            return
        for folder, held in busy:
            if folder.path not in told:
                told.add(folder.path)
                _log.info("%s: waits for %s, which saves and ends.", folder.path.name, held.owner or "its writer")
        time.sleep(LOOK_SECONDS)


def folder_of(run: RunSettings) -> RunFolder:
    """Where a run is written."""
    return RunFolder(run.checkpoint_settings.results_dir, run.checkpoint_settings.run_id)


def go_through(
    next_job: Callable[[], Job | None],
    interrupt: Interrupt,
    parallel: int,
    *,
    ended: Callable[[Job, Ended], object],
    hopeless: Callable[[Job], bool] = lambda _: False,
) -> None:
    """Begin jobs while there are any, `parallel` at a time, and tell `ended` of each.

    One that is `hopeless`, which is asked at every look, saves and ends before its time; so do all after a signal, and
    no other begins.
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
        for place, found in list(places.items()):
            if found.over:
                del places[place]
                failed = [child.name for child in found.children if not _told(child, found.told_to_end)]
                ended(found.job, Ended(failed, found.told_to_end))
            elif interrupt.requested or (not found.told_to_end and hopeless(found.job)):
                found.end()
            found.look_after()


def _with_port(run: RunSettings, place: int) -> RunSettings:
    """Runs that go on at the same time do not meet on a port; one more than the workers take is left between them."""
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
        process = platforms.begin(  # no Ctrl-C reaches it: that comes to this process, which passes it on once
            [sys.executable, "-m", "jaxrl.cli", "train", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    _log.info("%s: begun, process %d; it tells what it does in %s.", name, process.pid, log)
    return _Child(name, log, process, Guard(process.pid, _ORPHAN_SECONDS))


def _told(child: _Child, told_to_end: bool) -> bool:
    """Say how a run ended; whether it ended well."""
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
