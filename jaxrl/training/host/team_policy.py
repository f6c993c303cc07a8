"""What acts for teams whose members are of several behaviors: each with its own policy, over shared rows.

One compiled call decides for all kinds of members and appends to their buffers, whose rows, pages and states are the
same (`rollout.buffer.kinds`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from jaxrl.artifacts.names import behavior_name
from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout import noise
from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.booking.occupants import first_sizes
from jaxrl.rollout.booking.records import Ingested, Moved
from jaxrl.rollout.booking.slots import Slots, Source
from jaxrl.rollout.buffer.kinds import KindTrajectories
from jaxrl.settings import EnvironmentSettings
from jaxrl.training.host.acting_policy import ActingKind, at
from jaxrl.training.host.collector import USUAL, Collector
from jaxrl.training.host.decide import ActorPrograms
from jaxrl.training.host.paged_buffer import PagedBuffer, Wanted
from jaxrl.types import NOTHING, Action, BehaviorMessage


class KindPolicy(ActingKind):
    """One kind's part of a team's actor: its policy and its agents. What is collected is the `team`'s.

    Its programs are of this kind alone, for policies that are like it and act by themselves; actions are replaced with
    them.
    """

    team: TeamPolicy  # that it is a part of

    @property
    def number(self) -> int:
        """Its place among the kinds."""
        return list(self.team.kinds).index(self.name)

    def lose(self, loss: Loss) -> int:
        """Drop what agents of this kind had begun, of a lost process or copy. Returns their number."""
        paged = self.team.paged
        return 0 if paged is None else paged.slots.lose(loss, self.name)

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
            kind.forget()

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
            found.append(Moved(origin, moved.reward[:, columns]) if kind.remembers else None)
        return tuple(found)

    def _amend(self, paged: PagedBuffer, ingested: Ingested) -> None:
        """Open decisions that were taken otherwise, and those that nobody shall learn from."""
        of_kinds = zip(self.kinds.values(), paged.buffer.kinds, ingested.kinds, strict=True)
        paged.buffer = KindTrajectories(tuple(kind.replaced(own, brought.taken) for kind, own, brought in of_kinds))
        if ingested.left_out is not None:
            own = [ingested.left_out[:, paged.slots.columns(number)] for number in range(len(self.kinds))]
            paged.buffer = self.programs.leave_out(paged.buffer, own)

    def _grow(self, paged: PagedBuffer) -> None:
        for kind, members in zip(self.kinds.values(), paged.slots.counts, strict=True):
            kind.grow(paged.slots.rows, members)

    def _buffer_for(self, messages: Mapping[Source, BehaviorMessage]) -> PagedBuffer:
        kinds = list(self.kinds.values())
        rows, members = first_sizes(
            messages, len(kinds), lambda source: self._place[behavior_name(source.behavior_id)], team_rows=True
        )
        for kind, count in zip(kinds, members, strict=True):
            kind.connect(rows, count)
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
                    kind.allocated(self.programs, capacity, rows, count)
                    for kind, count in zip(kinds, members, strict=True)
                )
            )

        return PagedBuffer(self.name, slots, self.programs, allocate, self.wanted, cut=self._cut)
