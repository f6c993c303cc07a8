"""Which workers of a pool owe a result, and of whom there is something to hear.

What tells of a worker is registered once for its process. Asking all of them whenever one has answered would make a
turn of N workers cost N² questions.
"""

from __future__ import annotations

import time

from jaxrl.envs.workers.handles import WorkerHandle
from jaxrl.envs.workers.supervisor import Supervisor
from jaxrl.platforms import Waiting

_SLICE_SECONDS = 0.5  # longest wait between two looks at everybody


class Owing:
    """Workers that owe a result: `follow` is told whenever one was asked or heard."""

    def __init__(self) -> None:
        self._workers: dict[int, Supervisor] = {}  # those that owe, by number
        self._retiring: dict[int, Supervisor] = {}  # those of them whose process ends
        self._handles: dict[int, WorkerHandle] = {}  # whose waitables are registered
        self._items: dict[int, list[int]] = {}  # what they are registered as
        self._of_item: dict[int, Supervisor] = {}
        self._waiting = Waiting()
        self._all_heard = 0.0

    def __len__(self) -> int:
        return len(self._workers)

    def follow(self, worker: Supervisor) -> None:
        """It may owe a result now, or none any more; its process may be another one, or end."""
        number = worker.number
        if not worker.owes:  # it stays registered: the next result will come from the same place
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
        """Those of whom there is something to hear already; everybody now and then, so that who hangs is noticed."""
        if not self._waiting or time.monotonic() - self._all_heard > _SLICE_SECONDS:
            return self._all()
        return self._ordered({**self._retiring, **self._heard(0.0)})

    def in_a_moment(self) -> list[Supervisor]:
        """Those of whom there is something to hear, waited for a moment, or else everybody."""
        pauses = [worker.retirement.pause() for worker in self._retiring.values() if worker.retirement is not None]
        seconds = min([_SLICE_SECONDS, *pauses])
        if pauses and not self._waiting:
            time.sleep(seconds)
        return self._ordered(self._heard(seconds)) or self._all()

    def _all(self) -> list[Supervisor]:
        self._all_heard = time.monotonic()
        return self._ordered(self._workers)

    def _heard(self, seconds: float) -> dict[int, Supervisor]:
        found = {}
        for item in self._waiting.wait(seconds):
            worker = self._of_item.get(item)
            if worker is not None and worker.number in self._workers:
                found[worker.number] = worker
            elif worker is not None:  # it has ended, and owes nothing: whoever asks it next is told
                self._forget(worker.number)
        return found

    def _forget(self, number: int) -> None:
        self._handles.pop(number, None)
        for item in self._items.pop(number, ()):
            self._waiting.remove(item)
            del self._of_item[item]

    @staticmethod
    def _ordered(workers: dict[int, Supervisor]) -> list[Supervisor]:
        return [workers[number] for number in sorted(workers)]
