"""Tracks workers with an outstanding request, and waits for the readable ones.

A worker's waitables are registered once for its process. Asking all workers whenever one has answered would cost N²
questions for N workers.
"""

from __future__ import annotations

import time

from jaxrl.envs.workers.handles import WorkerHandle
from jaxrl.envs.workers.supervisor import Supervisor
from jaxrl.platforms import Waiting

_SLICE_SECONDS = 0.5  # longest wait between two looks at all workers


class Owing:
    """Workers that owe a result: `follow` is called whenever one was asked or heard."""

    def __init__(self) -> None:
        self._workers: dict[int, Supervisor] = {}  # workers that owe a result, by number
        self._retiring: dict[int, Supervisor] = {}  # owing workers whose process ends
        self._handles: dict[int, WorkerHandle] = {}  # handles whose waitables are registered
        self._items: dict[int, list[int]] = {}  # numbers of the registered waitables
        self._of_item: dict[int, Supervisor] = {}
        self._waiting = Waiting()
        self._all_heard = 0.0

    def __len__(self) -> int:
        return len(self._workers)

    def follow(self, worker: Supervisor) -> None:
        """Update a worker that may owe a result now, or none any more; its process may be another one, or end."""
        number = worker.number
        if not worker.owes:  # it stays registered: the next result will come from there, too
            self._workers.pop(number, None)
            self._retiring.pop(number, None)
            return
        self._workers[number] = worker
        if worker.retirement is None:
            self._retiring.pop(number, None)
            if self._handles.get(number) is worker.handle:
                return
        else:
            self._retiring[number] = worker
        self._forget(number)
        self._handles[number] = worker.handle
        self._items[number] = [self._waiting.add(item) for item in worker.waitables()]
        self._of_item |= dict.fromkeys(self._items[number], worker)

    def at_once(self) -> list[Supervisor]:
        """Return workers that can be heard already; now and then all workers, so that hanging ones are noticed."""
        if not self._waiting or time.monotonic() - self._all_heard > _SLICE_SECONDS:
            return self._all()
        return self._ordered({**self._retiring, **self._heard(0.0)})

    def in_a_moment(self) -> list[Supervisor]:
        """Wait a moment for workers that can be heard, and return them, or else all workers."""
        pauses = [worker.retirement.pause() for worker in self._retiring.values() if worker.retirement is not None]
        seconds = min([_SLICE_SECONDS, *pauses])
        if pauses and not self._waiting:
            time.sleep(seconds)
        return self._ordered(self._heard(seconds)) or self._all()

    def _all(self) -> list[Supervisor]:
        self._all_heard = time.monotonic()
        return self._ordered(self._workers)

    def _heard(self, seconds: float) -> dict[int, Supervisor]:
        workers = {}
        for item in self._waiting.wait(seconds):
            worker = self._of_item.get(item)
            if worker is not None and worker.number in self._workers:
                workers[worker.number] = worker
            elif worker is not None:  # it has ended, and owes nothing: its next caller gets the error
                self._forget(worker.number)
        return workers

    def _forget(self, number: int) -> None:
        self._handles.pop(number, None)
        for item in self._items.pop(number, ()):
            self._waiting.remove(item)
            del self._of_item[item]

    @staticmethod
    def _ordered(workers: dict[int, Supervisor]) -> list[Supervisor]:
        return [workers[number] for number in sorted(workers)]
