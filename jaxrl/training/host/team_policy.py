"""What acts for teams whose members are of several behaviors: each with its own policy, over shared rows.

One compiled call decides for all kinds of members and appends to their buffers, whose rows, pages and states are the
same (`rollout.buffer.kinds`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.algorithms.interface import Algorithm, PolicyState
from jaxrl.artifacts.names import behavior_name
from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout import noise
from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.booking.occupants import first_sizes
from jaxrl.rollout.booking.records import Ingested, Moved
from jaxrl.rollout.booking.slots import Slots, Source
from jaxrl.rollout.buffer.kinds import KindTrajectories
from jaxrl.settings import EnvironmentSettings
from jaxrl.training.host import connectors
from jaxrl.training.host.acting_policy import allocated, at, unseen
from jaxrl.training.host.collector import USUAL, Collector, Watch
from jaxrl.training.host.decide import ActorPrograms
from jaxrl.training.host.paged_buffer import PagedBuffer, Wanted
from jaxrl.types import NOTHING, Action, BehaviorMessage, BehaviorSpec


class KindPolicy:
    """One kind's part of a team's actor: its policy and its agents. What is collected is the `team`'s.

    Args:
      programs: of this kind alone, for policies that are like it and act by themselves; actions are replaced with them.
      run_key: two words; with the number of a decision they fix its noise.
      most: members of this kind in a team, at most; None: any number.
      watch: is told of each message that was booked, of what it says of this kind.
    """

    def __init__(
        self,
        name: str,
        spec: BehaviorSpec,
        algorithm: Algorithm,
        programs: ActorPrograms,
        policy: PolicyState,
        run_key: list[int],
        environment: EnvironmentSettings = USUAL,
        most: int | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.name = name
        self.spec = spec
        self.algorithm = algorithm
        self.programs = programs
        self.policy = policy  # whoever learns replaces it after each update
        self.run_key, self.most, self.watch = run_key, most, watch
        self.environment = environment
        self.connected: Any = ()  # what its connectors remember
        self.known = unseen(spec)  # what `recorded` gives before the first message
        self.team: TeamPolicy  # that it is a part of

    @property
    def number(self) -> int:
        """Its place among the kinds."""
        return list(self.team.kinds).index(self.name)

    @property
    def statistics(self) -> Any:
        """What its connectors have learned of their input, as `PolicyState.connectors`."""
        return self.connected.state.shared if self.connected else self.policy.connectors

    def act_as(self, policy: PolicyState) -> None:
        """As `ActingPolicy`."""
        self.policy, self.connected = policy, connectors.with_statistics(self.connected, policy.connectors)

    def lose(self, loss: Loss) -> int:
        """Drop what agents of this kind had begun, of a lost process or copy. Returns their number."""
        paged = self.team.paged
        if paged is None:
            return 0
        sources = paged.slots.sources(loss.worker, loss.incarnation)
        return sum(self.team.lose_of(s, loss) for s in sources if behavior_name(s.behavior_id) == self.name)

    def recorded(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Newest real observations and action masks of this kind, for checking an exported policy."""
        paged = self.team.paged
        return self.known if paged is None else paged.slots.recorded(self.number)


class TeamPolicy(Collector):
    """Acts for all kinds of members of the same teams and keeps what happens.

    Args:
      kinds: by behavior, in an order that stays.
      programs: `decide.decide_together` and what goes with it.
    """

    def __init__(
        self,
        name: str,
        kinds: Sequence[KindPolicy],
        programs: ActorPrograms,
        wanted: Wanted,
        environment: EnvironmentSettings = USUAL,
    ) -> None:
        super().__init__(name, wanted, environment)
        self.kinds = {kind.name: kind for kind in kinds}
        self.programs = programs
        self._place = {name: number for number, name in enumerate(self.kinds)}
        for kind in kinds:
            kind.team = self

    def act(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> tuple[dict[Source, Action], dict[str, list[EpisodeRecords]], dict[str, int]]:
        """Book one message per source; nobody learns from the decisions of agents in `untrained`, ids by source.

        Returns each source's actions in its agents' order; by behavior the finished episodes, and how many decisions
        got their reward. Raises ExternalActionError.
        """
        ingested, actions = self.book(messages, untrained)
        assert self.paged is not None
        by_source = {}
        for source, places in ingested.decisions.items():
            kind = self._place[behavior_name(source.behavior_id)]
            by_source[source] = at(actions[kind], self.paged.slots.own(kind, places))
        finished = {}
        for kind, brought, rows in zip(
            self.kinds.values(), ingested.kinds, (ingested.steps, *ingested.beside), strict=True
        ):
            if kind.watch is not None:
                kind.watch(rows)
            finished[kind.name] = brought.finished
        episodes = {name: brought.episodes for name, brought in zip(self.kinds, ingested.kinds, strict=True)}
        return by_source, episodes, finished

    def begin_anew(self) -> None:
        """Nothing has been seen yet; only the number of decisions goes on."""
        super().begin_anew()
        for kind in self.kinds.values():
            kind.policy, kind.connected = kind.policy.replace(connectors=kind.statistics), ()

    def _decide(self, paged: PagedBuffer, ingested: Ingested) -> tuple[Action, ...]:
        self._amend(paged, ingested)
        kinds = list(self.kinds.values())
        actions, paged.buffer, connected = self.programs.decide(
            tuple(kind.policy for kind in kinds),
            paged.buffer,
            (ingested.steps, *ingested.beside),
            tuple(noise.noise_key(kind.run_key, self.decisions) for kind in kinds),
            tuple(kind.connected for kind in kinds),
            self._moved(paged.slots, ingested.moved),
        )
        for kind, remembered in zip(kinds, connected, strict=True):
            kind.connected = remembered
        return actions

    def _moved(self, slots: Slots, moved: Moved | None) -> tuple[Moved | None, ...]:
        """Of each kind that remembers anything: members that have moved, with places among their own kind."""
        kinds = list(self.kinds.values())
        if moved is None:
            return (None,) * len(kinds)
        found = []
        for number, kind in enumerate(kinds):
            columns = slots.columns(number)
            origin = moved.origin[:, columns]
            origin = np.where(origin >= 0, slots.own(number, origin), -1).astype(np.int32)
            remembers = bool(kind.algorithm.memories) or kind.algorithm.connectors is not None
            found.append(Moved(origin, moved.reward[:, columns]) if remembers else None)
        return tuple(found)

    def _amend(self, paged: PagedBuffer, ingested: Ingested) -> None:
        """Open decisions that were taken otherwise, and those that nobody shall learn from."""
        for number, (kind, brought) in enumerate(zip(self.kinds.values(), ingested.kinds, strict=True)):
            replace = kind.programs.replace_actions
            if brought.taken is None or (replace is None and self.environment.outside_actions != "train"):
                continue
            if replace is None:
                raise connectors.not_scored(kind.name, kind.algorithm)
            buffers, (members, action) = list(paged.buffer.kinds), brought.taken
            buffers[number], raw = replace(kind.policy, buffers[number], members, action)
            paged.buffer = KindTrajectories(tuple(buffers))
            if kind.algorithm.connectors is not None:
                kind.connected = connectors.taken(kind.algorithm.connectors, kind.connected, members, raw, action)
        if ingested.left_out is not None:
            own = [ingested.left_out[:, paged.slots.columns(number)] for number in range(len(self.kinds))]
            paged.buffer = self.programs.leave_out(paged.buffer, own)

    def _grow(self, paged: PagedBuffer) -> None:
        for kind, members in zip(self.kinds.values(), paged.slots.counts, strict=True):
            if kind.algorithm.connectors is not None:
                kind.connected = connectors.resize(kind.connected, (paged.slots.rows, members))

    def _buffer_for(self, messages: Mapping[Source, BehaviorMessage]) -> PagedBuffer:
        kinds = list(self.kinds.values())
        rows, members = first_sizes(
            messages, len(kinds), lambda source: self._place[behavior_name(source.behavior_id)], team_rows=True
        )
        for kind, count in zip(kinds, members, strict=True):
            if kind.algorithm.connectors is not None:
                kind.connected = connectors.start(kind.algorithm.connectors, kind.policy.connectors, (rows, count))
        first, *others = kinds
        slots = Slots(
            first.spec,
            team_rows=True,
            rows=rows,
            members=members,
            beside={kind.name: kind.spec for kind in others},
            max_length=self.wanted.max_length,
            leave_out_taken=self.environment.outside_actions == "leave_out",
            interrupt_overdue=self.environment.missing == "carry",
            most=[kind.most for kind in kinds],
        )

        def allocate(capacity: int) -> KindTrajectories:
            return KindTrajectories(
                tuple(
                    allocated(self.programs, kind.spec, kind.algorithm, capacity, rows, count)
                    for kind, count in zip(kinds, members, strict=True)
                )
            )

        return PagedBuffer(self.name, slots, self.programs, allocate, self.wanted, cut=self._cut)
