"""Atomic writes: files and folders are written beside their place and replace it when they are complete.

Names of unfinished ones tell the process that writes them, so that only those of dead processes are removed.

    Walker-500.4711-myhost.partial     process 4711 on myhost writes what will be Walker-500

A name without an owner is one of jaxrl 0.2.0 or older, whose runs are over.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from jaxrl import platforms

FILE = ".tmp"
PARTIAL = ".partial"
"""Ending of a checkpoint's folder that is not complete, or is being removed."""
OLD = ".old"
"""Ending of a complete checkpoint that gives way to a new one of the same step."""
KINDS = (FILE, PARTIAL, OLD)

ELSEWHERE_SECONDS = 3600.0
"""Age at which an untouched file of another machine counts as abandoned: a save takes seconds."""
_REPLACE_SECONDS = 2.0  # Windows: a virus scanner or an open editor holds a file for moments, rarely longer
_OWNER = re.compile(r"\.(\d+)-([A-Za-z0-9_-]*)(\.[a-z]+)$")
_LONGEST_HOST = 40


@contextlib.contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file whose content replaces `path` atomically: beside it, flushed to disk, then renamed over it.

    Creates the parent folder. `path` stays as it was where something is raised meanwhile. Raises OSError when the disk
    is full or the folder cannot be written.
    """
    temporary = beside(path, FILE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        replace(temporary, path)
        platforms.sync_folder(path.parent)
    finally:
        discard(temporary)


def replace(source: Path, target: Path) -> None:
    """Call os.replace, waiting up to two seconds for Windows to let go of the target; then raise its OSError."""
    deadline = time.monotonic() + _REPLACE_SECONDS
    while True:
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if not platforms.keeps_open_files() or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def beside(path: Path, kind: str) -> Path:
    """Return the name under which this process writes what will be `path`; `kind` is one of KINDS."""
    return path.with_name(f"{path.name}.{os.getpid()}-{_host()}{kind}")


def target(path: Path) -> Path:
    """Return the final path of `path`, a name of `beside` or of an older version."""
    owner = _OWNER.search(path.name)
    return path.with_name(path.name[: owner.start()] if owner else path.name.rpartition(".")[0])


def abandoned(path: Path) -> bool:
    """Return whether nobody writes `path` any more; a name of this very process counts, as its write has failed.

    Of a process on another machine only the time tells, as everywhere on Windows, where a process cannot be asked.
    """
    owner = _OWNER.search(path.name)
    if owner is None or (int(owner[1]) == os.getpid() and owner[2] == _host()):
        return True
    if owner[2] != _host() or not platforms.can_ask_for_processes():
        return _untouched(path)
    return not platforms.lives(int(owner[1]))


def remove(folder: Path) -> list[str]:
    """Remove abandoned files and folders in `folder` itself; return their names, in order. Those that resist stay."""
    leftovers = sorted(path for kind in KINDS for path in folder.glob(f"*{kind}") if abandoned(path))
    for path in leftovers:
        discard(path)
    return [path.name for path in leftovers if not os.path.lexists(path)]


def discard(path: Path) -> None:
    """Remove a file, link or folder if it is there; one that resists stays."""
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", socket.gethostname())[:_LONGEST_HOST]


def _untouched(path: Path) -> bool:
    try:
        newest = max(item.stat().st_mtime for item in (path, *path.rglob("*")))
    except OSError:  # it goes on changing
        return False
    return time.time() - newest > ELSEWHERE_SECONDS
