"""Statistics of finished episodes: returns and lengths of agents, and group returns of teams. Host side, numpy only."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from jaxrl.types import NO_GROUP, EndedSteps

Team = tuple[Hashable, int]  # where it comes from, group id


class EpisodeRecords(NamedTuple):
    """What ended with one message. Rewards in reward units, lengths in decisions."""

    returns: list[float]  # per agent, sum of its individual rewards
    lengths: list[int]  # per agent, decisions before the last transition (as ML-Agents counts)
    group_returns: list[float]  # per agent that was alive when its whole team ended (M12, U48)
    team_returns: list[float]  # one per finished team: that of its longest-lived agent at the end


class SoFar(NamedTuple):
    """The episode of one agent up to now, while it moves from one slot to another."""

    rewards: np.ndarray  # float64 [2], own and group
    length: int


def reward_columns(reward: np.ndarray, group_reward: np.ndarray) -> np.ndarray:
    """Own and group rewards [N] as float32 [N, 2]; `np.stack` takes four times as long."""
    both = np.empty((len(reward), 2), np.float32)
    both[:, 0], both[:, 1] = reward, group_reward
    return both


class Episodes:
    """Running sums of every slot, and who belongs to which team."""

    def __init__(self) -> None:
        self.sums = np.zeros((0, 0, 2), np.float64)  # [B, A, 2]: own and group reward
        self.lengths = np.zeros((0, 0), np.int64)  # [B, A]
        self._team_of: dict[tuple[int, int], Team] = {}  # slot → team
        self._alive: dict[Team, int] = {}

    def resize(self, rows: int, members: int) -> None:
        """Make room; contents keep their place."""
        sums, lengths = self.sums, self.lengths
        self.sums = np.zeros((rows, members, 2), np.float64)
        self.lengths = np.zeros((rows, members), np.int64)
        self.sums[: sums.shape[0], : sums.shape[1]] = sums
        self.lengths[: lengths.shape[0], : lengths.shape[1]] = lengths

    def start(self, slot: tuple[int, int], source: Hashable, group_id: int, so_far: SoFar | None = None) -> None:
        """A new agent lives in `slot`, or one that goes on there with what it had in another (`leave`)."""
        self.sums[slot] = 0.0 if so_far is None else so_far.rewards
        self.lengths[slot] = 0 if so_far is None else so_far.length
        self._join(slot, source, group_id)

    def leave(self, slot: tuple[int, int]) -> SoFar:
        """The agent in `slot` is not there any more, and its episode is not over: nothing is reported.

        A team whose last living agent leaves it is over without a group return.
        """
        self._leave_team(slot)
        return SoFar(rewards=self.sums[slot].copy(), length=int(self.lengths[slot]))

    def change_team(self, slot: tuple[int, int], source: Hashable, group_id: int) -> None:
        """The agent in `slot` belongs to another team from now on, or to none."""
        self._leave_team(slot)
        self._join(slot, source, group_id)

    def decide(self, slots: tuple[np.ndarray, np.ndarray], rewards: np.ndarray) -> None:
        """Agents that had a decision before decide again; rewards float32 [N, 2], own and group."""
        self.sums[slots] += rewards
        self.lengths[slots] += 1

    def end(self, rows: np.ndarray, members: np.ndarray, ended: EndedSteps, index: np.ndarray) -> EpisodeRecords:
        """Entries `index` of `ended`, which lived in these slots, are over."""
        self.sums[rows, members] += reward_columns(ended.reward, ended.group_reward)[index]
        sums, lengths = self.sums[rows, members], self.lengths[rows, members]
        teams = [self._team_of.pop(slot, None) for slot in zip(rows.tolist(), members.tolist(), strict=True)]
        for team in teams:
            if team is not None:
                self._alive[team] -= 1
        records = EpisodeRecords(
            returns=sums[:, 0].tolist(), lengths=lengths.tolist(), group_returns=[], team_returns=[]
        )
        for team in dict.fromkeys(team for team in teams if team is not None):
            if self._alive[team] > 0:
                continue
            del self._alive[team]
            last = [i for i, other in enumerate(teams) if other == team]
            records.group_returns.extend(sums[last, 1].tolist())
            records.team_returns.append(float(sums[max(last, key=lambda i: lengths[i]), 1]))
        return records

    def _join(self, slot: tuple[int, int], source: Hashable, group_id: int) -> None:
        if group_id != NO_GROUP:
            self._team_of[slot] = (source, group_id)
            self._alive[(source, group_id)] = self._alive.get((source, group_id), 0) + 1

    def _leave_team(self, slot: tuple[int, int]) -> None:
        team = self._team_of.pop(slot, None)
        if team is not None:
            self._alive[team] -= 1
            if not self._alive[team]:
                del self._alive[team]
