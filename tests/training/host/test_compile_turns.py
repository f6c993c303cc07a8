"""Compilations in turns: as many at a time as there are cores, the oldest first, but for the one that is waited for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from jaxrl.training.host.learner import _Turns
from tests.envs.processes import comes_true

CORES = os.cpu_count() or 1


def test_the_one_that_is_waited_for_is_next_and_what_is_given_up_is_not_made() -> None:
    turns, go, begun, made = _Turns(), threading.Event(), threading.Semaphore(0), list[str]()

    def blocking() -> None:
        begun.release()
        assert go.wait(10)

    def noting(name: str) -> Callable[[], int]:
        return lambda: made.append(name) or len(name)

    first = [turns.take(blocking) for _ in range(CORES)]
    assert all(begun.acquire(timeout=10) for _ in first)
    waiting = {name: turns.take(noting(name)) for name in ("a", "given up", "bb", "urgent")}
    assert not any(future.running() for future in waiting.values()), f"{CORES} are under way"
    turns.hurry(waiting["urgent"])
    assert waiting["given up"].cancel()
    go.set()
    assert [waiting[name].result(10) for name in ("urgent", "a", "bb")] == [6, 1, 2]
    assert sorted(made) == ["a", "bb", "urgent"] and made.index("urgent") < made.index("bb")
    assert comes_true(lambda: not any(thread.name == "jaxrl-compile" for thread in threading.enumerate()))


def test_an_error_belongs_to_whoever_waits_for_it_and_the_next_has_its_turn() -> None:
    turns = _Turns()
    fails, *others = [turns.take(lambda: 1 // 0), *(turns.take(lambda: 7) for _ in range(CORES + 1))]
    with pytest.raises(ZeroDivisionError):
        fails.result(10)
    assert [other.result(10) for other in others] == [7] * (CORES + 1)
