"""What came from the workers of a pool and nobody has taken yet: results, and losses of processes."""

from __future__ import annotations

from jaxrl.envs.workers.restarts import Loss
from jaxrl.types import EnvMessage


class Inbox:
    """At most one result of each worker, and every loss.

    A result that is dropped belongs to episodes that are no more. Behaviors that it shows for the first time, and
    statistics, are kept: they come with the worker's next result.
    """

    def __init__(self) -> None:
        self._results: dict[int, EnvMessage] = {}  # by worker, in the order in which they came
        self._dropped: dict[int, EnvMessage] = {}
        self._losses: list[Loss] = []

    def __len__(self) -> int:
        """Number of results."""
        return len(self._results)

    def __contains__(self, worker: int) -> bool:
        """Whether a result of this worker is there."""
        return worker in self._results

    def put(self, result: EnvMessage) -> None:
        """A result has come."""
        dropped = self._dropped.pop(result.worker, None)
        if dropped is not None:
            specs = {**dropped.new_specs, **result.new_specs}
            result = result._replace(new_specs=specs, stats=(*dropped.stats, *result.stats))
        self._results[result.worker] = result

    def take(self) -> list[EnvMessage]:
        """All results, as they came."""
        results = list(self._results.values())
        self._results.clear()
        return results

    def drop(self) -> None:
        """All episodes end: every result is dropped."""
        self._dropped, self._results = self._results, {}

    def lose(self, loss: Loss) -> None:
        """A process or a copy is lost; a result of a process's agents, which are no more, is dropped."""
        self._losses.append(loss)
        if loss.agents is None and loss.worker in self._results:
            self._dropped[loss.worker] = self._results.pop(loss.worker)

    def take_losses(self) -> list[Loss]:
        """All losses, in the order in which they were noticed."""
        losses, self._losses = self._losses, []
        return losses
