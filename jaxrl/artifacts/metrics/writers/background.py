"""A writer that may have to wait for a network, in a thread of its own: the training neither waits for it nor ends."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrl.artifacts.metrics.statistics import Summary

THREAD = "jaxrl-record-"
"""Prefix of the names of these threads."""
ADVICE = "metrics.csv and the event files have everything."
"""Advice about lost statistics if nothing more is to be done."""
CLOSE_SECONDS = 30.0
"""Seconds that the end of a run waits for calls that are not sent yet."""
_LONGEST = 1000  # calls that wait to be sent; a run of one summary a second fills it in a quarter of an hour
_log = logging.getLogger(__name__)


class BackgroundWriter:
    """A `StatisticsWriter` that passes every call to the writer that `make` returns, in order, from a thread.

    A failed call is reported once in a run, and lost; the next call is tried all the same, and a failed `make` again.

    Args:
      service: its name, for messages.
      advice: what to do about lost statistics, one sentence.
      told: services whose fault was reported; shared by the writers of a run.
    """

    def __init__(
        self, service: str, make: Callable[[], Any], advice: str, told: set[str], close_seconds: float = CLOSE_SECONDS
    ) -> None:
        self._service, self._make, self._advice, self._told = service, make, advice, told
        self._close_seconds = close_seconds
        self._writer: Any = None
        self._calls: queue.Queue[Callable[[Any], None] | None] = queue.Queue(_LONGEST)
        self._over = threading.Event()  # no call comes after those in the queue
        self._hung_up: float | None = None
        # a daemon: a service that does not answer must not keep Python from ending
        self._thread = threading.Thread(target=self._run, name=f"{THREAD}{service}", daemon=True)
        self._thread.start()

    def hyperparameters(self, settings: Mapping[str, Any], step: int) -> None:
        self.put(lambda writer: writer.hyperparameters(settings, step))

    def summaries(self, step: int, summaries: Mapping[str, Summary]) -> None:
        self.put(lambda writer: writer.summaries(step, summaries))

    def images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        self.put(lambda writer: writer.images(step, images))

    def hang_up(self) -> None:
        """Accept no more calls; `close` waits. All writers are told first, so that they wait side by side."""
        if self._hung_up is None:
            self._hung_up = time.monotonic()
            self.put(lambda writer: writer.close())
            self._over.set()
            with contextlib.suppress(queue.Full):  # then the thread sees `_over` before it would wait
                self._calls.put_nowait(None)

    def close(self) -> None:
        """Wait until queued calls are sent, within bounds that begin with `hang_up`; may be called twice."""
        self.hang_up()
        assert self._hung_up is not None
        self._thread.join(max(self._close_seconds - (time.monotonic() - self._hung_up), 0.0))
        if self._thread.is_alive():
            self._warn(f"it has not taken everything within {self._close_seconds:g} s")

    def put(self, call: Callable[[Any], None]) -> None:
        """Queue any call of the object that `make` returns, which need be no StatisticsWriter then."""
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._warn(f"it has not answered for {_LONGEST} summaries")

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                if self._writer is None:
                    self._writer = self._make()
                call(self._writer)
            except Exception as error:  # whatever a service's own library raises
                text = " ".join(str(error).split()) or "no reason given"
                self._warn(f"{type(error).__name__}: {text[:300]}")

    def _next(self) -> Callable[[Any], None] | None:
        """Wait for the next call and return it; None after the last."""
        return None if self._over.is_set() and self._calls.empty() else self._calls.get()

    def _warn(self, what: str) -> None:
        if self._service not in self._told:
            self._told.add(self._service)
            _log.warning("%s: %s. The run goes on without it. %s", self._service, what.rstrip("."), self._advice)
