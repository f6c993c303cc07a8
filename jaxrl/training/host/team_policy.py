"""Actor for teams of several behaviors: each behavior with its own policy, over shared rows.

One compiled call decides for all behaviors and appends to their buffers, which have common rows, pages and states
(`rollout.buffer.kinds`).
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
    """Part of a team's actor for one behavior: its policy and its agents. The `team` holds the collected data.

    Its programs are those of this behavior without the team. They serve frozen policies of this behavior, and replace
    actions.
    """

    team: TeamPolicy  # whole actor that it is a part of

    @property
    def number(self) -> int:
        """Index among the team's behaviors."""
        return list(self.team.kinds).index(self.name)

    def lose(self, loss: Loss) -> int:
        """Drop the pending decisions of this behavior's agents of a lost worker or copy. Returns their number."""
        paged = self.team.paged
        return 0 if paged is None else paged.slots.lose(loss, self.name)

    def recorded(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Return this behavior's newest real observations and action masks, to check an exported policy with."""
        paged = self.team.paged
        return self.known if paged is None else paged.slots.recorded(self.number)


class TeamPolicy(Collector):
    """Acts for all behaviors of a team and stores the trajectories.

    Args:
      kinds: the parts of its behaviors, in a fixed order.
      programs: `decide.decide_together` and the programs of its buffer.
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
        """Book one message per source; decisions of agents in `untrained` (ids by source) are not learned from.

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
        """Forget all agents and trajectories; keep only the number of decisions."""
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
        """Return, for each behavior with memory to move, its moved members by their places within the behavior."""
        kinds = list(self.kinds.values())
        if moved is None:
            return (None,) * len(kinds)
        parts = []
        for number, kind in enumerate(kinds):
            columns = slots.columns(number)
            origin = moved.origin[:, columns]
            origin = np.where(origin >= 0, slots.own(number, origin), -1).astype(np.int32)
            parts.append(Moved(origin, moved.reward[:, columns]) if kind.remembers else None)
        return tuple(parts)

    def _amend(self, paged: PagedBuffer, ingested: Ingested) -> None:
        """Replace pending actions by the environment's, and leave out decisions that are not to be learned from."""
        parts = zip(self.kinds.values(), paged.buffer.kinds, ingested.kinds, strict=True)
        buffers = tuple(kind.replaced(buffer, brought.taken) for kind, buffer, brought in parts)
        paged.buffer = KindTrajectories(buffers)
        if ingested.left_out is not None:
            left_out = [ingested.left_out[:, paged.slots.columns(number)] for number in range(len(self.kinds))]
            paged.buffer = self.programs.leave_out(paged.buffer, left_out)

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
