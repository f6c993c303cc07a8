"""The end of one worker's process while the others go on: asked, terminated, killed, and never waited for."""

from __future__ import annotations

import time
from typing import Literal

from jaxrl.envs.workers.handles import WorkerHandle

_CLOSE_SECONDS = 10.0  # for a worker that closes its environment by itself, which takes less than 8 s
_TERMINATE_SECONDS = 4.0  # after SIGTERM a worker has 3 s for closing its environment
_MOMENT = 0.05
LONGEST_SECONDS = 60.0
"""From the beginning to the end of a process, at most, if nothing of the system keeps it."""


class Retirement:
    """A worker that has failed; another may take its place once `over`.

    Args:
        handle: of the old process. It is told to stop at once.
        hangs: it does not answer, so that asking it to stop would only lose time.
        pause: seconds from now before which `over` stays False.
    """

    def __init__(self, handle: WorkerHandle, *, hangs: bool, pause: float) -> None:
        now = time.monotonic()
        self._due = now + pause
        self._handle = handle
        terminate = now if hangs else now + _CLOSE_SECONDS
        self._steps: list[tuple[float, Literal["terminate", "kill"]]] = [
            (terminate, "terminate"),
            (terminate + _TERMINATE_SECONDS, "kill"),
        ]
        handle.hang_up()

    def over(self) -> bool:
        """Whether the process has ended and the wait is over; else ends it with more force if its time is up."""
        now = time.monotonic()
        if self._handle.has_ended():
            return now >= self._due
        if self._steps and now >= self._steps[0][0]:
            self._handle.force(self._steps.pop(0)[1])
        return False

    def pause(self) -> float:
        """Seconds after which to look again, if nothing happens before; a moment at least."""
        return max(self._due - time.monotonic(), _MOMENT)
