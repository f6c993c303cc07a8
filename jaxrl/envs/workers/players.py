"""Processes that environments start, and that must not outlive their worker however that ends.

A worker closes its player, but not after SIGKILL; then the player notices the broken connection and quits, unless it is
stopped or hangs. So workers tell the pool of them when they are ready, and it ends what is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

_PS_SECONDS = 5.0


class Player(NamedTuple):
    """The leader of a process group. Numbers of processes are used again: its birth tells it from a later one."""

    pid: int
    born: str


PLAYERS: ContextVar[tuple[Player, ...]] = ContextVar("players", default=())
"""Those of the worker in which this code runs, oldest first."""


def note(pid: int) -> None:
    """The worker has started this process, in a group of its own. Does nothing where there are no groups (Windows)."""
    born = _born(pid)
    if born is not None:
        PLAYERS.set((*PLAYERS.get(), Player(pid, born)))


def end(player: Player) -> bool:
    """Kill the group at once, also a stopped one; whether there was one left."""
    if _born(player.pid) != player.born:
        return False
    with suppress(ProcessLookupError, PermissionError):  # nobody is left
        os.killpg(player.pid, signal.SIGKILL)
    return True


def _born(pid: int) -> str | None:
    """When a process began, in words that differ from one process of a number to the next; None: there is none."""
    if not hasattr(os, "killpg"):
        return None
    with suppress(OSError):
        _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        return fields.split()[19]  # `starttime`, the 22nd of all fields: ticks since the machine started
    if Path("/proc/self/stat").exists():
        return None
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, timeout=_PS_SECONDS)
        return told.stdout.decode().strip() or None
    return None
