"""What reward signals have paid an agent from the first decision of its episode to the last, in the host loop. Numpy.

A row is a stream of states over its pages and from one update to the next, so what an episode was paid before the
newest update is kept by row and member until it ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrl.training.signal_rewards import PAID, Paid


class EpisodeSums:
    """Sums of episodes under way, and of those that have ended since the last `take`. Letters: P pages, B rows."""

    def __init__(self) -> None:
        self._open: dict[str, np.ndarray] = {}  # by signal, float64 [B, A]
        self._ended: dict[str, list[float]] = defaultdict(list)

    def add(self, metrics: Mapping[str, Any], rows: np.ndarray) -> None:
        """What was paid in one rollout [T, P, A]: `PAID` of its metrics, if it is there.

        rows: int64 [at most P], the row whose stream lies in each page, pages of one row in the order of time.
        """
        if PAID not in metrics:
            return
        told: Paid = jax.tree.map(lambda x: np.asarray(x)[:, : len(rows)], metrics[PAID])
        for name, reward in told.rewards.items():
            before, shape = self._open.get(name, np.zeros((0, 0))), (int(rows.max()) + 1, reward.shape[2])
            room = [(0, max(new - old, 0)) for old, new in zip(before.shape, shape, strict=True)]
            self._open[name] = np.pad(before, room)
        for pages in _each_row_once(rows):
            for t in range(len(told.acted)):
                self._step(told, t, pages, rows[pages])

    def take(self) -> dict[str, list[float]]:
        """By signal, the sums of the episodes that have ended; afterwards there are none."""
        taken, self._ended = dict(self._ended), defaultdict(list)
        return taken

    def _step(self, paid: Paid, t: int, pages: np.ndarray, rows: np.ndarray) -> None:
        acted, begin, over = (x[t, pages] for x in (paid.acted, paid.begin, paid.over))
        if not acted.any() and not begin.any():
            return
        for name, reward in paid.rewards.items():
            members = slice(0, acted.shape[1])
            now = np.where(begin, 0.0, self._open[name][rows, members]) + np.where(acted, reward[t, pages], 0.0)
            self._ended[name] += now[over].tolist()
            self._open[name][rows, members] = now  # another episode begins with its first decision


def _each_row_once(rows: np.ndarray) -> list[np.ndarray]:
    """Indices of pages: the first page of every row, then the second of those that have one, and so on."""
    found, left = [], np.arange(len(rows))
    while len(left):
        first = np.sort(np.unique(rows[left], return_index=True)[1])
        found.append(left[first])
        left = np.delete(left, first)
    return found
