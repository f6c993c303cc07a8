"""Lock of a run's folder, which its owner holds from before anything is written until the end.

The operating system holds the lock (flock, on Windows a locked byte) and lets go of it when the process ends, however
that happens: a stale lock cannot be mistaken for a live one, a process id that was given anew deceives nobody, and two
processes that find a stale lock at the same moment cannot both take it. The text in the file tells people the owner.
Processes on other machines that share the disk may not see such a lock, so there the name in the file counts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import platform
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from jaxrl import platforms
from jaxrl.artifacts.files import ArtifactError, write_error
from jaxrl.regular_files import read_regular

NAME = "run.lock"
_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK)
LOOK_SECONDS = 0.5
"""Seconds between two looks whether the folder is still there."""
_READ_SECONDS = 1.0  # an owner has taken the lock and not yet written its name
_log = logging.getLogger(__name__)


class RunLockedError(ArtifactError):
    """Another process writes to the run's folder. The text names it and what to do."""


class Owner(NamedTuple):
    """Process that holds, or held, a lock."""

    process: int
    host: str
    started: str  # when it took the lock, local time
    command: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}, since {self.started}: {self.command}"


_mine: dict[Path, RunLock] = {}  # of this process, by folder


class RunLock:
    """Context manager: this process alone writes to `folder`, which is made if it is not there.

    A folder that was made for the lock alone goes with it. Not inherited by child processes that Python starts. Where
    somebody deletes the folder meanwhile, it is made and locked anew within LOOK_SECONDS (see `keep`).

    Raises on entry:
      RunLockedError: another process of this machine holds it, or the file names one of another machine.
      ArtifactError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._descriptor = -1
        self._made: list[Path] = []
        self._keeping = threading.Lock()
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True, name="jaxrl-lock")

    def __enter__(self) -> RunLock:
        folder = self.path.parent.absolute()
        try:
            self._made = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = _take(self.path)
            self._replace_owner()
        except OSError as error:  # RunLockedError is none
            self._let_go(remove=self._descriptor >= 0)
            raise write_error(self.path, error) from error
        except BaseException:
            self._let_go(remove=False)
            raise
        _mine[folder] = self
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        del _mine[self.path.parent.absolute()]
        self._over.set()
        self._watch.join()
        self._let_go(remove=True)

    def keep(self) -> None:
        """Take the lock anew if it was deleted, as the function `keep`."""
        with self._keeping:
            if self._is_there():
                return
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                before, self._descriptor = self._descriptor, _take(self.path)
                try:
                    self._replace_owner()
                except BaseException:
                    os.close(self._descriptor)
                    self._descriptor = before
                    raise
                os.close(before)
            except OSError:  # the write that follows says so
                return
        _log.error(
            "%s was deleted while the run goes on. What it writes from now on is there; what else was deleted is lost.",
            self.path,
        )

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            try:
                self.keep()
            except RunLockedError as error:  # the run itself learns of it before it writes
                _log.error("%s", error)
                return

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
        except OSError as error:  # a file that cannot be looked at counts as there
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)

    def _replace_owner(self) -> None:
        before, here = _read(self.path), platform.node()
        if before is not None and before.host != here:
            raise RunLockedError(
                f"{self.path.parent} is written by another run ({before}). If that run is over, delete {self.path}; "
                "else choose another --run-id."
            )
        if before is not None:
            _log.warning("%s: the run that held it is gone (%s); it is taken over.", self.path, before)
        mine = Owner(os.getpid(), here, time.strftime("%Y-%m-%d %H:%M:%S"), shlex.join(sys.argv))
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.write(self._descriptor, json.dumps(mine._asdict(), indent=4).encode() + b"\n")

    def _let_go(self, *, remove: bool) -> None:
        """Remove the file while it is still ours, where the system allows that, then the lock and empty folders."""
        remove = remove and self._is_there()
        descriptor, self._descriptor = self._descriptor, -1
        if remove and not platforms.keeps_open_files():
            _unlink(self.path)
        if descriptor >= 0:
            os.close(descriptor)
        if remove and platforms.keeps_open_files():
            _unlink(self.path)
        for folder in self._made:
            with contextlib.suppress(OSError):  # something else is in it
                folder.rmdir()


def keep(folder: Path) -> None:
    """Take a lock of this process anew if it was deleted, alone or with its folder. Does nothing without a lock.

    Whoever is to write calls this before. Raises RunLockedError: another process was faster, the folder is its own now.
    """
    lock = _mine.get(folder.absolute())
    if lock is not None:
        lock.keep()


class Held(NamedTuple):
    """State of a run's lock file, for a process that only looks at it."""

    owner: Owner | None  # None: not written yet
    held: bool | None  # whether that process still runs and holds it; None: it is on another machine


def look(folder: Path) -> Held | None:
    """Return the state of the lock of `folder`, without making a file or disturbing a run; None: there is no lock.

    Only where the process that is named lives here is the lock itself tried: a run that starts at this very moment
    would otherwise be told that its folder is taken. A file without a name belongs to a run that starts.
    """
    path = folder / NAME
    if not path.exists():
        return None
    owner = _read(path)
    if owner is None or owner.host != platform.node():
        return Held(owner, True if owner is None else None)
    return Held(owner, platforms.lives(owner.process) and _is_held(path))


def _is_held(path: Path) -> bool:
    try:
        platforms.try_lock(path)
    except FileNotFoundError:  # just removed
        return False
    except OSError:  # held, or not ours to open; or a file system without locks, where the process that lives counts
        return path.exists()
    return False


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):  # the run is over; a file that resists is taken over by the next one
        path.unlink()


def _take(path: Path) -> int:
    """Return a descriptor of the file at `path` with the system's lock on it. Raises RunLockedError or OSError."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _lock(descriptor):
                raise RunLockedError(_busy_text(path))
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the owner before removed the file between our two calls: a lock on nothing


def _lock(descriptor: int) -> bool:
    """Lock a file and return whether nobody else holds it. On a file system without locks, warn and return True."""
    try:
        platforms.lock(descriptor)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        _log.warning("this file system has no locks (%s): two runs at once in one folder are not noticed.", error)
    return True


def _busy_text(path: Path) -> str:
    deadline = time.monotonic() + _READ_SECONDS
    while (owner := _read(path)) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    who = "a process that has not told its name" if owner is None else str(owner)
    return f"{path.parent} is written by another run ({who}). Choose another --run-id, or end that run first."


def _read(path: Path) -> Owner | None:
    """Read the owner in the file; None if it is not (yet) written whole."""
    try:
        written = json.loads(read_regular(path).decode("utf-8"))
        owner = Owner(**{name: written[name] for name in Owner._fields})
        return owner if type(owner.process) is int and owner.process > 0 else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
