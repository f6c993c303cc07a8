"""Agent ids of the environments → fixed rows of the trajectory buffer. Host side, numpy only.

An agent lives in a slot (row, member) from its first decision to its end; a freed slot is taken by the next agent,
since ids name episodes and are never used twice. With `team_rows` a row holds a whole team; otherwise every agent has a
row of its own (A = 1). Tables grow to the next power of two when a message needs more; the arrays handed out then are
larger, and the caller lets the device buffer follow.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxrl.rollout.episodes import EpisodeRecords, Episodes, reward_columns
from jaxrl.rollout.records import Ending, RowSteps
from jaxrl.types import NO_GROUP, AgentSteps, BehaviorSpec, DecisionSteps, EndedSteps

Source = tuple[int, str]
"""Where agents come from: worker and behavior id. Several teams of one behavior (`?team=1`) are several sources."""

Places = tuple[np.ndarray, np.ndarray]  # rows [N], members [N]
NO_EPISODES = EpisodeRecords(returns=[], lengths=[], group_returns=[], team_returns=[])


class Ingested(NamedTuple):
    """One message per source, turned into rows."""

    steps: RowSteps  # views of the tables, valid until the next `ingest`
    decisions: dict[Source, Places]  # slots of its deciding agents, in their order
    finished: int  # decisions whose reward arrived: the trainer step grows by it
    episodes: list[EpisodeRecords]


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def first_size(messages: Mapping[Source, AgentSteps], *, team_rows: bool) -> tuple[int, int]:
    """Rows and members that hold the deciding agents of these messages exactly (at least 1 x 1)."""
    teams: dict[tuple[Source, int], int] = {}
    lone = 0
    for source, steps in messages.items():
        for group in steps.deciding.group_id.tolist():
            if team_rows and group != NO_GROUP:
                teams[source, group] = teams.get((source, group), 0) + 1
            else:
                lone += 1
    return max(len(teams) + lone, 1), max(teams.values(), default=1)


class Slots:
    """Who lives where, and the newest known observation of everybody."""

    def __init__(self, spec: BehaviorSpec, *, team_rows: bool, rows: int, members: int) -> None:
        self.spec = spec
        self.team_rows = team_rows
        self._slot_of: dict[tuple[Source, int], tuple[int, int]] = {}  # (source, agent id) → row, member
        self._row_of_team: dict[tuple[Source, int], int] = {}  # (source, group id) → row
        self._team_of_row: dict[int, tuple[Source, int]] = {}
        self._free: list[int] = []  # heap: the lowest free row is taken first, so that runs repeat
        self._cached: dict[Source, tuple[bytes, Places]] = {}  # last deciding ids and their slots
        self._episodes = Episodes()
        self._alive = np.zeros((0, 0), bool)
        self._left = np.zeros((0, 0), bool)  # [B, A], ended since the newest state of a team that lives
        self._left_reward = np.zeros((0, 0, 2), np.float32)
        self._obs = tuple(np.zeros((2, 0, 0, *s.shape), s.dtype) for s in spec.observations)
        self._action_mask = np.ones((0, 0, spec.action.mask_size), bool)
        self._reward = np.zeros((0, 0, 2), np.float32)
        self._earned = np.zeros((0, 0), np.float32)
        self._ending = np.zeros((0, 0), np.uint8)
        self._present = np.zeros((2, 0, 0), bool)
        self._deciding = np.zeros((0, 0), bool)
        self._resize(rows, members)

    @property
    def rows(self) -> int:
        """B, the rows of the tables."""
        return self._alive.shape[0]

    @property
    def members(self) -> int:
        """A, the members of a row."""
        return self._alive.shape[1]

    def ingest(self, messages: Mapping[Source, AgentSteps]) -> Ingested:
        """Book one message per source, in the order given: endings first (M6), then decisions.

        Agents that are first seen ended leave no trace but an episode of length 0 (M4, U1). Agents in neither list keep
        their open decision (U2).
        """
        self._reward[:] = self._earned[:] = 0.0
        self._ending[:] = Ending.OPEN
        self._present[:] = False
        self._deciding[:] = False
        finished, episodes, decisions = 0, [], {}
        for source, steps in messages.items():
            if len(steps.ended.agent_id):
                records = self._end(source, steps.ended)
                finished += len(records.returns)
                episodes.append(records)
        for source, steps in messages.items():
            decisions[source], again = self._place(source, steps.deciding)
            finished += self._decide(decisions[source], again, steps.deciding)
        acts = np.asarray(self._deciding.any(-1))
        if self._left.any():
            self._tell_left(np.flatnonzero(acts), Ending.LEFT)
        self._present[1] = self._alive & acts[:, None]
        return Ingested(steps=self._row_steps(), decisions=decisions, finished=finished, episodes=episodes)

    @property
    def living(self) -> np.ndarray:
        """bool [B], rows with a member that lives."""
        return np.asarray(self._alive.any(-1))

    def recorded(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Newest observations [N, *shape] and masks [N, M] of living agents (else all), repeated so that N is B · A."""
        living = np.flatnonzero(self._alive) if self._alive.any() else np.arange(self._alive.size)
        at = np.unravel_index(np.resize(living, self._alive.size), self._alive.shape)
        return tuple(table[1][at] for table in self._obs), self._action_mask[at]

    def _row_steps(self) -> RowSteps:
        return RowSteps(
            obs=self._obs,
            action_mask=self._action_mask,
            reward=self._reward,
            earned=self._earned,
            ending=self._ending,
            present=self._present,
            deciding=self._deciding,
        )

    def _end(self, source: Source, ended: EndedSteps) -> EpisodeRecords:
        slots = [self._slot_of.pop((source, agent), None) for agent in ended.agent_id.tolist()]
        index = np.array([i for i, slot in enumerate(slots) if slot is not None], np.int64)
        unknown = len(slots) - len(index)
        if not len(index):
            return NO_EPISODES._replace(lengths=[0] * unknown)
        rows, members = np.array([slots[i] for i in index], np.int64).T
        self._alive[rows, members] = False
        over = ~self._alive[rows].any(-1)
        truncated = ended.truncated[index]
        rewards = reward_columns(ended.reward, ended.group_reward)[index]
        self._reward[rows, members] = self._left_reward[rows, members] = rewards
        self._earned[rows, members] = rewards[:, 0]
        self._left[rows, members] = ~over
        endings = np.where(truncated, Ending.TRUNCATED, Ending.TERMINATED)
        self._ending[rows, members] = np.where(over, endings, Ending.OPEN)
        self._tell_left(rows[over & truncated], Ending.LEFT)
        self._tell_left(rows[over], Ending.TERMINATED)
        # Everybody who ended with an interrupted team is part of its final state, also who did not end by interruption.
        in_final = np.isin(rows, rows[over & truncated]) if truncated.any() else truncated
        where = rows[in_final], members[in_final]
        self._present[0][where] = True
        for table, obs in zip(self._obs, ended.obs, strict=True):
            table[0][where] = obs[index[in_final]]
        for row in sorted(set(rows[over].tolist())):
            self._free_row(row)
        self._cached.pop(source, None)
        records = self._episodes.end(rows, members, ended, index)
        return records._replace(lengths=records.lengths + [0] * unknown)

    def _tell_left(self, rows: np.ndarray, ending: Ending) -> None:
        """What follows members of `rows` that ended before their team is known: its next state, or nothing."""
        # Told earlier, they would bootstrap from the first state of the team that takes the row next.
        at, members = np.nonzero(self._left[rows])
        left = rows[at], members
        self._reward[left] = self._left_reward[left]
        self._ending[left] = ending
        self._left[left] = False

    def _free_row(self, row: int) -> None:
        heapq.heappush(self._free, row)
        team = self._team_of_row.pop(row, None)
        if team is not None:
            del self._row_of_team[team]

    def _place(self, source: Source, deciding: DecisionSteps) -> tuple[Places, np.ndarray | slice]:
        """Slots of the deciding agents, and which of them had decided before."""
        ids, content = deciding.agent_id, deciding.agent_id.tobytes()
        cached = self._cached.get(source)
        if cached is not None and cached[0] == content:
            return cached[1], slice(None)
        again = np.array([(source, agent) in self._slot_of for agent in ids.tolist()], bool)
        slots = [
            self._slot_of.get((source, agent)) or self._settle(source, agent, group)
            for agent, group in zip(ids.tolist(), deciding.group_id.tolist(), strict=True)
        ]
        pairs = np.array(slots, np.int64).reshape(-1, 2)
        places = (pairs[:, 0], pairs[:, 1])
        self._cached[source] = (content, places)
        return places, again

    def _settle(self, source: Source, agent: int, group: int) -> tuple[int, int]:
        row = self._row_for(source, group)
        if self._alive[row].all():
            self._resize(self.rows, next_power_of_two(self.members + 1))
        slot = (row, int(np.argmin(self._alive[row])))
        self._alive[slot] = True
        self._slot_of[source, agent] = slot
        self._episodes.start(slot, source, group)
        return slot

    def _row_for(self, source: Source, group: int) -> int:
        in_team = self.team_rows and group != NO_GROUP
        if in_team and (source, group) in self._row_of_team:
            return self._row_of_team[source, group]
        if not self._free:
            self._resize(next_power_of_two(self.rows + 1), self.members)
        row = heapq.heappop(self._free)
        if in_team:
            self._row_of_team[source, group] = row
            self._team_of_row[row] = (source, group)
        return row

    def _decide(self, places: Places, again: np.ndarray | slice, deciding: DecisionSteps) -> int:
        self._deciding[places] = True
        self._action_mask[places] = deciding.action_mask
        for table, obs in zip(self._obs, deciding.obs, strict=True):
            table[1][places] = obs
        # The reward in an agent's first request belongs to no decision of its own and is left out, as in ML-Agents.
        old = places[0][again], places[1][again]
        rewards = reward_columns(deciding.reward, deciding.group_reward)[again]
        self._reward[old] = rewards
        self._earned[old] = rewards[:, 0]
        self._ending[old] = Ending.CONTINUES
        self._episodes.decide(old, rewards)
        return len(rewards)

    def _resize(self, rows: int, members: int) -> None:
        def fit(x: np.ndarray, axis: int, fill: float = 0) -> np.ndarray:
            widths = [(0, 0)] * x.ndim
            widths[axis] = (0, rows - x.shape[axis])
            widths[axis + 1] = (0, members - x.shape[axis + 1])
            return np.pad(x, widths, constant_values=fill)

        for row in range(self.rows, rows):
            heapq.heappush(self._free, row)
        self._alive = fit(self._alive, 0)
        self._left = fit(self._left, 0)
        self._left_reward = fit(self._left_reward, 0)
        self._obs = tuple(fit(x, 1) for x in self._obs)
        self._action_mask = fit(self._action_mask, 0, fill=True)
        self._reward = fit(self._reward, 0)
        self._earned = fit(self._earned, 0)
        self._ending = fit(self._ending, 0)
        self._present = fit(self._present, 1)
        self._deciding = fit(self._deciding, 0)
        self._episodes.resize(rows, members)
        self._cached.clear()
