"""Collect trajectories in a `PagedBuffer` while acting, and count the finished decisions.

An `ActingPolicy` acts for the agents of one behavior, a `TeamPolicy` for teams of several behaviors. Both book
messages, let the buffer follow, and decide and append in one compiled call. They know no learner, process or file.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.records import Ingested, RowsMessage
from jaxrl.rollout.booking.slots import Source
from jaxrl.settings import EnvironmentSettings
from jaxrl.training.host.paged_buffer import PagedBuffer, Wanted
from jaxrl.types import NOTHING, BehaviorMessage

log = logging.getLogger(__name__)

Watch = Callable[[RowsMessage], None]

USUAL = EnvironmentSettings()
CUT = (
    "%s: an episode is longer than the %d states that there is room for, and is learned from in pieces in spite of "
    "batch_mode: complete_episodes. Episodes may be endless: set max_episode_length, let the environment end them, or "
    "raise hyperparameters.buffer_size."
)
VANISHED = (
    "%s: %d agents have asked for nothing for long while others did, and newcomers need their room: they seem to have "
    "vanished without an ending. Their episodes are interrupted (env_settings.missing: carry), now and whenever there "
    "are so many again. Let agents that go end their episode (in Unity Agent.EndEpisode, EpisodeInterrupted). If they "
    "wait for their turn or an event, set env_settings.missing: truncate and env_settings.missing_after to more "
    "messages than the longest wait."
)
WAITED = (
    "%s: an agent that was taken for vanished is back after %d messages: it had waited, and its episode was "
    "interrupted (env_settings.missing: carry). From now on agents may be silent for twice as long. If some wait for "
    "longer, set env_settings.missing: truncate and env_settings.missing_after to more messages than the longest wait."
)


class Collector(ABC):
    """Acts, and stores the trajectories.

    Args:
      environment: says how to treat actions that the environment took itself, and agents that vanish.
    """

    def __init__(self, name: str, wanted: Wanted, environment: EnvironmentSettings = USUAL) -> None:
        self.name = name
        self.environment = environment
        self.paged: PagedBuffer | None = None  # allocated at the first message, which says for how many agents
        self.decisions = 0  # calls of `decide`; with the run's key they fix the next action noise
        self.finished = 0  # decisions whose reward has arrived, ever
        self.fresh = 0  # decisions whose reward has arrived since the last `taken`
        self.held = 0  # decisions that the buffer holds, those of running episodes too
        self.env_steps = 0  # of all areas since the last `taken`; the host loop counts them
        self.wanted = wanted
        self._told_of_cut, self._told_of_vanished = False, False
        self._longest_wait = 0  # in messages; the longest wait that was logged

    @property
    def keeps(self) -> int:
        """Agent decisions that the buffer is to hold; an upper limit where environment steps are counted."""
        return self.wanted.keeps if self.paged is None else self.paged.keeps

    @property
    def full(self) -> bool:
        """True if the buffer has no room for another message and must not grow."""
        return self.paged is not None and self.paged.full

    @property
    def begin(self) -> tuple[np.ndarray, ...]:
        """Arguments of the update programs beside the buffer: none, or the beginnings of running episodes."""
        running = None if self.paged is None else self.paged.running
        return () if running is None else (running.begin,)

    @property
    def rows(self) -> np.ndarray:
        """Row that has written each page of the buffer, int64 [pages in use]."""
        assert self.paged is not None
        return self.paged.pages.rows

    @property
    def buffer(self) -> Any:
        """Collected data, a `TrajectoryState` or `KindTrajectories`; None before the first message."""
        return None if self.paged is None else self.paged.buffer

    def book(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> tuple[Ingested, Any]:
        """Book one message per source, decide and append; decisions of agents in `untrained` are not learned from.

        Returns the booked message, and the actions over rows, as `_decide` returns them.
        Raises ExternalActionError for actions that agents cannot have taken, or that cannot be learned from.
        """
        paged = self.paged = self.paged or self._buffer_for(messages)
        ingested = paged.slots.ingest(messages, untrained)
        if paged.follow():
            self._grow(paged)
        rows = ingested.rows
        paged.turn(rows, self.fresh)
        action = self._decide(paged, ingested)
        paged.append(rows, ingested.left_out)
        if ingested.vanished and not self._told_of_vanished:
            self._told_of_vanished = True
            log.warning(VANISHED, self.name, ingested.vanished)
        if ingested.waited > 2 * self._longest_wait:
            self._longest_wait = ingested.waited
            log.warning(WAITED, self.name, ingested.waited)
        self.decisions += 1
        self.fresh = self.fresh + ingested.finished if paged.running is None else paged.running.complete
        self.held += ingested.finished
        self.finished += ingested.finished
        return ingested, action

    def taken(self, buffer: Any) -> None:
        """Replace the buffer, after its data was taken for an update, by `buffer` of the same shapes."""
        assert self.paged is not None
        self.paged.taken(buffer)
        self.held -= self.fresh
        self.fresh, self.env_steps = 0, 0

    def begin_anew(self) -> None:
        """Forget all agents and trajectories; keep only the number of decisions."""
        self.paged = None
        self.fresh, self.held, self.env_steps = 0, 0, 0

    def discard(self) -> None:
        """Drop the collected data, as if it had been learned from."""
        assert self.paged is not None
        self.paged.discard()
        self.fresh, self.held, self.env_steps = 0, 0, 0

    def lose(self, loss: Loss) -> int:
        """Drop the pending decisions of the agents of a lost worker or copy. Returns their number."""
        return 0 if self.paged is None else self.paged.slots.lose(loss)

    def _cut(self, episodes: int, states: int) -> None:
        """Warn once if any of `episodes` (a number, perhaps 0) were longer than the `states` that fit."""
        if episodes and not self._told_of_cut:
            self._told_of_cut = True
            log.warning(CUT, self.name, states)

    @abstractmethod
    def _buffer_for(self, messages: Mapping[Source, BehaviorMessage]) -> PagedBuffer:
        """Make buffer and connectors with room for the agents of the first messages."""

    @abstractmethod
    def _grow(self, paged: PagedBuffer) -> None:
        """Resize the connectors to the rows and members that there are now."""

    @abstractmethod
    def _decide(self, paged: PagedBuffer, ingested: Ingested) -> Any:
        """Correct pending decisions, then run the one compiled call, which replaces buffer and connectors' memory."""
