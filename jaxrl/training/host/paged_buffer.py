"""Paged buffer of an acting policy's trajectories: slots, pages and arrays, and how they grow with its agents.

The slots grow by themselves; pages and buffer follow. For every new shape of the buffer its programs are compiled
once more, so shapes change rarely, and there is room to spare.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxrl.rollout.booking.records import RowsMessage
from jaxrl.rollout.booking.slots import Slots
from jaxrl.rollout.buffer.pages import MESSAGE, Pages
from jaxrl.rollout.buffer.running import RunningEpisodes
from jaxrl.settings import BehaviorSettings
from jaxrl.training.host.decide import ActorPrograms

log = logging.getLogger(__name__)

SLACK = 1.5
"""Ratio of the room of all pages to the wanted decisions, as members may be absent and rows uneven."""
MOST = 16
"""Largest such ratio; a buffer that would need more is learned from before it is full."""


def capacity(decisions: int, rows: int, members: int) -> int:
    """Compute T, the states of a page, so that one page per row holds `decisions` with slack, and one message."""
    return math.ceil(SLACK * decisions / (rows * members)) + MESSAGE + 1


UNTRAINED = 1024
"""Decisions that are stored without learning from them; statistics are computed from them."""


class Wanted(NamedTuple):
    """Amount and form of the data that a buffer is to hold."""

    keeps: int  # agent decisions, of all behaviors of a team
    env_steps: int | None = None  # messages of each worker; None: `keeps` counts
    max_length: int | None = None  # decisions after which an agent's episode is interrupted; None: never
    whole_episodes_only: bool = False  # running episodes stay at each update, and move to a fresh page as a whole


def wanted_of(settings: BehaviorSettings, collect_size: int, *, areas: int = 1, learned: bool = True) -> Wanted:
    """Return the `Wanted` that a behavior's settings ask for.

    Args:
      areas: number of areas in all workers; they share `collect_size` where it counts environment steps.
      learned: whether the data is learned from; otherwise it is dropped from time to time.
    """
    if not learned:
        return Wanted(min(collect_size, UNTRAINED), max_length=settings.max_episode_length)
    return Wanted(
        keeps=collect_size,
        env_steps=-(-collect_size // areas) if settings.count_by == "env_steps" else None,
        max_length=settings.max_episode_length,
        whole_episodes_only=settings.batch_mode == "complete_episodes",
    )


class PagedBuffer:
    """Rows for the agents in `slots`, and a page of the buffer for each.

    Args:
      allocate: (states of a page) → an empty buffer with one page for each row.
      cut: called with the number of running episodes that could not stay whole (perhaps 0), and the states of a page.

    The buffer is a `TrajectoryState`, or `KindTrajectories` for teams of several behaviors.
    """

    def __init__(
        self,
        name: str,
        slots: Slots,
        programs: ActorPrograms,
        allocate: Callable[[int], Any],
        wanted: Wanted,
        *,
        cut: Callable[[int, int], None],
    ) -> None:
        self.slots = slots
        self.running = RunningEpisodes() if wanted.whole_episodes_only else None
        self.full = False  # there is no room for another message, and the buffer must not grow
        self._name = name
        self._programs = programs
        self._wanted = wanted
        self._cut = cut
        self.pages = Pages(capacity(self.keeps, slots.rows, slots.members), slots.rows)
        self.buffer = allocate(self.pages.capacity)

    @property
    def keeps(self) -> int:
        """Agent decisions that the buffer is to hold; an upper limit where environment steps are counted."""
        if self._wanted.env_steps is None:
            return self._wanted.keeps
        return self._wanted.env_steps * self.slots.rows * self.slots.members

    def follow(self) -> bool:
        """Resize the buffer to the slots; return whether these have grown, so that programs are compiled once more.

        More rows need fewer states each. Pages that already hold too many states keep their length, unless pages of
        that length for every row would take far more than the needed room.
        """
        slots, pages, (_, _, members) = self.slots, self.pages, self.buffer.shape
        rows = len(pages.page)
        if (slots.rows, slots.members) == (rows, members):
            return False
        log.info(
            "%s: room for %d teams of %d agents (was %d of %d); the programs are compiled once more.",
            self._name, slots.rows, slots.members, rows, members,
        )  # fmt: skip
        fitting = capacity(self.keeps, slots.rows, slots.members)
        held = pages.capacity if pages.given > rows else int(pages.size.max()) + MESSAGE
        if held > fitting and slots.rows * pages.capacity > 2 * (slots.rows * fitting + pages.given * pages.capacity):
            self.buffer, self.pages = self._programs.repage(self.buffer, pages, capacity=fitting)
            if self.running is not None:
                self._cut(self.running.shortened(pages.size - self.pages.size), fitting)
            pages = self.pages
        elif held <= fitting:
            pages.capacity = fitting
        self._resize(pages.grow(slots.rows))
        if self.running is not None:  # pages may turn with this very message
            self.running.fit(slots.rows, slots.members)
        return True

    def turn(self, steps: RowsMessage, fresh: int) -> None:
        """Give fresh pages to rows without room for this message; the buffer holds `fresh` decisions of `keeps`."""
        pages = self.pages
        if not pages.scarce:  # nearly every message
            return
        turning = pages.full(steps)
        if turning.any() and self.running is not None:
            turning = self._turn_whole(self.running, turning, steps, fresh)
        if not turning.any():
            return
        waiting = np.asarray((self.buffer.open_at >= 0).any(-1))
        more = self._still_to_come(int(turning.sum()), fresh)
        page = pages.turn(turning, waiting)
        if pages.given > self.buffer.shape[1]:
            self._resize((), more)
        self.buffer = self._programs.turn(self.buffer, turning, page.astype(np.int32))
        self.full = self._too_large(pages=2 * pages.given)

    def append(self, steps: RowsMessage, left_out: np.ndarray | None) -> None:
        """Count a message that was added to the buffer; `left_out`: as `Ingested.left_out`."""
        self.pages.append(steps)
        if self.running is not None:
            self.running.note(steps, self.pages, left_out)

    def taken(self, buffer: Any) -> None:
        """Replace the buffer, after its data was taken for an update, by `buffer` of the same shapes."""
        self.buffer, self.full = buffer, False
        if self.running is None:
            self.pages.taken(self.slots.living)
        else:
            self.running.taken(self.pages)

    def discard(self) -> None:
        """Drop the collected data, running episodes too."""
        self.buffer, self.full = self._programs.discard(self.buffer), False
        self.pages.taken(self.slots.living)
        if self.running is not None:
            self.running.forget()

    def _turn_whole(self, running: RunningEpisodes, turning: np.ndarray, steps: RowsMessage, fresh: int) -> np.ndarray:
        """Give rows [B] fresh pages, longer ones if needed, and move their whole running episodes there.

        Returns the rows whose episode must be cut, because a page has no room for all of it.
        """
        pages, length = self.pages, running.length(self.pages)
        while (turning & (2 * (length + MESSAGE) > pages.capacity)).any() and not self._too_large(
            states=2 * pages.capacity
        ):
            pages.capacity *= 2
            turning = pages.full(steps)
        if pages.capacity != self.buffer.shape[0]:
            log.info(
                "%s: episodes are long, room for %d states of each row; the programs are compiled once more.",
                self._name, pages.capacity,
            )  # fmt: skip
            self._resize(())
        cut = turning & (length + MESSAGE > pages.capacity)
        moving = turning & ~cut
        if moving.any():
            begin, page = running.begin, pages.turn(moving, length)
            if pages.given > self.buffer.shape[1]:
                self._resize((), self._still_to_come(int(moving.sum()), fresh))
            self.buffer = self._programs.turn_whole(self.buffer, moving, page.astype(np.int32), begin)
            running.turned(moving)
        if cut.any():
            self._cut(int(cut.sum()), pages.capacity)
            running.cut(cut)
        self.full = self._too_large(pages=2 * pages.given) and running.complete > 0
        return cut

    def _still_to_come(self, turning: int, fresh: int) -> int:
        """Estimate how many more pages than the next one the `turning` rows will need until `keeps` is reached."""
        pages, room = self.pages, self.pages.capacity - MESSAGE
        states = (pages.given - len(pages.page)) * pages.capacity + int(pages.size.sum())
        rest = 1.1 * states * max(self.keeps / max(fresh, 1) - 1.0, 0.0)  # states of all rows
        share = turning * pages.capacity / states
        return turning * max(math.ceil(rest * share / (turning * room)) - 1, 0)

    def _too_large(self, *, states: int | None = None, pages: int | None = None) -> bool:
        """Return whether a buffer with so many states a page, or so many pages, would exceed `MOST`."""
        held_states, held_pages, members = self.buffer.shape
        cells = (states or held_states) * (pages or held_pages) * members
        return cells > MOST * capacity(self.keeps, 1, 1)

    def _resize(self, fresh: Any, more: int = 0) -> None:
        """Make room for all pages and `more`, as far as `MOST` allows; `fresh` are the pages of new rows."""
        pages, (_, room, _) = self.pages, self.buffer.shape
        more = max(more, pages.given // 2) if not len(fresh) else more  # few programs, some room to spare
        while more and self._too_large(pages=pages.given + more):
            more //= 2
        if pages.given > room:
            room = pages.given + more
            if not len(fresh):
                log.info(
                    "%s: rows are uneven, room for %d pages of %d states; the programs are compiled once more.",
                    self._name, room, pages.capacity,
                )  # fmt: skip
        sizes = {"capacity": pages.capacity, "pages": room, "members": self.slots.counts}
        self.buffer = self._programs.resize(self.buffer, **sizes, fresh=fresh)
