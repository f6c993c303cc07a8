"""Ctrl-C in two steps: the first ends the run at the next safe point and saves, the second leaves at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType, TracebackType

EXIT_CODE = 130  # as a shell reports a program that was ended by Ctrl-C


class Interrupt:
    """Context manager that owns SIGINT (and SIGTERM, which means the same) while a run goes on.

    A training step must not be torn apart: buffers are donated to compiled programs while they run. So the first signal
    only sets `requested`, except inside `with interrupt.waiting():`, where nothing is under way and KeyboardInterrupt
    is raised right there. Outside the main thread nothing is installed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._waiting = False
        self._old: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._old.clear()

    def waiting(self) -> _Waiting:
        """The block only waits: a signal may raise KeyboardInterrupt inside it."""
        return _Waiting(self)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            sys.stderr.write("\nSecond interrupt: leaving at once, nothing more is saved.\n")
            sys.stderr.flush()
            os._exit(EXIT_CODE)  # workers notice the closed pipe and end with their players
        self.requested = True
        if self._waiting:
            raise KeyboardInterrupt


class _Waiting:
    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt

    def __enter__(self) -> None:
        if self._interrupt.requested:
            raise KeyboardInterrupt
        self._interrupt._waiting = True

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._interrupt._waiting = False
