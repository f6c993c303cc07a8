"""Agents that are silent for so long that they seem to have vanished without an ending. Numpy only.

An absent agent keeps its pending decision, as in ML-Agents. Rows for all agents that ever lived would cost more time
and memory with each, so agents that vanished have to make room. An agent that waits for its turn, an event or a
cooldown looks like one that vanished until it asks again. Three rules protect it:

- No agent is interrupted while there is room, and while silent agents are few (`FEW_ROWS`, `MEMBERS`).
- Agents that came back show that others will: an agent is overdue only after twice the longest such silence.
- Interrupted agents are remembered. One that asks again had waited, and counts as one that came back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from jaxrl.rollout.booking.occupants import Occupant, Places, Source, fit

PATIENCE = 5
"""Least silence of an overdue agent, in usual intervals between two requests."""
FIRST_PATIENCE = 1000
"""Least silence in messages, while no agent has asked twice and at most `FIRST_AGENTS` live."""
FIRST_AGENTS = 1024
MARGIN = 2
"""Least silence of an overdue agent, as a multiple of the longest silence of agents that came back."""
RARE = 100
"""A return after a silence is ignored if more than so many agents did not come back from one as long."""
ASKING = 2
"""Usual intervals within which an agent has asked that counts as asking."""
REMEMBERED = 4096
"""Most interrupted agents of a source that are remembered, the newest."""
_POWERS = 63


class Bound(NamedTuple):
    """Number of overdue rows, or members of a row, that are carried in any case."""

    few: int
    share: int = 2  # further ones for each that asks

    def beyond(self, silent: np.ndarray, asking: np.ndarray, needed: int) -> np.ndarray:
        """Return the indices of the longest silent ones, as many as are needed or an eighth of all overdue.

        Empty if no more are overdue than are carried. `silent`: int [N], above 0 if overdue; `asking`: bool [N].
        """
        overdue = np.count_nonzero(silent)
        if overdue <= max(self.few, self.share * np.count_nonzero(asking)):
            return np.zeros(0, np.int64)
        return np.argsort(-silent, kind="stable")[: min(max(needed, overdue // 8), overdue)]


FEW_ROWS, MORE_ROWS, MORE_BYTES = 128, 384, 2**20
"""Overdue rows that are carried in any case; most rows that are carried if their observations fit in MORE_BYTES."""
MEMBERS = Bound(few=16)
"""Bound for the members of a row. It is small: the cost of a team's critic grows with the square of its members."""


class Overdue:
    """Silences of the agents in B rows of A members, in messages of their worker in which any agent asked.

    agent_bytes: size of an agent's observation.
    """

    def __init__(self, agent_bytes: int) -> None:
        self._agent_bytes = agent_bytes
        self._messages = np.zeros(0, np.int64)  # messages of each worker's process, by its number
        self._numbers: dict[tuple[int, int], int] = {}  # number by worker and incarnation
        self._of = np.zeros((0, 0), np.int64)  # [B, A], number of the process of the newest request
        self._at = np.zeros((0, 0), np.int64)  # [B, A], message of the newest request
        self._gaps, self._again = 0, 0  # messages between two requests of an agent: sum and number
        # Messages in which agents asked again, by the power of two that the longest of their silences reaches.
        self._returns = np.zeros(_POWERS, np.int64)
        self._lost = 0  # interrupted agents that did not come back
        self._interrupted: dict[Source, dict[int, int]] = {}  # by agent id, the message of the last request

    def resize(self, rows: int, members: int) -> None:
        """Make room; contents keep their place."""
        self._of, self._at = fit(self._of, rows, members), fit(self._at, rows, members)

    def message(self, sources: Iterable[Source]) -> None:
        """Note that agents of these sources ask."""
        for place in {(source.worker, source.incarnation) for source in sources}:
            number = self._numbers.setdefault(place, len(self._numbers))
            if number == len(self._messages):
                self._messages = np.append(self._messages, 0)
            self._messages[number] += 1

    def asked(self, source: Source, places: Places, again: np.ndarray | slice) -> None:
        """Note that these agents of the newest message ask; the ones in `again` had asked before."""
        if not len(places):
            return
        number = self._numbers[source.worker, source.incarnation]
        now = self._messages[number]
        before = self._at.take(places)[again]
        gaps = len(before) * int(now) - int(before.sum())
        self._gaps += gaps
        self._again += len(before)
        if gaps > len(before):  # not all asked in the message before
            longest = int(now) - int(before.min())
            if MARGIN * longest > PATIENCE * self._usual:
                self._returns[longest.bit_length() - 1] += 1
        self._of.put(places, number)
        self._at.put(places, now)

    def vanished(self, alive: np.ndarray, here: np.ndarray, rows: int, members: Mapping[int, int]) -> np.ndarray:
        """Return the agents that have to make room, bool [B, A]: the longest silent ones; mostly none.

        Args:
          alive: agents that live, bool [B, A].
          here: agents of the message at hand, bool [B, A].
          rows: number of further rows that are needed, if any.
          members: number of further members that are needed, by row.
        """
        gone = np.zeros_like(alive)
        if not len(self._messages):
            return gone
        silent = np.where(here, 0, self._messages[self._of] - self._at)
        usual = self._usual if self._again or np.count_nonzero(alive) <= FIRST_AGENTS else 1.0
        asking = alive & (silent <= ASKING * usual)
        overdue = alive & (silent > max(PATIENCE * usual, MARGIN * self._longest(silent[alive])))
        if rows > 0:
            empty = overdue.any(-1) & ~(alive & ~overdue).any(-1)
            newest = np.where(alive, silent, silent.max()).min(-1)
            more = min(MORE_ROWS, MORE_BYTES // max(self._agent_bytes * alive.shape[1], 1))
            at = Bound(max(FEW_ROWS, more)).beyond(np.where(empty, newest, 0), np.asarray(asking.any(-1)), rows)
            gone[at] = overdue[at]
        for row, count in members.items():
            gone[row, MEMBERS.beyond(np.where(overdue[row], silent[row], 0), asking[row], count)] = True
        return gone

    def interrupt(self, source: Source, homes: Mapping[int, Occupant]) -> None:
        """Remember interrupted agents; `homes`: their slots by id."""
        known = self._interrupted.setdefault(source, {})
        known.update((agent, int(self._at[home.row, home.member])) for agent, home in homes.items())
        for agent in list(known)[:-REMEMBERED]:
            del known[agent]
        self._lost += len(homes)

    def came_back(self, source: Source, agent: int) -> int:
        """Return for how many messages an interrupted newcomer was silent; 0 for other newcomers."""
        asked = self._interrupted[source].pop(agent, None) if source in self._interrupted else None
        if asked is None:
            return 0
        silence = int(self._messages[self._numbers[source.worker, source.incarnation]]) - asked
        self._returns[max(silence, 1).bit_length() - 1] += 1
        self._lost -= 1
        return silence

    def forget(self, source: Source) -> None:
        """Forget the interrupted agents of a source, whose ids begin anew."""
        self._interrupted.pop(source, None)

    @property
    def _usual(self) -> float:
        """Mean number of messages between two requests of an agent."""
        return self._gaps / self._again if self._again else FIRST_PATIENCE / PATIENCE

    def _longest(self, silent: np.ndarray) -> float:
        """Return the longest silence from which agents come back, rounded up to a power of two.

        silent: int [N], silences of living agents. They and the lost ones have not come back.
        """
        absent = self._lost + _at_least(_by_power(silent))
        proven = np.flatnonzero(RARE * _at_least(self._returns) > absent)
        return 2.0 ** (proven[-1] + 1) if len(proven) else 0.0


def _by_power(silences: np.ndarray) -> np.ndarray:
    """Count silences [N] by the power of two that they reach, int64 [63]; 0 counts as 1."""
    return np.bincount(np.maximum(np.frexp(silences)[1] - 1, 0), minlength=_POWERS)


def _at_least(counts: np.ndarray) -> np.ndarray:
    """Return for each power of two the number of silences that reach it or a higher one."""
    return counts[::-1].cumsum()[::-1]
