"""Ends the program at once on Ctrl-C while nothing is started or written yet, without a traceback."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from jaxrl import platforms


def leaving_at_once() -> AbstractContextManager[None]:
    """Let SIGINT and SIGTERM end the process with 130 and 143 inside the block.

    KeyboardInterrupt would be raised in the middle of an import, where some code swallows it.
    """
    return _handled(_leave, {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL})


def leaving_tidily() -> AbstractContextManager[None]:
    """Let SIGTERM and SIGHUP raise SystemExit (143, 129) inside the block, so that unfinished work is cleaned up."""
    names = [number for number in platforms.END_SIGNALS if number != signal.SIGINT]
    return _handled(_end, dict.fromkeys(names, signal.SIG_DFL))


@contextmanager
def _handled(handler: Callable[[int, object], None], usual: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Handle the signals inside the block, in the main thread; leave handlers of others and ignored signals alone."""
    main = threading.current_thread() is threading.main_thread()
    old = {number: before for number, before in usual.items() if main and signal.getsignal(number) is before}
    for number in old:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)


def _end(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # so that the clean-up is not interrupted
    raise SystemExit(128 + number)


def _leave(number: int, frame: object) -> None:
    os._exit(128 + number)
