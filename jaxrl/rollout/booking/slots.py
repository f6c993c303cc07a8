"""Agents of the environments → fixed rows of the trajectory buffer. Host side, numpy only.

An agent lives in a slot (row, member) from its first decision to its end; a freed slot is taken by the next agent. An
id that ends and asks in one message is a new agent. An agent takes the lowest free member of its row. With `team_rows`
a row holds a whole team, and an agent whose group id changes moves to the row of its new team; otherwise every agent
has its own row (A = 1). Arrays grow to the next power of two when a message needs more; the returned arrays are larger
then, and the caller has to grow the device buffer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.episodes import NO_EPISODES, EpisodeRecords, Episodes, SoFar, reward_columns
from jaxrl.rollout.booking.missing import interrupted, limited
from jaxrl.rollout.booking.occupants import Occupant, Occupants, Places, Source, Team, places_of
from jaxrl.rollout.booking.overdue import Overdue
from jaxrl.rollout.booking.records import Gone, Ingested, Moved, OfKind
from jaxrl.rollout.booking.row_arrays import RowArrays
from jaxrl.rollout.booking.untrained import UntrainedDecisions, dense
from jaxrl.settings.teams import TeamCapacityError
from jaxrl.types import (
    NO_GROUP,
    NOTHING,
    Action,
    ActionSpec,
    BehaviorMessage,
    BehaviorSpec,
    DecisionSteps,
    TerminalSteps,
)


def next_power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


class Slots:
    """Slots of all agents, and their newest observations.

    Args:
      spec: spec of agents whose behavior is not named in `beside`.
      beside: specs of other kinds of agents by behavior, which may be members of the same teams. Room for them is made
        when they come.
      rows, members: room at the beginning; `members` for the agents of `spec`, or for each kind.
      max_length: decisions after which an agent's episode is interrupted; None: never.
      most: most members of a row by kind; None, or no entry: any number.

    Raises TeamCapacityError for more members than that, as `ingest` does.
    """

    def __init__(
        self,
        spec: BehaviorSpec,
        *,
        team_rows: bool,
        rows: int,
        members: int | Sequence[int],
        beside: Mapping[str, BehaviorSpec] = NOTHING,
        max_length: int | None = None,
        leave_out_taken: bool = False,
        interrupt_overdue: bool = True,
        most: Sequence[int | None] = (),
    ) -> None:
        self.spec = spec
        self._most = most or (None,) * (1 + len(beside))
        self.max_length = max_length
        self.team_rows = team_rows
        specs = (spec, *beside.values())
        self._actions, self._leave_out_taken = [x.action for x in specs], leave_out_taken
        self._kind_of = {name: number for number, name in enumerate(beside, 1)}
        self._untrained = UntrainedDecisions(self._action_of, leave_out_taken=leave_out_taken)
        self._occupants = Occupants(team_rows=team_rows)
        self._cached: dict[Source, tuple[bytes, Places]] = {}  # last deciding ids and groups, and their slots
        self._decisions: dict[Source, Places] = {}  # of this message
        self._moving: dict[tuple[Source, int], tuple[SoFar, Occupant]] = {}  # (source, agent id) between two rows
        self._moved: list[tuple[Occupant, Occupant]] = []  # old and new slots, with this message
        self._discarded: dict[Source, Collection[int] | None] = {}  # ids; None: all
        self._episodes = Episodes()
        self._arrays = RowArrays(specs)
        sensors = [sensor for x in specs for sensor in x.observations]
        self._overdue = Overdue(sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in sensors) // len(specs))
        self._interrupt_overdue = interrupt_overdue
        self._waited = 0  # as `Ingested.waited`
        # Room for members of each kind.
        self.counts = [members] + [0] * len(beside) if isinstance(members, int) else list(members)
        for kind, count in enumerate(self.counts):
            self._room(kind, count)
        self._resize(rows)

    @property
    def rows(self) -> int:
        """B, the rows of the arrays."""
        return self._arrays.alive.shape[0]

    @property
    def members(self) -> int:
        """A, the members of a row, of all kinds."""
        return self._arrays.alive.shape[1]

    def columns(self, kind: int) -> np.ndarray:
        """Return a row's members of a kind, int64 [A of the kind]: kind 0 is `spec`, then those `beside` in order."""
        return self._arrays.columns(kind)

    def ingest(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> Ingested:
        """Book one message per source, in the order given: moves and endings first, then decisions.

        Decisions of agents in `untrained`, ids by source, and of agents whose infos say `training_enabled: false` are
        not learned from.

        Raises ExternalActionError for actions that agents cannot have taken.

        Only the reward of an agent that is first seen ended is booked. Agents in neither list keep their pending
        decision. An agent that asks under another group id than before has left its old team.
        """
        self._arrays.begin_message()
        self._moved.clear()
        self._waited = 0
        finished = [0] * len(self.counts)
        episodes = self._end_overdue(messages)
        for kind, records in episodes:
            finished[kind] += len(records.returns)
        vanished = sum(finished)
        taken = self._untrained.taken(messages, self._occupants)
        dropped = self._end_discarded()
        decisions = self._decisions = {}
        if self.max_length is not None:
            homes, lengths = self._occupants.of, self._episodes.lengths
            messages = {s: limited(steps, homes(s), lengths, self.max_length) for s, steps in messages.items()}
        for source, steps in messages.items():
            kind = self._kind(source)
            finished[kind] += self._move(source, steps)
            if len(steps.ended.agent_id):
                records = self._end(source, steps.ended)
                finished[kind] += len(records.returns)
                episodes.append((kind, records))
        for row in self._arrays.close().tolist():
            self._occupants.free(row)
        self._overdue.message(source for source, steps in messages.items() if len(steps.deciding.agent_id))
        for source, steps in messages.items():
            places, again = self._place(source, steps.deciding)
            decisions[source] = places
            self._overdue.asked(source, places, again)
            kind = self._kind(source)
            old, rewards = self._arrays.decide(kind, places, again, steps.deciding)
            self._episodes.decide(old, rewards)
            finished[kind] += len(rewards)
        episodes += self._episodes.others
        self._episodes.message_over()
        (first, *others), everybody = self._arrays.finish_message()
        left_out: np.ndarray | None = None
        actions: list[tuple[np.ndarray, Action] | None] = [None] * len(finished)
        if taken or self._untrained.concerns(messages, untrained):  # nearly never
            ended = self._arrays.gone_now.copy()
            ended.put(places_of(dropped, self.members), False)  # their decisions do not count in any case
            left_out, fewer = self._untrained.tell(
                decisions, messages, untrained, ending=self._arrays.ending, ended=ended
            )
            for kind, action in enumerate(self._actions):
                columns = self.columns(kind)
                finished[kind] -= int(fewer[:, columns].sum())
                actions[kind] = dense(taken, action, self.rows, columns)
        kinds: tuple[OfKind, ...] = ()
        if others:
            by_kind = [[records for other, records in episodes if other == kind] for kind in range(len(finished))]
            kinds = tuple(OfKind(*fields) for fields in zip(finished, by_kind, actions, strict=True))
        return Ingested(
            steps=first,
            decisions=decisions,
            finished=sum(finished),
            episodes=[records for _, records in episodes],
            vanished=vanished,
            waited=self._waited,
            taken=None if others else actions[0],
            left_out=left_out,
            moved=self._who_moved() if self._moved else None,
            beside=tuple(others),
            everybody=everybody,
            kinds=kinds,
        )

    def discard(self, source: Source, agents: Collection[int] | None = None) -> int:
        """Forget these agents, or all, of a source that was lost or reset; unknown ones are no error.

        The next `ingest` ends their rows as truncated with their newest observations, and reports no episode. Their
        pending decisions, whose outcome stays unknown, do not count as finished and are not trained on. Returns their
        number, one for each agent.
        """
        before = self._discarded.get(source, ())
        if before is None:
            return 0
        living = self._occupants.of(source)
        self._discarded[source] = None if agents is None else {*before, *agents}
        return len(living) - len(before) if agents is None else len(living.keys() & (set(agents) - set(before)))

    def lose(self, loss: Loss, behavior: str | None = None) -> int:
        """Apply `discard` to the agents of a lost process or copy, or of one behavior. Returns their number."""
        lost = 0
        for source in self._occupants.sources():
            name = source.behavior_id.partition("?")[0]
            if (source.worker, source.incarnation) == (loss.worker, loss.incarnation) and behavior in (None, name):
                lost += self.discard(source, None if loss.agents is None else loss.agents.get(source.behavior_id, ()))
        return lost

    def own(self, kind: int, places: Places) -> Places:
        """Convert places of members of a kind to places in rows of that kind alone."""
        return self._arrays.own(kind, places)

    @property
    def living(self) -> np.ndarray:
        """Rows with a living member, bool [B]; a discarded one lives until the next `ingest`."""
        return np.asarray(self._arrays.alive.any(-1))

    def recorded(self, kind: int = 0) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Return newest observations [N, *shape] and masks [N, M] of a kind's living agents, else all; N is B · A."""
        return self._arrays.recorded(kind)

    def _who_moved(self) -> Moved:
        """Return the former slots of members that moved, and their rewards there."""
        shape = self._arrays.alive.shape
        moved = Moved(np.full(shape, -1, np.int32), np.zeros((*shape, 2), np.float32))
        for home, place in self._moved:
            moved.origin[place.row, place.member] = home.row * self.members + home.member
            moved.reward[place.row, place.member] = self._arrays.departed_with[home.row, home.member]
        return moved

    def _end_discarded(self) -> list[Occupant]:
        """End the rows of discarded agents. Returns their slots."""
        homes: list[Occupant] = []
        for source, agents in self._discarded.items():
            homes += self._occupants.forget(source, agents)
            self._cached.pop(source, None)
            self._overdue.forget(source)
        self._discarded.clear()
        if homes:
            for home in homes:
                self._episodes.leave((home.row, home.member))
            self._arrays.drop(places_of(homes, self.members))
        return homes

    def _end_overdue(self, messages: Mapping[Source, BehaviorMessage]) -> list[tuple[int, EpisodeRecords]]:
        """Interrupt agents that seem to have vanished, if newcomers need their room.

        They end with their newest observations. Agents of these messages stay.
        """
        short = self._shortage(messages) if self._interrupt_overdue else None
        if short is None:  # nearly always
            return []
        here, records = np.zeros_like(self._arrays.alive), []
        for source, steps in messages.items():
            for part in steps[:2]:
                here.put(places_of(self._occupants.homes(source, part.agent_id), self.members), True)
        gone = self._overdue.vanished(self._arrays.alive, here, *short)
        for source in self._occupants.sources() if gone.any() else ():
            homes = {i: home for i, home in self._occupants.of(source).items() if gone[home.row, home.member]}
            if homes:
                self._overdue.interrupt(source, homes)
                newest = self._arrays.newest(self._kind(source), places_of(list(homes.values()), self.members))
                ended = interrupted(list(homes), [home.group for home in homes.values()], newest)
                records.append((self._kind(source), self._end(source, ended)))
        return records

    def _shortage(self, messages: Mapping[Source, BehaviorMessage]) -> tuple[int, Counter[int]] | None:
        """Return the rows that newcomers need beyond the free ones, and members by row; None if they need none."""
        newcomers: list[tuple[Source, int]] = []  # sources and groups
        for source, steps in messages.items():
            if not self._is_cached(source, steps.deciding):
                homes, ids = self._occupants.of(source), steps.deciding.agent_id.tolist()
                groups = zip(ids, steps.deciding.group_id.tolist(), strict=True)
                newcomers += [(source, group) for agent, group in groups if agent not in homes]
        if not newcomers:
            return None
        leaving = {source: self._occupants.homes(source, steps.ended.agent_id) for source, steps in messages.items()}
        if not self.team_rows:
            rows = len(newcomers) - self._occupants.free_rows - sum(map(len, leaving.values()))
            return (rows, Counter()) if rows > 0 else None
        staying = self._arrays.alive.copy()
        for homes in leaving.values():
            staying.put(places_of(homes, self.members), False)
        coming: Counter[tuple[int, int]] = Counter()  # by row and kind
        teams: set[Team] = set()
        lone = 0
        for source, group in newcomers:
            row = self._occupants.row_of(source, group)
            if row is not None:
                coming[row, self._kind(source)] += 1
            elif group == NO_GROUP:
                lone += 1
            else:
                teams.add(source.team(group))
        rows = len(teams) + lone - int(np.count_nonzero(~staying.any(-1)))
        members: Counter[int] = Counter()
        for (row, kind), count in coming.items():
            members[row] += max(count - int(np.count_nonzero(~staying[row, self.columns(kind)])), 0)
        return (rows, +members) if rows > 0 or +members else None

    def _move(self, source: Source, steps: BehaviorMessage) -> int:
        """Remove agents that ask under another group id from their team, and with `team_rows` from their row.

        Returns the number of decisions that this finished. An id that also ended with this message is a new agent.
        """
        deciding = steps.deciding
        if self._is_cached(source, deciding):
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
                self._episodes.change_team((home.row, home.member), source, groups[i], kind=self._kind(source))
            return 0
        places, index = places_of([home for _, _, home in moved], self.members), [i for i, _, _ in moved]
        rewards = reward_columns(deciding.reward, deciding.group_reward)[index]
        self._episodes.decide(places, rewards)
        for _, agent, home in moved:
            self._occupants.remove(source, agent)
            self._moving[source, agent] = self._episodes.leave((home.row, home.member)), home
        reasons, obs = np.full(len(moved), Gone.MOVED), tuple(sensor[index] for sensor in deciding.obs)
        self._arrays.depart(self._kind(source), places, reasons, rewards, obs)
        return len(moved)

    def _end(self, source: Source, ended: TerminalSteps) -> EpisodeRecords:
        homes = [self._occupants.remove(source, agent) for agent in ended.agent_id.tolist()]
        index = np.array([i for i, home in enumerate(homes) if home is not None], np.int64)
        strangers = [i for i, home in enumerate(homes) if home is None]
        unknown = ended.reward[strangers].tolist()
        for agent in ended.agent_id[strangers].tolist():
            self._note_return(source, agent)
        if not len(index):
            return NO_EPISODES._replace(undecided=unknown)
        places = places_of([home for home in homes if home is not None], self.members)
        rewards = reward_columns(ended.reward, ended.group_reward)[index]
        reasons = np.where(ended.truncated[index], Gone.TRUNCATED, Gone.TERMINATED)
        self._arrays.depart(self._kind(source), places, reasons, rewards, tuple(obs[index] for obs in ended.obs))
        self._cached.pop(source, None)
        records = self._episodes.end(places, ended, index, kind=self._kind(source), worker=source.worker)
        return records._replace(undecided=records.undecided + unknown)

    def _place(self, source: Source, deciding: DecisionSteps) -> tuple[Places, np.ndarray | slice]:
        """Return the slots of the deciding agents, new for newcomers, and which of them had decided there before."""
        who = _who(deciding)
        cached = self._cached.get(source)
        if cached is not None and cached[0] == who:
            return cached[1], slice(None)
        ids, homes = deciding.agent_id.tolist(), self._occupants.of(source)
        again = np.array([agent in homes for agent in ids], bool)
        rewards = reward_columns(deciding.reward, deciding.group_reward).tolist()
        slots = [
            homes.get(agent) or self._settle(source, agent, group, reward)
            for agent, group, reward in zip(ids, deciding.group_id.tolist(), rewards, strict=True)
        ]
        places = places_of(slots, self.members)  # `members` may have grown by now
        self._cached[source] = (who, places)
        return places, again

    def _settle(self, source: Source, agent: int, group: int, reward: Sequence[float]) -> Occupant:
        """Give a newcomer a slot. reward: own and group reward in its first request."""
        row = self._occupants.row_for(source, group)
        if row is None:
            self._resize(next_power_of_two(self.rows + 1))
            return self._settle(source, agent, group, reward)
        kind = self._kind(source)
        if self._arrays.alive[row, self._arrays.columns(kind)].all():
            self.counts[kind] = self._room(kind, self.counts[kind] + 1)
            self._resize(self.rows)
        columns = self._arrays.columns(kind)
        free = int(columns[np.argmin(self._arrays.alive[row, columns])])
        home = Occupant(row=row, member=free, group=group)
        slot = home.row, home.member
        self._arrays.alive[slot] = True
        self._occupants.settle(source, agent, home)
        self._note_return(source, agent)
        so_far, before = self._moving.pop((source, agent), (None, None))
        if before is not None:
            self._moved.append((before, home))
        self._episodes.start(slot, source, group, so_far, kind=kind, reward=reward)
        return home

    def _note_return(self, source: Source, agent: int) -> None:
        """Note that an agent asks, in case it had been interrupted."""
        self._waited = max(self._waited, self._overdue.came_back(source, agent))

    def _is_cached(self, source: Source, deciding: DecisionSteps) -> bool:
        """Return whether these agents asked last, in this order and under these group ids."""
        cached = self._cached.get(source)
        return cached is not None and cached[0] == _who(deciding)

    def _room(self, kind: int, members: int) -> int:
        """Return the room to make for a kind of which a row needs `members`. Raises TeamCapacityError."""
        most = self._most[kind]
        if most is not None and members > most:
            raise TeamCapacityError(most, members)
        return next_power_of_two(members) if most is None else min(next_power_of_two(members), most)

    def _kind(self, source: Source) -> int:
        """Return the kind of a source's agents, the index of their spec."""
        return self._kind_of.get(source.behavior_id.partition("?")[0], 0) if self._kind_of else 0

    def _action_of(self, source: Source) -> ActionSpec:
        return self._actions[self._kind(source)]

    def _resize(self, rows: int) -> None:
        """Make room for `rows`, and for the members in `counts`."""
        old_members, members = self.members, sum(self.counts)
        for source, places in self._decisions.items():
            self._decisions[source] = places // old_members * members + places % old_members
        self._occupants.add_rows(rows)
        self._arrays.resize(rows, self.counts)
        self._untrained.resize(rows, members)
        self._overdue.resize(rows, members)
        self._episodes.resize(rows, members)
        self._cached.clear()


def _who(deciding: DecisionSteps) -> bytes:
    """Return the ids and group ids of the deciding agents as bytes; agents with equal ones still have their slot."""
    return deciding.agent_id.tobytes() + deciding.group_id.tobytes()
