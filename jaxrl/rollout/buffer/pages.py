"""The host's copy of a trajectory buffer's pages: the page that each row writes to, and its size. Numpy only."""

from __future__ import annotations

import numpy as np

from jaxrl.rollout.booking.records import RowsMessage

MESSAGE = 2
"""States that one message may add to a row: the final one of a team and the first one of the next."""


class Pages:
    """B rows in pages of T states. All pages below `given` are in use; the buffer may have room for more."""

    def __init__(self, capacity: int, rows: int) -> None:
        self.capacity = capacity  # T
        self.size = np.zeros(rows, np.int64)  # [B], states in the page of each row
        self.page = np.arange(rows)  # [B]
        self.rows = np.arange(rows)  # [given], the row that has written each page
        self.given = rows

    def append(self, steps: RowsMessage) -> None:
        """Count the states of a message that was added."""
        self.size += steps.deciding.any(-1)
        if np.count_nonzero(steps.present[0]):  # seldom
            self.size += steps.present[0].any(-1)

    @property
    def scarce(self) -> bool:
        """True if any row has no room left for another message."""
        return int(self.size.max()) + MESSAGE > self.capacity

    def full(self, steps: RowsMessage) -> np.ndarray:
        """Return the rows of this message that have no room left for it, bool [B]."""
        return (steps.present.any((0, 2)) | steps.deciding.any(-1)) & (self.size + MESSAGE > self.capacity)

    def turn(self, turning: np.ndarray, waiting: np.ndarray) -> np.ndarray:
        """Move rows in `turning` [B] to fresh pages with their last `waiting` [B] states (True: the newest one).

        Returns the page of each row from now on, int64 [B].
        """
        count = int(turning.sum())
        self.page[turning] = np.arange(self.given, self.given + count)
        self.rows = np.append(self.rows, np.flatnonzero(turning))
        self.given += count
        self.size[turning] = waiting[turning]
        return self.page

    def grow(self, rows: int) -> np.ndarray:
        """Add a fresh page for each new row up to `rows`. Return their numbers."""
        more = rows - len(self.page)
        fresh = np.arange(self.given, self.given + more)
        self.rows = np.append(self.rows, len(self.page) + np.arange(more))
        self.page = np.concatenate([self.page, fresh])
        self.size = np.pad(self.size, (0, more))
        self.given += more
        return fresh

    def taken(self, waiting: np.ndarray) -> None:
        """Reset after a take that left `waiting` [B] states of each row (True: the newest one); row b has page b."""
        self.size[:] = waiting
        self.page, self.rows = np.arange(len(self.page)), np.arange(len(self.page))
        self.given = len(self.page)
