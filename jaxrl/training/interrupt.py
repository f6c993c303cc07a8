"""Ctrl-C in two steps: the first ends the run at the next safe point and saves, the second leaves at once."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType, TracebackType

EXIT_CODE = 130  # as a shell reports a program that was ended by Ctrl-C
SAME_SECONDS = 0.5
"""Signals so close together count once: launchers pass Ctrl-C on to a program that the terminal has told already."""

_FIRST = "\nInterrupted: ending at the next safe point, then saving. Once more leaves at once and saves nothing.\n"
_SECOND = "\nSecond interrupt: leaving at once, nothing more is saved.\n"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Context manager that owns SIGINT (and SIGTERM, which means the same) while a run goes on.

    A training step must not be torn apart: buffers are donated to compiled programs while they run. So the first signal
    only sets `requested`, except inside `with interrupt.waiting():`, where nothing is under way and KeyboardInterrupt
    is raised right there. The second is noticed by a thread, because Python runs no signal handler while the main
    thread compiles or computes. Outside the main thread nothing is installed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._waiting = False
        self._old: dict[int, object] = {}
        self._old_descriptor = -1
        self._bytes: socket.socket | None = None  # the interpreter writes one per signal

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            read, self._bytes = socket.socketpair()
            self._bytes.setblocking(False)
            self._old_descriptor = signal.set_wakeup_fd(self._bytes.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=_watch, args=(read,), daemon=True, name="jaxrl-interrupt").start()
            for number in _SIGNALS:
                self._old[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._old.clear()
        if self._bytes is not None:
            signal.set_wakeup_fd(self._old_descriptor)
            self._bytes.close()  # ends the thread, which closes the other side
            self._bytes = None

    def waiting(self) -> _Waiting:
        """The block only waits: a signal may raise KeyboardInterrupt inside it."""
        return _Waiting(self)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        first, self.requested = not self.requested, True
        if first and self._waiting:
            raise KeyboardInterrupt


def leave_if_busy() -> None:
    """End the process with exit code 0 if Python would wait for a thread of jaxrl's; else do nothing.

    For the last line of an interrupted run that has saved everything. Such a thread compiles: XLA cannot be stopped,
    may take minutes, and crashes when the process is torn down around it.
    """
    if any(thread.name.startswith("jaxrl-") and not thread.daemon for thread in threading.enumerate()):
        logging.shutdown()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)


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


def _watch(signals: socket.socket) -> None:
    """Read one byte per signal, which the interpreter writes whatever the main thread does."""
    first = None
    with signals:
        while arrived := signals.recv(1):
            if arrived[0] not in _SIGNALS:
                continue
            if first is None:
                first = time.monotonic()
                _say(_FIRST)
            elif time.monotonic() - first > SAME_SECONDS:
                _say(_SECOND)
                os._exit(EXIT_CODE)  # workers notice the closed socket and end with their players


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody listens any more: leaving matters more
        sys.stderr.write(text)
        sys.stderr.flush()
