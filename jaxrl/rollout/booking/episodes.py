"""Statistics of finished episodes: returns and lengths of agents, and group returns of teams. Host side, numpy only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxrl.rollout.booking.occupants import Source, Team
from jaxrl.types import NO_GROUP, TerminalSteps


class EpisodeRecords(NamedTuple):
    """What ended with one message. Rewards in reward units, lengths in decisions."""

    returns: list[float]  # per agent, sum of its individual rewards
    lengths: list[int]  # per agent, decisions before the last transition (as ML-Agents counts)
    group_rewards: list[float]  # per agent, sum of the group rewards that it received itself
    mates_returns: list[float]  # per agent, sum of the individual rewards of its row's others while it lived
    group_returns: list[float]  # per agent that was alive when its whole team ended
    # One per finished team: what its longest-lived agent at the end received. The compiled loop adds up what the team
    # earned by whomever it was received; here members are paid in different messages, some for several steps at once,
    # and nothing on the wire tells which payments are the same reward.
    team_returns: list[float]
    # Own and group reward of the last step, per agent whose game is decided: it terminated, and its whole team is over.
    last_rewards: list[float]


NO_EPISODES = EpisodeRecords(
    returns=[], lengths=[], group_rewards=[], mates_returns=[], group_returns=[], team_returns=[], last_rewards=[]
)


class SoFar(NamedTuple):
    """The episode of one agent up to now, while it moves from one slot to another."""

    rewards: np.ndarray  # float64 [2], own and group
    length: int
    mates: float  # individual rewards of the others of its row
    row: int  # that it leaves
    paid: float  # its own reward of this message


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
        self._mates = np.zeros((0, 0), np.float64)  # [B, A]: individual rewards of the others of the row
        self._open = np.zeros((0, 0), bool)  # [B, A], asked in an earlier message: a decision awaits its outcome
        self._asked: list[tuple[int, int]] = []  # first asked in this message
        self._paid = np.zeros((0, 0), np.float64)  # [B, A], individual rewards of this message
        self._over: list[tuple[int, float, list[float], int]] = []  # row, own reward, records and place in them
        self._moved: list[tuple[tuple[int, int], SoFar]] = []  # into another slot with this message
        self._team_of: dict[tuple[int, int], Team] = {}  # slot → team
        self._alive: dict[Team, int] = {}
        self._last: dict[Team, list[tuple[int, float, float | None]]] = {}
        """Who ended with this message: length, group reward, and the last step's reward of who was not interrupted."""

    def resize(self, rows: int, members: int) -> None:
        """Make room; contents keep their place."""
        more = [(0, rows - self.lengths.shape[0]), (0, members - self.lengths.shape[1])]
        self.sums = np.pad(self.sums, [*more, (0, 0)])
        self.lengths = np.pad(self.lengths, more)
        self._mates, self._open, self._paid = (np.pad(x, more) for x in (self._mates, self._open, self._paid))

    def start(self, slot: tuple[int, int], source: Source, group_id: int, so_far: SoFar | None = None) -> None:
        """A new agent lives in `slot`, or one that goes on there with what it had in another (`leave`)."""
        self.sums[slot] = 0.0 if so_far is None else so_far.rewards
        self.lengths[slot] = 0 if so_far is None else so_far.length
        self._mates[slot] = 0.0 if so_far is None else so_far.mates
        self._asked.append(slot)
        if so_far is not None:
            self._moved.append((slot, so_far))
        self._join(slot, source, group_id)

    def leave(self, slot: tuple[int, int]) -> SoFar:
        """The agent in `slot` is not there any more, and its episode is not over: nothing is reported.

        A team whose last living agent leaves it is over without a group return.
        """
        self._leave_team(slot)
        self._open[slot] = False
        return SoFar(
            rewards=self.sums[slot].copy(),
            length=int(self.lengths[slot]),
            mates=float(self._mates[slot]),
            row=slot[0],
            paid=float(self._paid[slot]),
        )

    def change_team(self, slot: tuple[int, int], source: Source, group_id: int) -> None:
        """The agent in `slot` belongs to another team from now on, or to none."""
        self._leave_team(slot)
        self._join(slot, source, group_id)

    def decide(self, slots: tuple[np.ndarray, np.ndarray], rewards: np.ndarray) -> None:
        """Agents that had a decision before decide again; rewards float32 [N, 2], own and group."""
        self.sums[slots] += rewards
        self.lengths[slots] += 1
        self._paid[slots] = rewards[:, 0]

    def end(self, rows: np.ndarray, members: np.ndarray, ended: TerminalSteps, index: np.ndarray) -> EpisodeRecords:
        """Entries `index` of `ended`, which lived in these slots, are over."""
        rewards = reward_columns(ended.reward, ended.group_reward)[index]
        self.sums[rows, members] += rewards
        self._open[rows, members] = False
        sums, lengths = self.sums[rows, members], self.lengths[rows, members]
        teams = [self._team_of.pop(slot, None) for slot in zip(rows.tolist(), members.tolist(), strict=True)]
        for team in teams:
            if team is not None:
                self._alive[team] -= 1
        mates = self._mates[rows, members].tolist()
        self._over += [
            (row, own, mates, i) for i, (row, own) in enumerate(zip(rows.tolist(), rewards[:, 0].tolist(), strict=True))
        ]
        records = EpisodeRecords(
            returns=sums[:, 0].tolist(),
            lengths=lengths.tolist(),
            group_rewards=sums[:, 1].tolist(),
            mates_returns=mates,
            group_returns=[],
            team_returns=[],
            last_rewards=[],
        )
        paid = rewards.sum(-1).tolist()
        for i, (team, length, group) in enumerate(zip(teams, lengths.tolist(), sums[:, 1].tolist(), strict=True)):
            last = None if ended.truncated[index[i]] else paid[i]
            if team is not None:
                self._last.setdefault(team, []).append((length, group, last))
            elif last is not None:
                records.last_rewards.append(last)
        for team in dict.fromkeys(team for team in teams if team is not None):
            if self._alive[team] > 0:
                continue
            del self._alive[team]
            last = self._last.pop(team)
            records.group_returns.extend(group for _, group, _ in last)
            records.last_rewards.extend(paid for _, _, paid in last if paid is not None)
            records.team_returns.append(max(last, key=lambda member: member[0])[1])
        return records

    def message_over(self) -> None:
        """Everything of this message is told: an individual reward counts for every decision open in its row.

        Also for those of members that ended with it: all of them acted in the state that the reward belongs to.
        """
        if self._open.shape[1] > 1 and (self._over or self._moved or self._paid.any()):
            earned = self._paid.sum(-1)
            for row, own, _, _ in self._over:
                earned[row] += own
            self._mates += np.where(self._open, earned[:, None] - self._paid, 0.0)
            for row, own, mates, place in self._over:
                mates[place] += float(earned[row]) - own
            for slot, so_far in self._moved:
                self._mates[slot] += float(earned[so_far.row]) - so_far.paid
        self._paid[:] = 0.0
        self._over.clear()
        self._last.clear()
        self._moved.clear()
        if self._asked:
            self._open[tuple(np.array(self._asked, np.int64).T)] = True
            self._asked.clear()

    def _join(self, slot: tuple[int, int], source: Source, group_id: int) -> None:
        if group_id != NO_GROUP:
            team = self._team_of[slot] = source.team(group_id)
            self._alive[team] = self._alive.get(team, 0) + 1

    def _leave_team(self, slot: tuple[int, int]) -> None:
        team = self._team_of.pop(slot, None)
        if team is not None:
            self._alive[team] -= 1
            if not self._alive[team]:
                del self._alive[team]
