"""Agents of the environments → fixed rows of the trajectory buffer. Host side, numpy only.

An agent lives in a slot (row, member) from its first decision to its end; a freed slot is taken by the next agent,
since ids name episodes and are never used twice. With `team_rows` a row holds a whole team, and an agent whose group id
changes moves to the row of its new team; otherwise every agent has a row of its own (A = 1). Tables grow to the next
power of two when a message needs more; the arrays handed out then are larger, and the caller lets the device buffer
follow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from jaxrl.rollout.episodes import EpisodeRecords, Episodes, SoFar, reward_columns
from jaxrl.rollout.limit import interrupted
from jaxrl.rollout.occupants import Occupant, Occupants, Source
from jaxrl.rollout.records import Ending, Gone, RowsMessage
from jaxrl.rollout.silence import Silence, dense
from jaxrl.types import NO_GROUP, NOTHING, Action, BehaviorMessage, BehaviorSpec, DecisionSteps, TerminalSteps

Places = tuple[np.ndarray, np.ndarray]  # rows [N], members [N]
NO_EPISODES = EpisodeRecords(
    returns=[], lengths=[], group_rewards=[], mates_returns=[], group_returns=[], team_returns=[]
)


class Ingested(NamedTuple):
    """One message per source, turned into rows."""

    steps: RowsMessage  # views of the tables, valid until the next `ingest`
    decisions: dict[Source, Places]  # slots of its deciding agents, in their order
    finished: int  # decisions whose reward arrived, or never will: the trainer step grows by it
    episodes: list[EpisodeRecords]
    # Of decisions that were open before this message:
    taken: tuple[np.ndarray, Action] | None = None  # bool [B, A], and what their agents did instead [B, A, ...]
    left_out: np.ndarray | None = None  # bool [B, A], their outcome is told now, and nobody shall learn from them
    origin: np.ndarray | None = None  # int32 [B, A], slot that a member has moved from, row * A + member, or -1


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def first_size(messages: Mapping[Source, BehaviorMessage], *, team_rows: bool) -> tuple[int, int]:
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

    def __init__(
        self,
        spec: BehaviorSpec,
        *,
        team_rows: bool,
        rows: int,
        members: int,
        max_length: int | None = None,
        leave_out_taken: bool = False,
    ) -> None:
        self.spec = spec
        self.max_length = max_length  # decisions after which an agent's episode is interrupted here; None: never
        self.team_rows = team_rows
        self._silence = Silence(spec, leave_out_taken=leave_out_taken)
        self._occupants = Occupants(team_rows=team_rows)
        self._cached: dict[Source, tuple[bytes, Places]] = {}  # last deciding ids and groups, and their slots
        self._moving: dict[tuple[Source, int], tuple[SoFar, Occupant]] = {}  # (source, agent id) between two rows
        self._moved: list[tuple[Occupant, Occupant]] = []  # from and to, with this message
        self._discarded: list[Source] = []
        self._episodes = Episodes()
        self._alive = np.zeros((0, 0), bool)
        self._gone = np.zeros((0, 0), np.uint8)  # [B, A], `Gone` since the row's newest state
        self._gone_now = np.zeros((0, 0), bool)  # with this message
        self._gone_reward = np.zeros((0, 0, 2), np.float32)
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

    def ingest(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> Ingested:
        """Book one message per source, in the order given: moves and endings first (M6), then decisions.

        Nobody learns from the decisions of agents in `untrained`, ids by source, nor from those of agents whose infos
        say `training_enabled: false` (R45).

        Raises OutsideActionError for what agents cannot have done.

        Agents that are first seen ended leave no trace but an episode of length 0 (M4, U1). Agents in neither list keep
        their open decision (U2). Whoever asks under another group id than before has left its old team.
        """
        self._reward[:] = self._earned[:] = 0.0
        self._ending[:] = Ending.OPEN
        self._present[:] = False
        self._deciding[:] = False
        self._gone_now[:] = False
        self._moved.clear()
        taken = self._silence.taken(messages, self._occupants)
        self._end_discarded()
        finished, episodes, decisions = 0, [], {}
        if self.max_length is not None:
            messages = {source: self._limited(source, steps, self.max_length) for source, steps in messages.items()}
        for source, steps in messages.items():
            finished += self._move(source, steps)
            if len(steps.ended.agent_id):
                records = self._end(source, steps.ended)
                finished += len(records.returns)
                episodes.append(records)
        if self._gone_now.any():
            self._close(np.flatnonzero(self._gone_now.any(-1) & ~self._alive.any(-1)))
        for source, steps in messages.items():
            decisions[source], again = self._place(source, steps.deciding)
            finished += self._decide(decisions[source], again, steps.deciding)
        self._episodes.message_over()
        acts = np.asarray(self._deciding.any(-1))
        if self._gone.any():
            self._tell(np.flatnonzero(acts), np.uint8(Ending.LEFT))
        self._present[1] = self._alive & acts[:, None]
        ingested = Ingested(
            steps=self._rows_message(),
            decisions=decisions,
            finished=finished,
            episodes=episodes,
            origin=self._origin() if self._moved else None,
        )
        if not taken and not self._silence.concerns(messages, untrained):  # nearly always
            return ingested
        left_out, fewer = self._silence.tell(ingested, messages, untrained, gone_now=self._gone_now)
        return ingested._replace(
            finished=finished - fewer, taken=dense(taken, self.spec, self._alive.shape), left_out=left_out
        )

    def discard(self, source: Source) -> int:
        """Forget the agents of a source that is no more, or was reset; an unknown source is no error (U7, R10).

        The next `ingest` says so, whatever else it brings: their rows end as truncated with their newest observations,
        and no episode is reported. Their open decisions, whose outcome nobody will know, do not count as finished and
        are not trained on. Returns how many these are, one for each agent.
        """
        if source in self._discarded:
            return 0
        self._discarded.append(source)
        return len(self._occupants.of(source))

    def sources(self, worker: int, incarnation: int) -> list[Source]:
        """Those of one process of a worker that have ever shown an agent."""
        return [s for s in self._occupants.sources() if (s.worker, s.incarnation) == (worker, incarnation)]

    @property
    def living(self) -> np.ndarray:
        """bool [B], rows with a member that lives; a discarded one does until the next `ingest`."""
        return np.asarray(self._alive.any(-1))

    def recorded(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Newest observations [N, *shape] and masks [N, M] of living agents (else all), repeated so that N is B · A."""
        living = np.flatnonzero(self._alive) if self._alive.any() else np.arange(self._alive.size)
        at = np.unravel_index(np.resize(living, self._alive.size), self._alive.shape)
        return tuple(table[1][at] for table in self._obs), self._action_mask[at]

    def _rows_message(self) -> RowsMessage:
        return RowsMessage(
            obs=self._obs,
            action_mask=self._action_mask,
            reward=self._reward,
            earned=self._earned,
            ending=self._ending,
            present=self._present,
            deciding=self._deciding,
        )

    def _origin(self) -> np.ndarray:
        """Where members have moved from, as `Ingested.origin`."""
        origin = np.full(self._alive.shape, -1, np.int32)
        for home, place in self._moved:
            origin[place.row, place.member] = home.row * self.members + home.member
        return origin

    def _limited(self, source: Source, steps: BehaviorMessage, most: int) -> BehaviorMessage:
        """The message with an end of the episode for agents that ask after `most` decisions of it (X20)."""
        homes, ids = self._occupants.of(source), steps.deciding.agent_id.tolist()
        known = [(i, homes[agent]) for i, agent in enumerate(ids) if agent in homes]
        lengths = self._episodes.lengths[_places([home for _, home in known])]
        late = [known[i][0] for i in np.flatnonzero(lengths >= most - 1).tolist()]
        ended = set(steps.ended.agent_id.tolist()) if late else ()
        late = [i for i in late if ids[i] not in ended]
        return interrupted(steps, late) if late else steps

    def _end_discarded(self) -> None:
        """All rows of discarded sources end here."""
        homes = [home for source in self._discarded for home in self._occupants.forget(source)]
        for source in self._discarded:
            self._cached.pop(source, None)
        self._discarded.clear()
        if not homes:
            return
        places = _places(homes)
        for slot in zip(*(axis.tolist() for axis in places), strict=True):
            self._episodes.leave(slot)
        newest = tuple(table[1][places] for table in self._obs)
        self._depart(places, np.full(len(homes), Gone.DROPPED), np.zeros((len(homes), 2), np.float32), newest)

    def _move(self, source: Source, steps: BehaviorMessage) -> int:
        """Agents that ask under another group id leave their team, and with `team_rows` their row.

        Returns how many decisions were finished by it. An id that also ended with this message is a new agent.
        """
        deciding = steps.deciding
        cached = self._cached.get(source)
        if cached is not None and cached[0] == _who(deciding):
            return 0
        homes, ended = self._occupants.of(source), set(steps.ended.agent_id.tolist())
        known = [(agent, homes.get(agent)) for agent in deciding.agent_id.tolist()]
        groups = deciding.group_id.tolist()
        moved = [
            (i, agent, home)
            for i, (agent, home) in enumerate(known)
            if home is not None and home.group != groups[i] and agent not in ended
        ]
        if not moved:
            return 0
        if not self.team_rows:
            for i, agent, home in moved:
                self._occupants.settle(source, agent, home._replace(group=groups[i]))
                self._episodes.change_team((home.row, home.member), source, groups[i])
            return 0
        places, index = _places([home for _, _, home in moved]), [i for i, _, _ in moved]
        rewards = reward_columns(deciding.reward, deciding.group_reward)[index]
        self._episodes.decide(places, rewards)
        for _, agent, home in moved:
            self._occupants.remove(source, agent)
            self._moving[source, agent] = self._episodes.leave((home.row, home.member)), home
        self._depart(places, np.full(len(moved), Gone.MOVED), rewards, tuple(obs[index] for obs in deciding.obs))
        return len(moved)

    def _end(self, source: Source, ended: TerminalSteps) -> EpisodeRecords:
        homes = [self._occupants.remove(source, agent) for agent in ended.agent_id.tolist()]
        index = np.array([i for i, home in enumerate(homes) if home is not None], np.int64)
        unknown = len(homes) - len(index)
        if not len(index):
            return NO_EPISODES._replace(lengths=[0] * unknown)
        places = _places([home for home in homes if home is not None])
        rewards = reward_columns(ended.reward, ended.group_reward)[index]
        how = np.where(ended.truncated[index], Gone.TRUNCATED, Gone.TERMINATED)
        self._depart(places, how, rewards, tuple(obs[index] for obs in ended.obs))
        self._cached.pop(source, None)
        records = self._episodes.end(*places, ended, index)
        return records._replace(lengths=records.lengths + [0] * unknown)

    def _depart(self, places: Places, how: np.ndarray, rewards: np.ndarray, obs: tuple[np.ndarray, ...]) -> None:
        """Members leave their slots with the reward of their open decision and their last observation."""
        self._alive[places] = False
        self._gone[places] = how
        self._gone_now[places] = True
        self._gone_reward[places] = rewards
        self._earned[places] = rewards[:, 0]
        for table, last in zip(self._obs, obs, strict=True):
            table[0][places] = last

    def _close(self, rows: np.ndarray) -> None:
        """Rows [K] whose last member has gone with this message: what followed for everybody who left, and free them.

        An interrupted team has a final state of all that went with this message, also of those that did not end by
        interruption. So has one whose last members moved, of these alone: they live on, but not in what comes next in
        this row. Who ended before is credited with what an interrupted team would have earned, else with nothing more.
        """
        gone, now = self._gone[rows], self._gone_now[rows]
        moved, dropped = gone == Gone.MOVED, gone == Gone.DROPPED
        interrupted = (now & (dropped | (gone == Gone.TRUNCATED))).any(-1, keepdims=True)
        final = now & (moved | interrupted)
        final |= moved & ~final.any(-1, keepdims=True)  # moved before, and the others ended for good
        bootstrap = np.where(final, Ending.TRUNCATED, Ending.LEFT)
        follows = np.where(now, gone != Gone.TERMINATED, moved | interrupted)
        self._present[0][rows] = final
        ending = np.where(follows, bootstrap, Ending.TERMINATED)
        self._tell(rows, np.where(dropped, Ending.DROPPED, ending).astype(np.uint8))
        for row in rows.tolist():
            self._occupants.free(row)

    def _tell(self, rows: np.ndarray, ending: np.ndarray | np.uint8) -> None:
        """Endings and rewards of the members of `rows` that left: [K, A], or one for all."""
        # Told earlier, they would bootstrap from the first state of the team that takes the row next.
        at, members = np.nonzero(self._gone[rows])
        left = rows[at], members
        self._reward[left] = self._gone_reward[left]
        self._ending[left] = np.broadcast_to(ending, (len(rows), self.members))[at, members]
        self._gone[left] = Gone.NOBODY

    def _place(self, source: Source, deciding: DecisionSteps) -> tuple[Places, np.ndarray | slice]:
        """Slots of the deciding agents, and which of them had decided there before."""
        who = _who(deciding)
        cached = self._cached.get(source)
        if cached is not None and cached[0] == who:
            return cached[1], slice(None)
        ids, homes = deciding.agent_id.tolist(), self._occupants.of(source)
        again = np.array([agent in homes for agent in ids], bool)
        places = _places(
            [
                homes.get(agent) or self._settle(source, agent, group)
                for agent, group in zip(ids, deciding.group_id.tolist(), strict=True)
            ]
        )
        self._cached[source] = (who, places)
        return places, again

    def _settle(self, source: Source, agent: int, group: int) -> Occupant:
        row = self._occupants.row_for(source, group)
        if row is None:
            self._resize(next_power_of_two(self.rows + 1), self.members)
            return self._settle(source, agent, group)
        if self._alive[row].all():
            self._resize(self.rows, next_power_of_two(self.members + 1))
        home = Occupant(row=row, member=int(np.argmin(self._alive[row])), group=group)
        slot = home.row, home.member
        self._alive[slot] = True
        self._occupants.settle(source, agent, home)
        so_far, before = self._moving.pop((source, agent), (None, None))
        if before is not None:
            self._moved.append((before, home))
        self._episodes.start(slot, source, group, so_far)
        return home

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

        self._occupants.add_rows(rows)
        self._alive = fit(self._alive, 0)
        self._gone = fit(self._gone, 0)
        self._gone_now = fit(self._gone_now, 0)
        self._gone_reward = fit(self._gone_reward, 0)
        self._obs = tuple(fit(x, 1) for x in self._obs)
        self._action_mask = fit(self._action_mask, 0, fill=True)
        self._reward = fit(self._reward, 0)
        self._earned = fit(self._earned, 0)
        self._ending = fit(self._ending, 0)
        self._present = fit(self._present, 1)
        self._deciding = fit(self._deciding, 0)
        self._silence.silent = fit(self._silence.silent, 0)
        self._episodes.resize(rows, members)
        self._cached.clear()


def _who(deciding: DecisionSteps) -> bytes:
    """Ids and group ids of the deciding agents: whoever is the same in both still lives where it lived."""
    return deciding.agent_id.tobytes() + deciding.group_id.tobytes()


def _places(homes: list[Occupant]) -> Places:
    pairs = np.array([(home.row, home.member) for home in homes], np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
