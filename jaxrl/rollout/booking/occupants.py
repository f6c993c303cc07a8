"""The slots of living agents, and the free rows. Host side, numpy only.

The key of an agent is its source and its id; the key of a team is its process, its side and its group id, whatever the
behaviors of its members are. Both are forgotten when they end.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxrl.types import NO_GROUP, BehaviorMessage

Places = np.ndarray
"""Slots by number, row * A + member, int64 [N]. One index into flat arrays takes NumPy a fifth of the time of two."""


class Source(NamedTuple):
    """Source of agents. Each team of a behavior (`?team=1`) is a source of its own, and so is each start of a worker:
    its agent 0 is another agent."""

    worker: int
    behavior_id: str
    incarnation: int = 0

    def team(self, group: int) -> Team:
        """Return the team of this group id, which may have members of other behaviors too."""
        return Team(self.worker, self.incarnation, self.behavior_id.partition("?")[2], group)


class Team(NamedTuple):
    """Key of a team."""

    worker: int
    incarnation: int
    side: str  # "team=1" of "Soccer?team=1": opponents are never one team, whatever ids their groups have
    group: int  # id on the wire


class Occupant(NamedTuple):
    """Slot of an agent, and the group id of its newest request."""

    row: int
    member: int
    group: int


def first_sizes(
    messages: Mapping[Source, BehaviorMessage],
    kinds: int = 1,
    kind_of: Callable[[Source], int] = lambda _: 0,
    *,
    team_rows: bool,
) -> tuple[int, list[int]]:
    """Count the rows, and members of each kind, that these messages' deciding agents need (at least 1 of each)."""
    teams: dict[Team, list[int]] = {}
    lone = 0
    for source, steps in messages.items():
        for group in steps.deciding.group_id.tolist():
            if team_rows and group != NO_GROUP:
                teams.setdefault(source.team(group), [0] * kinds)[kind_of(source)] += 1
            else:
                lone += 1
    return max(len(teams) + lone, 1), [max([1, *(team[kind] for team in teams.values())]) for kind in range(kinds)]


def places_of(homes: Sequence[Occupant], members: int) -> Places:
    """Return the slots of `homes` as places in rows of `members` members."""
    return np.array([home.row * members + home.member for home in homes], np.int64)


def fit(x: np.ndarray, rows: int, members: int, *, axis: int = 0, fill: float = 0) -> np.ndarray:
    """Grow axes `axis` and the next of `x` to `rows` and `members`; contents keep their place, new ones are `fill`."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, rows - x.shape[axis])
    widths[axis + 1] = (0, members - x.shape[axis + 1])
    return np.pad(x, widths, constant_values=fill)


class Occupants:
    """Agent ids → slots, teams → rows, and the free rows. With `team_rows` a row holds a whole team."""

    def __init__(self, *, team_rows: bool) -> None:
        self.team_rows = team_rows
        self.rows = 0
        self._of: dict[Source, dict[int, Occupant]] = {}  # by agent id
        self._row_of_team: dict[Team, int] = {}
        self._team_of_row: dict[int, Team] = {}
        self._free: list[int] = []  # heap: the lowest free row is taken first, so that runs repeat

    def of(self, source: Source) -> Mapping[int, Occupant]:
        """Return the slots of a source's living agents by id."""
        return self._of.setdefault(source, {})

    def homes(self, source: Source, agents: np.ndarray) -> list[Occupant]:
        """Return the slots of the living ones among these agents, ids [N]."""
        return [home for home in map(self.of(source).get, agents.tolist()) if home is not None]

    def sources(self) -> list[Source]:
        """Return all sources that have had an agent and are not forgotten."""
        return list(self._of)

    def add_rows(self, rows: int) -> None:
        """Grow to `rows` rows, not fewer than before; the new ones are free."""
        for row in range(self.rows, rows):
            heapq.heappush(self._free, row)
        self.rows = rows

    @property
    def free_rows(self) -> int:
        """Number of rows without a living agent."""
        return len(self._free)

    def row_of(self, source: Source, group: int) -> int | None:
        """Return the row of a newcomer's team; None: it has none yet."""
        return self._row_of_team.get(source.team(group)) if self.team_rows and group != NO_GROUP else None

    def row_for(self, source: Source, group: int) -> int | None:
        """Return the row of a newcomer's team, else take the lowest free one; None: all are taken."""
        row = self.row_of(source, group)
        if row is not None:
            return row
        team = source.team(group) if self.team_rows and group != NO_GROUP else None
        if not self._free:
            return None
        row = heapq.heappop(self._free)
        if team is not None:
            self._row_of_team[team] = row
            self._team_of_row[row] = team
        return row

    def settle(self, source: Source, agent: int, occupant: Occupant) -> None:
        """Note the slot and the group id of an agent."""
        self._of.setdefault(source, {})[agent] = occupant

    def remove(self, source: Source, agent: int) -> Occupant | None:
        """Forget an agent and return its slot; None: no agent of that id lives."""
        return self._of.get(source, {}).pop(agent, None)

    def forget(self, source: Source, agents: Collection[int] | None = None) -> list[Occupant]:
        """Forget these agents of a source, or all, and return their slots."""
        if agents is None:
            return list(self._of.pop(source, {}).values())
        homes = (self.remove(source, agent) for agent in sorted(agents))
        return [home for home in homes if home is not None]

    def free(self, row: int) -> None:
        """Free a row in which no agent lives any more, and forget its team."""
        heapq.heappush(self._free, row)
        team = self._team_of_row.pop(row, None)
        if team is not None:
            del self._row_of_team[team]
