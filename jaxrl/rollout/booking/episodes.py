"""Statistics of finished episodes: returns and lengths of agents, and group returns of teams. Host side, numpy only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from jaxrl.rollout.booking.occupants import Places, Source, Team, fit
from jaxrl.rollout.booking.team_returns import Received, TeamReturns
from jaxrl.types import NO_GROUP, TerminalSteps


class GameEnd(NamedTuple):
    """End of a game for one agent. Rewards are own and group reward together."""

    worker: int
    last: float  # reward of its last step
    total: float  # reward of its whole episode


class EpisodeRecords(NamedTuple):
    """Episodes that ended with one message. Rewards in reward units, lengths in decisions."""

    returns: list[float]  # per agent, sum of its individual rewards
    lengths: list[int]  # per agent, decisions before the last transition (as ML-Agents counts)
    group_rewards: list[float]  # per agent, sum of the group rewards that it received itself
    mates_returns: list[float]  # per agent, sum of the individual rewards of its row's others while it lived
    team_returns: list[float]  # per finished team, its common rewards from its first decision to its last
    games: list[GameEnd]  # per agent whose game is decided: it terminated, and its whole team is over
    # Rewards of no decision, which are part of no return: they came with an agent's first request, or with the end of
    # an agent that never asked. Per agent, individual rewards; per finished team, group rewards.
    undecided: list[float]
    team_undecided: list[float]


NO_EPISODES = EpisodeRecords(*([] for _ in EpisodeRecords._fields))


def games_of(records: Iterable[EpisodeRecords]) -> list[GameEnd]:
    """Return the games that ended, of all records."""
    return [end for record in records for end in record.games]


class _Last(NamedTuple):
    """A member that ended with this message."""

    game: GameEnd | None  # None: it was interrupted
    kind: int


class SoFar(NamedTuple):
    """Episode of one agent so far, while it moves from one slot to another."""

    rewards: np.ndarray  # float64 [2], own and group
    length: int
    mates: float  # individual rewards of the others of its row
    row: int  # the row that it leaves
    paid: float  # its own reward of this message
    undecided: float  # as in `EpisodeRecords`


def reward_columns(reward: np.ndarray, group_reward: np.ndarray) -> np.ndarray:
    """Join own and group rewards [N] as float32 [N, 2]; `np.stack` takes four times as long."""
    both = np.empty((len(reward), 2), np.float32)
    both[:, 0], both[:, 1] = reward, group_reward
    return both


def pairs(rewards: np.ndarray) -> np.ndarray:
    """View own and group rewards [..., 2] as complex numbers [...], which are copied and added as one item each."""
    return rewards.view(np.complex64 if rewards.dtype == np.float32 else np.complex128)[..., 0]


class Episodes:
    """Running sums of every slot, and the members of each team."""

    def __init__(self) -> None:
        self.sums = np.zeros((0, 0, 2), np.float64)  # [B, A, 2]: own and group reward
        self.lengths = np.zeros((0, 0), np.int64)  # [B, A]
        self._mates = np.zeros((0, 0), np.float64)  # [B, A]: individual rewards of the others of the row
        self._open = np.zeros((0, 0), bool)  # [B, A], asked in an earlier message: its decision is pending
        self._asked: list[tuple[int, int]] = []  # first asked in this message
        self._paid = np.zeros((0, 0), np.float64)  # [B, A], individual rewards of this message
        # Places whose decisions this message has rewarded, members of a row then, and their rewards.
        self._rewarded: list[tuple[Places, int, np.ndarray]] = []
        self._newest: dict[tuple[int, int], float] = {}  # group rewards of this message by slot, computed when needed
        self._over: list[tuple[int, float, list[float], int]] = []  # row, own reward, records and place in them
        self._moved: list[tuple[tuple[int, int], SoFar]] = []  # moved into another slot with this message
        self._teams = TeamReturns[tuple[int, int], Team](self._received)  # members are slots
        self._joining: list[tuple[tuple[int, int], Source, int, int]] = []  # join another team in the same slot
        self._kinds: dict[Team, set[int]] = {}  # kinds of members that a living team has had
        self._last: dict[Team, list[_Last]] = {}  # members that ended with this message
        self._undecided: dict[tuple[int, int], float] = {}  # by slot, values of `EpisodeRecords` other than 0
        self._team_undecided: dict[Team, float] = {}
        self.others: list[tuple[int, EpisodeRecords]] = []
        """Records of teams that ended with this message, for kinds other than the one whose `end` was called."""

    def resize(self, rows: int, members: int) -> None:
        """Make room; contents keep their place."""
        self.sums, self.lengths = fit(self.sums, rows, members), fit(self.lengths, rows, members)
        self._mates, self._open, self._paid = (fit(x, rows, members) for x in (self._mates, self._open, self._paid))
        self._by_place = tuple(x.reshape(-1) for x in (pairs(self.sums), self.lengths, self._paid))

    def start(
        self,
        slot: tuple[int, int],
        source: Source,
        group_id: int,
        so_far: SoFar | None = None,
        *,
        kind: int = 0,
        reward: Sequence[float] = (0.0, 0.0),
    ) -> None:
        """Start the episode of a new agent in `slot`, or continue the one that it had in another slot (`leave`).

        reward: own and group reward in the first request of a new agent.
        """
        self.sums[slot] = 0.0 if so_far is None else so_far.rewards
        self.lengths[slot] = 0 if so_far is None else so_far.length
        self._mates[slot] = 0.0 if so_far is None else so_far.mates
        self._asked.append(slot)
        individual, group = reward if so_far is None else (so_far.undecided, 0.0)
        if so_far is not None:
            self._moved.append((slot, so_far))
        if individual:
            self._undecided[slot] = individual
        founds = self._join(slot, source, group_id, kind, brought=0.0 if so_far is None else float(so_far.rewards[1]))
        if group and founds:  # older members of a team receive its group reward themselves
            team = source.team(group_id)
            self._team_undecided[team] = max(group, self._team_undecided.get(team, 0.0), key=abs)

    def leave(self, slot: tuple[int, int]) -> SoFar:
        """Remove the agent in `slot` without an end of its episode: nothing is reported.

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
            undecided=self._undecided.pop(slot, 0.0),
        )

    def change_team(self, slot: tuple[int, int], source: Source, group_id: int, *, kind: int = 0) -> None:
        """Move the agent in `slot` to another team, or to none, after this message's ends are booked.

        A team whose last members end now is over in spite of that, as with a newcomer under its group id.
        """
        self._leave_team(slot)
        self._joining.append((slot, source, group_id, kind))

    def decide(self, slots: Places, rewards: np.ndarray) -> None:
        """Book the rewards, float32 [N, 2], own and group, of agents that had a decision before and decide again."""
        sums, lengths, paid = self._by_place
        sums[slots] += pairs(rewards)
        lengths[slots] += 1
        paid[slots] = rewards[:, 0]
        self._rewarded.append((slots, self.lengths.shape[1], rewards))

    def end(
        self, slots: Places, ended: TerminalSteps, index: np.ndarray, *, kind: int = 0, worker: int = 0
    ) -> EpisodeRecords:
        """End the episodes of entries `index` of `ended`, of one kind and worker, which lived in these slots.

        Records for other kinds of their teams are in `others` until the message is over. A kind whose members had all
        ended before gets the team's return too.
        """
        rows, members = np.divmod(slots, self.lengths.shape[1])
        rewards = reward_columns(ended.reward, ended.group_reward)[index]
        self.sums[rows, members] += rewards
        self._open[rows, members] = False
        sums, lengths = self.sums[rows, members], self.lengths[rows, members]
        places = list(zip(rows.tolist(), members.tolist(), strict=True))
        received = map(Received, sums[:, 1].tolist(), rewards[:, 1].tolist(), lengths.tolist())
        teams = list(map(self._teams.end, places, received))
        mates = self._mates[rows, members].tolist()
        self._over += [
            (row, own, mates, i) for i, (row, own) in enumerate(zip(rows.tolist(), rewards[:, 0].tolist(), strict=True))
        ]
        records = EpisodeRecords(
            returns=sums[:, 0].tolist(),
            lengths=lengths.tolist(),
            group_rewards=sums[:, 1].tolist(),
            mates_returns=mates,
            team_returns=[],
            games=[],
            undecided=[self._undecided.pop(slot, 0.0) for slot in places],
            team_undecided=[],
        )
        ends = map(partial(GameEnd, worker), rewards.sum(-1).tolist(), sums.sum(-1).tolist())
        games = [None if ended.truncated[i] else end for i, end in zip(index, ends, strict=True)]
        for team, game in zip(teams, games, strict=True):
            if team is not None:
                self._last.setdefault(team, []).append(_Last(game, kind))
            elif game is not None:
                records.games.append(game)
        for team in dict.fromkeys(team for team in teams if team is not None):
            if self._teams.is_over(team):
                self._end_team(team, records, kind)
        return records

    def _end_team(self, team: Team, records: EpisodeRecords, kind: int) -> None:
        """Add a team's episode to the records of this kind, and to `others` for those of its other kinds."""
        last, whole, undecided = self._last.pop(team), self._teams.earned(team), self._team_undecided.get(team, 0.0)
        for other in sorted(self._kinds[team]):
            target = records if other == kind else EpisodeRecords(*([] for _ in EpisodeRecords._fields))
            target.games.extend(member.game for member in last if member.kind == other and member.game is not None)
            target.team_returns.append(whole)
            target.team_undecided.append(undecided)
            if other != kind:
                self.others.append((other, target))
        self._over_with(team)

    def message_over(self) -> None:
        """Finish this message: credit each individual reward to every pending decision of its row.

        Decisions of members that ended with it count too: they acted in the state that the reward belongs to.
        """
        if self._open.shape[1] > 1 and (self._over or self._moved or np.count_nonzero(self._paid)):
            earned = self._paid.sum(-1)
            for row, individual, _, _ in self._over:
                earned[row] += individual
            self._mates += np.where(self._open, earned[:, None] - self._paid, 0.0)
            for row, individual, mates, place in self._over:
                mates[place] += float(earned[row]) - individual
            for slot, so_far in self._moved:
                self._mates[slot] += float(earned[so_far.row]) - so_far.paid
        for slot, source, group_id, kind in self._joining:
            self._join(slot, source, group_id, kind, brought=float(self.sums[slot][1]))
        self._joining.clear()
        self._teams.message_over()
        self._rewarded.clear()
        self._newest.clear()
        self._paid[:] = 0.0
        self._over.clear()
        self._last.clear()
        self.others.clear()
        self._moved.clear()
        if self._asked:
            self._open[tuple(np.array(self._asked, np.int64).T)] = True
            self._asked.clear()

    def _join(self, slot: tuple[int, int], source: Source, group_id: int, kind: int, brought: float = 0.0) -> bool:
        """Add an agent to its team, if it has one. Return whether it founds the team.

        brought: group rewards that it received in other teams.
        """
        if group_id == NO_GROUP:
            return False
        team = source.team(group_id)
        self._kinds.setdefault(team, set()).add(kind)
        return self._teams.join(slot, team, brought)

    def _leave_team(self, slot: tuple[int, int]) -> None:
        team = self._teams.leave(slot)
        if team is not None and self._teams.is_over(team):
            self._over_with(team)

    def _over_with(self, team: Team) -> None:
        self._teams.forget(team)
        del self._kinds[team]
        self._team_undecided.pop(team, None)

    def _received(self, slot: tuple[int, int]) -> Received:
        if self._rewarded and not self._newest:
            for slots, members, rewards in self._rewarded:
                where = zip(*(x.tolist() for x in np.divmod(slots, members)), strict=True)
                self._newest.update(zip(where, rewards[:, 1].tolist(), strict=True))
        return Received(float(self.sums[slot][1]), self._newest.get(slot), int(self.lengths[slot]))
