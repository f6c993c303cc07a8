"""Writers that talk to a network: what hangs or fails is left behind, and told once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from jaxrl.artifacts.metrics.statistics import Summary
from jaxrl.artifacts.metrics.writers import hang_up
from jaxrl.artifacts.metrics.writers.background import BackgroundWriter

ONE = {"a": Summary(value=1.0, mean=1.0, std=0.0, sum=1.0, count=1, histogram=None)}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    return caplog


class Service:
    """Notes what it is sent; waits for `gate` before each call, and fails at the steps in `broken`."""

    def __init__(self, *broken: int) -> None:
        self.sent: list[Any] = []
        self.gate = threading.Event()
        self.gate.set()
        self.broken = broken

    def hyperparameters(self, settings: Mapping[str, Any], step: int) -> None:
        self._take("settings", step)

    def summaries(self, step: int, summaries: Mapping[str, Summary]) -> None:
        self._take("summaries", step)

    def images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        self._take("images", step)

    def close(self) -> None:
        self._take("close", -1)

    def _take(self, what: str, step: int) -> None:
        self.gate.wait(60)
        if step in self.broken:
            raise ConnectionError(f"no route\n at step {step}")
        self.sent.append((what, step))


def test_everything_arrives_in_order(log: Any) -> None:
    service = Service()
    writer = BackgroundWriter("Service", lambda: service, "Advice.", set())
    writer.hyperparameters({}, 0)
    writer.summaries(1, ONE)
    writer.images(1, {})
    writer.close()
    writer.close()
    assert service.sent == [("settings", 0), ("summaries", 1), ("images", 1), ("close", -1)]
    assert not log.records


def test_what_fails_is_told_once_in_a_run_and_the_rest_is_sent(log: Any) -> None:
    service, other, told = Service(1, 2), Service(3), set()
    writers = [BackgroundWriter("Service", lambda made=made: made, "Advice.", told) for made in (service, other)]
    for writer in writers:  # one after the other: each has a thread of its own
        for step in (1, 2, 3):
            writer.summaries(step, ONE)
        writer.close()
    assert service.sent == [("summaries", 3), ("close", -1)]
    assert other.sent == [("summaries", 1), ("summaries", 2), ("close", -1)]
    (warning,) = log.messages
    assert warning == "Service: ConnectionError: no route at step 1. The run goes on without it. Advice."


def test_a_service_that_cannot_be_reached_at_first_is_tried_again(log: Any) -> None:
    service, tries = Service(), []

    def make() -> Service:
        tries.append(1)
        if len(tries) < 3:
            raise TimeoutError
        return service

    writer = BackgroundWriter("Service", make, "Advice.", set())
    for step in (1, 2, 3):
        writer.summaries(step, ONE)
    writer.close()
    assert service.sent == [("summaries", 3), ("close", -1)]
    assert log.messages == ["Service: TimeoutError: no reason given. The run goes on without it. Advice."]


def test_nobody_waits_for_one_that_hangs(log: Any) -> None:
    services = [Service() for _ in range(5)]
    told: set[str] = set()
    writers = [BackgroundWriter("Service", lambda made=made: made, "Advice.", told, 0.5) for made in services]
    for service in services:
        service.gate.clear()
    begun = time.monotonic()
    for step in range(2000):  # more than it remembers
        for writer in writers:
            writer.summaries(step, ONE)
    assert time.monotonic() - begun < 5.0
    hang_up(writers)
    begun = time.monotonic()
    for writer in writers:
        writer.close()
    assert time.monotonic() - begun < 1.5  # side by side, not one after the other
    assert len(log.messages) == 1 and "has not answered for 1000 summaries" in log.text
    for service in services:
        service.gate.set()  # the threads end


def test_the_end_is_noticed_where_nothing_more_fits(log: Any) -> None:
    service = Service()
    service.gate.clear()
    writer = BackgroundWriter("Service", lambda: service, "Advice.", set(), 20.0)
    for step in range(1500):
        writer.summaries(step, ONE)
    writer.hang_up()
    service.gate.set()
    begun = time.monotonic()
    writer.close()
    assert time.monotonic() - begun < 10.0 and len(service.sent) >= 1000
