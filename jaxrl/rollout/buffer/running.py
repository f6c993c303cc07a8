"""The states of a buffer that belong to running episodes, counted on the host. Numpy only."""

from __future__ import annotations

import numpy as np

from jaxrl.rollout.booking.occupants import fit
from jaxrl.rollout.booking.records import Ending, RowsMessage
from jaxrl.rollout.buffer.pages import Pages


class RunningEpisodes:
    """Begin of each row's running episode in its page, and the number of its finished decisions.

    An episode of a row is over when its last living member has ended: when a message brings only endings for the row,
    and none of its decisions is pending any more.
    """

    def __init__(self) -> None:
        self.begin = np.zeros(0, np.int32)  # [B], index in the page; replaced, never written to: programs read it
        self.complete = 0  # finished decisions of episodes that are over, since the last `taken`
        self._finished = np.zeros(0, np.int64)  # [B], of the running episode
        self._open = np.zeros((0, 0), bool)  # [B, A], a decision is pending

    def note(self, steps: RowsMessage, pages: Pages, left_out: np.ndarray | None = None) -> None:
        """Count one message that `pages` has counted; `left_out`: bool [B, A], decisions that are not learned from."""
        self.fit(*steps.deciding.shape)
        arrived = steps.ending != Ending.OPEN
        self._open &= ~arrived
        counted = arrived & (steps.ending != Ending.DROPPED)
        self._finished += (counted if left_out is None else counted & ~left_out).sum(-1)
        goes_on = (steps.ending == Ending.CONTINUES).any(-1) | self._open.any(-1)
        over = arrived.any(-1) & ~goes_on
        if over.any():
            self.complete += int(self._finished[over].sum())
            self._finished[over] = 0
            following = pages.size - steps.deciding.any(-1)  # where the first state of the next one is
            self.begin = np.where(over, following, self.begin).astype(np.int32)
        self._open |= steps.deciding

    def length(self, pages: Pages) -> np.ndarray:
        """Return the number of states of the running episodes, int64 [B]."""
        return pages.size - self.begin

    def turned(self, turning: np.ndarray) -> None:
        """Note that the running episodes of these rows [B] have moved to the front of a page."""
        self.begin = np.where(turning, np.int32(0), self.begin)

    def cut(self, rows: np.ndarray) -> None:
        """Count the decisions of these rows [B] as complete: their episodes went on in another page without them."""
        self.complete += int(self._finished[rows].sum())
        self._finished[rows] = 0
        self.begin = np.where(rows, np.int32(0), self.begin)

    def shortened(self, states: np.ndarray) -> int:
        """Note that pages were cut, and the first `states` [B] of each row are in another page now.

        Returns the number of running episodes that were cut by that.
        """
        cut = states > self.begin
        self.begin = np.maximum(self.begin - states, 0).astype(np.int32)
        return int(cut.sum())

    def taken(self, pages: Pages) -> None:
        """Reset after finished episodes were taken: `pages` holds only the running episodes from now on."""
        pages.taken(self.length(pages))
        self.begin = np.zeros_like(self.begin)
        self.complete = 0

    def forget(self) -> None:
        """Reset after all states but the newest of each row were taken."""
        self.begin = np.zeros_like(self.begin)
        self._finished[:] = 0
        self.complete = 0

    def fit(self, rows: int, members: int) -> None:
        """Grow to `rows` and `members`."""
        if self._open.shape != (rows, members):
            more = (0, rows - len(self.begin))
            self.begin, self._finished = np.pad(self.begin, more), np.pad(self._finished, more)
            self._open = fit(self._open, rows, members)
