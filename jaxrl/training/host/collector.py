"""What is collected by who acts: streams in a `PagedBuffer`, how much of them is finished, one call per message.

A behavior's `ActingPolicy` acts for agents of one kind, a `TeamPolicy` for teams whose members are of several. Both
book messages, let the buffer follow, and decide and append in one compiled call. Knows no learner, no process and no
file.
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
    """Acts and keeps what happens.

    Args:
      environment: what becomes of actions that agents took otherwise, and of agents that vanish.
    """

    def __init__(self, name: str, wanted: Wanted, environment: EnvironmentSettings = USUAL) -> None:
        self.name = name
        self.environment = environment
        self.paged: PagedBuffer | None = None  # from the first message on, which says for how many agents
        self.decisions = 0  # calls of `decide`; with the run's key they fix the next action noise
        self.finished = 0  # decisions whose reward has arrived, ever
        self.fresh = 0  # decisions whose reward has arrived since the last `taken`
        self.held = 0  # decisions that the buffer holds, those of running episodes too
        self.env_steps = 0  # of all areas since the last `taken`; the host loop counts them
        self.wanted = wanted
        self._told_of_cut, self._told_of_vanished = False, False
        self._longest_wait = 0  # messages, of which the log tells

    @property
    def keeps(self) -> int:
        """Agent decisions that the buffer is to hold, at most where environment steps are counted."""
        return self.wanted.keeps if self.paged is None else self.paged.keeps

    @property
    def full(self) -> bool:
        """Whether the buffer has no room for another message, and shall have none."""
        return self.paged is not None and self.paged.full

    @property
    def begin(self) -> tuple[np.ndarray, ...]:
        """What the programs of an update are given beside the buffer: nothing, or where running episodes begin."""
        running = None if self.paged is None else self.paged.running
        return () if running is None else (running.begin,)

    @property
    def rows(self) -> np.ndarray:
        """int64 [pages in use], the row that has written each page of the buffer."""
        assert self.paged is not None
        return self.paged.pages.rows

    @property
    def buffer(self) -> Any:
        """What has been collected, a `TrajectoryState` or `KindTrajectories`; None before the first message."""
        return None if self.paged is None else self.paged.buffer

    def book(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> tuple[Ingested, Any]:
        """One message per source is booked, decided on and appended; nobody learns from agents in `untrained`.

        Returns what was booked, and the actions over rows, as `_decide` gives them.
        Raises ExternalActionError for what agents cannot have done, or what cannot be learned from.
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
        """Somebody has learned from the buffer: it goes on as `buffer`, of the same shapes."""
        assert self.paged is not None
        self.paged.taken(buffer)
        self.held -= self.fresh
        self.fresh, self.env_steps = 0, 0

    def begin_anew(self) -> None:
        """Nothing has been seen yet; only the number of decisions goes on."""
        self.paged = None
        self.fresh, self.held, self.env_steps = 0, 0, 0

    def discard(self) -> None:
        """Forget what was collected, as if somebody had learned from it."""
        assert self.paged is not None
        self.paged.discard()
        self.fresh, self.held, self.env_steps = 0, 0, 0

    def lose(self, loss: Loss) -> int:
        """Drop what the agents of a lost process or copy had begun. Returns their number, one decision each."""
        return 0 if self.paged is None else self.paged.slots.lose(loss)

    def _cut(self, episodes: int, states: int) -> None:
        """Say once that so many episodes, any number or none, were longer than the states that there is room for."""
        if episodes and not self._told_of_cut:
            self._told_of_cut = True
            log.warning(CUT, self.name, states)

    @abstractmethod
    def _buffer_for(self, messages: Mapping[Source, BehaviorMessage]) -> PagedBuffer:
        """PagedBuffer for the agents of the first messages; its connectors have as much."""

    @abstractmethod
    def _grow(self, paged: PagedBuffer) -> None:
        """Connectors get room for as many rows and members as there are now."""

    @abstractmethod
    def _decide(self, paged: PagedBuffer, ingested: Ingested) -> Any:
        """Open decisions are set right; then the one compiled call, which replaces buffer and connectors' memory."""
