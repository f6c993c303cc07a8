"""Ctrl-C while nothing is started or written yet: the program ends there and then, without a traceback."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Inside the block SIGINT and SIGTERM end the process with 130 and 143.

    KeyboardInterrupt would be raised in the middle of an import, where some code swallows it. A handler that somebody
    else has set stays, as does a signal that is ignored; outside the main thread nothing changes.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    old = {}
    if threading.current_thread() is threading.main_thread():
        old = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}
    for number in old:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def leaving_tidily() -> Iterator[None]:
    """Inside the block SIGTERM and SIGHUP raise SystemExit (143, 129), so that what was begun is taken back."""
    names = (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))  # no SIGHUP on Windows
    main = threading.current_thread() is threading.main_thread()
    old = {number: signal.getsignal(number) for number in names if main}
    for number in [number for number, handler in old.items() if handler is signal.SIG_DFL]:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _end(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # what is taken back is taken back whole
    raise SystemExit(128 + number)


def _leave(number: int, frame: object) -> None:
    os._exit(128 + number)
