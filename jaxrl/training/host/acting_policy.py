"""A policy that acts ("actor"): it decides for the agents of one behavior and keeps the streams of what they do.

Knows no learner, no process and no file. `decide`, the one compiled call per environment result, acts and appends to
the `PagedBuffer`. Whose policy it is, and who learns from its streams, is a matter of the host loop's routing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from jaxrl.algorithms.interface import Algorithm, PolicyState, nothing_remembered
from jaxrl.rollout import noise
from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.booking.occupants import Places, first_sizes
from jaxrl.rollout.booking.records import Ingested
from jaxrl.rollout.booking.row_arrays import by_place
from jaxrl.rollout.booking.slots import Slots, Source
from jaxrl.settings import EnvironmentSettings
from jaxrl.training.host import connectors
from jaxrl.training.host.collector import USUAL, Collector, Watch
from jaxrl.training.host.decide import ActorPrograms
from jaxrl.training.host.paged_buffer import PagedBuffer, Wanted
from jaxrl.types import NOTHING, Action, BehaviorMessage, BehaviorSpec


class ActingPolicy(Collector):
    """Acts for one behavior and keeps what happens.

    Args:
      run_key: two words; with the number of a decision they fix its noise.
      environment: what becomes of actions that agents took otherwise, and of agents that vanish.
      most: members of a team, at most; None: any number.
      watch: is told of each message that was booked.
    """

    def __init__(
        self,
        name: str,
        spec: BehaviorSpec,
        algorithm: Algorithm,
        programs: ActorPrograms,
        policy: PolicyState,
        run_key: list[int],
        wanted: Wanted,
        environment: EnvironmentSettings = USUAL,
        *,
        most: int | None = None,
        watch: Watch | None = None,
    ) -> None:
        super().__init__(name, wanted, environment, watch)
        self.spec = spec
        self.algorithm = algorithm
        self.policy = policy  # whoever learns replaces it after each update
        self.programs = programs
        self._run_key, self._most = run_key, most
        self.known = unseen(spec)  # what `recorded` gives before the first message

    @property
    def statistics(self) -> Any:
        """What its connectors have learned of their input, as `PolicyState.connectors`."""
        return self._connected.state.shared if self._connected else self.policy.connectors

    def act_as(self, policy: PolicyState) -> None:
        """Another policy from now on, with what its own connectors have learned of their input."""
        self.policy, self._connected = policy, connectors.with_statistics(self._connected, policy.connectors)

    def act(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> tuple[dict[Source, Action], list[EpisodeRecords], int]:
        """Book one message per source; nobody learns from the decisions of agents in `untrained`, ids by source.

        Returns each source's actions in its agents' order, finished episodes, and how many decisions got their reward.
        Raises ExternalActionError for what agents cannot have done, or what cannot be learned from.
        """
        ingested, action = self.book(messages, untrained)
        by_source = {source: at(action, places) for source, places in ingested.decisions.items()}
        return by_source, ingested.episodes, ingested.finished

    def recorded(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Newest real observations and action masks, [N, *shape] and [N, M], for checking an exported policy."""
        if self.paged is None:
            return self.known
        return self.paged.slots.recorded()

    def _decide(self, paged: PagedBuffer, ingested: Ingested) -> Action:
        if ingested.taken is not None or ingested.left_out is not None:
            self._amend(paged, ingested)
        key_data = noise.noise_key(self._run_key, self.decisions)
        remembers = bool(self.algorithm.memories) or self.algorithm.connectors is not None
        moved = () if ingested.moved is None or not remembers else (ingested.moved,)
        action, paged.buffer, self._connected = self.programs.decide(
            self.policy, paged.buffer, ingested.steps, key_data, self._connected, *moved
        )
        return action

    def _amend(self, paged: PagedBuffer, ingested: Ingested) -> None:
        """Open decisions that were taken otherwise, and those that nobody shall learn from."""
        replace = self.programs.replace_actions
        if ingested.taken is not None and replace is not None:
            members, action = ingested.taken
            paged.buffer, raw = replace(self.policy, paged.buffer, members, action)
            if self.algorithm.connectors is not None:
                self._connected = connectors.taken(self.algorithm.connectors, self._connected, members, raw, action)
        elif ingested.taken is not None and self.environment.outside_actions == "train":
            raise connectors.not_scored(self.name, self.algorithm)
        if ingested.left_out is not None:
            paged.buffer = self.programs.leave_out(paged.buffer, ingested.left_out)

    def _grow(self, paged: PagedBuffer) -> None:
        if self.algorithm.connectors is not None:
            self._connected = connectors.resize(self._connected, (paged.slots.rows, paged.slots.members))

    def _buffer_for(self, messages: Mapping[Source, BehaviorMessage]) -> PagedBuffer:
        algorithm = self.algorithm
        rows, (members,) = first_sizes(messages, team_rows=algorithm.team_rows)
        if algorithm.connectors is not None:
            self._connected = connectors.start(algorithm.connectors, self.policy.connectors, (rows, members))
        slots = Slots(
            self.spec,
            team_rows=algorithm.team_rows,
            rows=rows,
            members=members,
            max_length=self.wanted.max_length,
            leave_out_taken=self.environment.outside_actions == "leave_out",
            interrupt_overdue=self.environment.missing == "carry",
            most=(self._most,),
        )

        def allocate(capacity: int) -> Any:
            return allocated(self.programs, self.spec, algorithm, capacity, rows, members)

        return PagedBuffer(self.name, slots, self.programs, allocate, self.wanted, cut=self._cut)


def allocated(
    programs: ActorPrograms, spec: BehaviorSpec, algorithm: Algorithm, capacity: int, rows: int, members: int
) -> Any:
    """An empty buffer of what the algorithm keeps of its decisions, with observations as its connectors show them."""
    shown = spec if algorithm.connectors is None else algorithm.connectors.spec
    sizes = {"capacity": capacity, "rows": rows, "members": members}
    return programs.allocate(shown, algorithm.extras, nothing_remembered(algorithm), **sizes)


def unseen(spec: BehaviorSpec) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Observations and masks of one agent of which nothing was seen."""
    zeros = tuple(np.zeros((1, *sensor.shape), sensor.dtype) for sensor in spec.observations)
    return zeros, np.ones((1, spec.action.mask_size), bool)


def at(action: Action, places: Places) -> Action:
    """The actions [N, ...] of those who live at these places, of actions over rows."""
    return Action(*(by_place(np.asarray(x)).take(places, axis=0) for x in action))
