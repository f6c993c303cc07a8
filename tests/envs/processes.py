"""Helpers for tests that watch real processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil


def is_gone(pid: int) -> bool:
    """A process that has ended; nobody may be there to collect its exit code."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def comes_true(condition: Callable[[], bool], seconds: float = 8.0) -> bool:
    """Whether the condition becomes true in time."""
    deadline = time.monotonic() + seconds
    while not (true := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return true


def noted_pids(folder: Path, what: str = "player") -> list[int]:
    """Process ids that environments have written into files."""
    return [int(path.read_text()) for path in sorted(folder.glob(f"{what}*"))]


def descendants() -> set[int]:
    """All living processes below this one, less the tracker that `multiprocessing` keeps until we exit."""
    living = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if "resource_tracker" not in " ".join(process.cmdline()) and not is_gone(process.pid):
                living.add(process.pid)
        except psutil.NoSuchProcess:
            continue
    return living
