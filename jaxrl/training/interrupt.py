"""Signals in two steps: the first ends the run at the next safe point and saves, the second leaves at once.

Ctrl-C (SIGINT) asks for an orderly end: exit code 0. SIGTERM, which schedulers send before they kill, and SIGHUP, which
a closed terminal sends, save in the same way; their exit codes 143 and 129 say that the run was ended from outside.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import FrameType
from typing import Any, NoReturn, TypeVar

from jaxrl import platforms
from jaxrl.artifacts.metrics.writers.background import THREAD

log = logging.getLogger(__name__)

TELL_SECONDS = 60.0
"""Interval between log lines about a wait."""
EXIT_CODE = 130  # as a shell reports a program that was ended by Ctrl-C
SAME_SECONDS = 0.5
"""Signals within this time count once: launchers pass Ctrl-C on to a program that has it from the terminal already."""

_FIRST = (
    "\nInterrupted: ending at the next safe point, where what was learned is saved. Once more leaves at once and saves "
    "nothing.\n"
)
_SECOND = "\nSecond interrupt: leaving at once, nothing more is saved.\n"


Result = TypeVar("Result")


class Interrupt:
    """Context manager that owns SIGINT, SIGTERM and SIGHUP while a run goes on.

    A training step must not be interrupted: buffers are donated to compiled programs while they run. So the first
    signal only sets `requested`, except inside `with interrupt.waiting():`, where no program runs and KeyboardInterrupt
    is raised at once. A thread notices the second signal, because Python runs no signal handler while the main thread
    compiles or computes. Outside the main thread no handlers are installed, and a SIGHUP that is ignored (nohup) stays
    ignored.
    """

    def __init__(self) -> None:
        self.requested = False
        self.exit_code = 0
        """Exit code of the process after the run: 0, also after Ctrl-C; 143 after SIGTERM, 129 after SIGHUP."""
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
            for number in platforms.END_SIGNALS:
                if number != platforms.HANGUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._old[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._old.clear()
        if self._bytes is not None:
            signal.set_wakeup_fd(self._old_descriptor)
            self._bytes.close()  # ends the thread, which closes the other side
            self._bytes = None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let signals raise KeyboardInterrupt inside the block, which only waits."""
        if self.requested:
            raise KeyboardInterrupt
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        first, self.requested = not self.requested, True
        if first:
            self.exit_code = 0 if number == signal.SIGINT else 128 + number
        if first and self._waiting:
            raise KeyboardInterrupt


def leave_if_busy(exit_code: int = 0) -> None:
    """End the process with this exit code if Python would wait for a thread of jaxrl's; else do nothing.

    Call it at the end of an interrupted run that has saved everything. Such a thread compiles: XLA cannot be stopped,
    may take minutes, and crashes when the process ends around it.
    """
    if any(thread.name.startswith("jaxrl-") and not thread.daemon for thread in threading.enumerate()):
        leave(exit_code)


def leave_if_unsent(exit_code: int = 0) -> None:
    """End the process with this exit code if a service has not taken all statistics in time; else do nothing.

    Call it at the end of a run that has saved everything: W&B's library would wait for its network once more.
    """
    if any(thread.name.startswith(THREAD) for thread in threading.enumerate()):
        leave(exit_code)


def leave(exit_code: int) -> NoReturn:
    """End the process at once, after flushing logs and streams."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)


def in_thread(interrupt: Interrupt, work: Callable[[], Result]) -> Result:
    """Run `work`, which compiles and cannot be stopped, in a thread; return its result or raise its error.

    Raises KeyboardInterrupt at once after a signal; the thread then goes on until `leave_if_busy`.
    """
    thread = ThreadPoolExecutor(1, "jaxrl-compile")
    future = thread.submit(work)
    thread.shutdown(wait=False)
    with interrupt.waiting():
        await_telling(future, lambda: "the program of this run to be compiled")
    return future.result()


def await_telling(future: Future[Any], what: Callable[[], str]) -> None:
    """Wait for a future without limit, as XLA cannot be stopped; log every minute for `what`."""
    begun = logged = time.monotonic()
    while not future.done():
        wait((future,), 0.5)  # in slices: Windows notices no interrupt before the end of one
        now = time.monotonic()
        if now - logged >= TELL_SECONDS:
            logged = now
            log.warning("Waiting for %s, for %.0f s so far.", what(), now - begun)


def _watch(signals: socket.socket) -> None:
    """Read one byte per signal; the interpreter writes it even while the main thread is busy."""
    first = None
    with signals:
        while arrived := signals.recv(1):
            if arrived[0] not in platforms.END_SIGNALS:
                continue
            if arrived[0] == platforms.HANGUP:
                _let_terminal_go()
            if first is None:
                first = time.monotonic()
                _say(_FIRST)
            elif time.monotonic() - first > SAME_SECONDS:
                _say(_SECOND)
                os._exit(128 + arrived[0])  # workers notice the closed socket and end with their players


def _let_terminal_go() -> None:
    """Redirect output from a closed terminal to the null device: writing to it would raise errors while saving."""
    with open(os.devnull, "wb") as nowhere:
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):
                if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                    os.dup2(nowhere.fileno(), descriptor)


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the stream may be closed: leaving matters more
        sys.stderr.write(text)
        sys.stderr.flush()
