"""An acting policy ("actor") decides for the agents of one behavior and stores their trajectories.

It knows no learner, process or file. `decide`, the one compiled call per environment message, chooses actions and
appends to the `PagedBuffer`. The host loop's routing says which agents the policy acts for and who learns from them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
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


@dataclass(eq=False)
class ActingKind:
    """A policy that acts for the agents of one behavior, and the memory of its connectors."""

    name: str
    spec: BehaviorSpec
    algorithm: Algorithm
    programs: ActorPrograms
    policy: PolicyState  # the learner replaces it after each update
    run_key: list[int]  # two words; together with the number of a decision they fix its noise
    environment: EnvironmentSettings  # says how to treat actions that the environment took itself
    most: int | None  # largest number of members of this behavior in a team; None: any number
    watch: Watch | None  # called with this behavior's rows of each booked message

    def __post_init__(self) -> None:
        self.connected: Any = ()  # memory of its connectors
        self.known = unseen(self.spec)  # result of `recorded` before the first message

    @property
    def statistics(self) -> Any:
        """Input statistics that its connectors have learned, as `PolicyState.connectors`."""
        return self.connected.state.shared if self.connected else self.policy.connectors

    @property
    def remembers(self) -> bool:
        """True if memory moves with an agent that changes its team."""
        return bool(self.algorithm.memories) or self.algorithm.connectors is not None

    def act_as(self, policy: PolicyState) -> None:
        """Replace the policy, together with the input statistics of its connectors."""
        self.policy, self.connected = policy, connectors.with_statistics(self.connected, policy.connectors)

    def learn_no_more(self) -> None:
        """Freeze the input statistics of its connectors by switching to the program `decide_frozen`."""
        self.programs = self.programs._replace(decide=self.programs.decide_frozen or self.programs.decide)

    def forget(self) -> None:
        """Clear the connectors' memory of agents, and keep their statistics."""
        self.policy, self.connected = self.policy.replace(connectors=self.statistics), ()

    def connect(self, rows: int, members: int) -> None:
        """Start the connectors with slots for `rows` rows of `members` members, before the first message."""
        if self.algorithm.connectors is not None:
            self.connected = connectors.start(self.algorithm.connectors, self.policy.connectors, (rows, members))

    def grow(self, rows: int, members: int) -> None:
        """Resize the connectors' memory to `rows` rows of `members` members."""
        if self.algorithm.connectors is not None:
            self.connected = connectors.resize(self.connected, (rows, members))

    def replaced(self, buffer: Any, taken: tuple[np.ndarray, Action] | None) -> Any:
        """Return the buffer with pending actions replaced by `taken`, the environment's. Raises ExternalActionError."""
        replace = self.programs.replace_actions
        if taken is None or (replace is None and self.environment.outside_actions != "train"):
            return buffer
        if replace is None:
            raise connectors.not_scored(self.name, self.algorithm)
        members, action = taken
        buffer, raw = replace(self.policy, buffer, members, action)
        if self.algorithm.connectors is not None:
            self.connected = connectors.taken(self.algorithm.connectors, self.connected, members, raw, action)
        return buffer

    def allocated(self, programs: ActorPrograms, capacity: int, rows: int, members: int) -> Any:
        """Return an empty buffer for its decisions, with observations as its connectors transform them."""
        algorithm = self.algorithm
        shown = self.spec if algorithm.connectors is None else algorithm.connectors.spec
        sizes = {"capacity": capacity, "rows": rows, "members": members}
        return programs.allocate(shown, algorithm.extras, nothing_remembered(algorithm), **sizes)


class ActingPolicy(Collector, ActingKind):
    """Acts for one behavior and stores the trajectories. For arguments see `Collector` and `ActingKind`."""

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
        Collector.__init__(self, name, wanted, environment)
        ActingKind.__init__(self, name, spec, algorithm, programs, policy, run_key, environment, most, watch)

    def act(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> tuple[dict[Source, Action], list[EpisodeRecords], int]:
        """Book one message per source; decisions of agents in `untrained` (ids by source) are not learned from.

        Returns each source's actions in its agents' order, finished episodes, and how many decisions got their reward.
        Raises ExternalActionError for actions that agents cannot have taken, or that cannot be learned from.
        """
        ingested, action = self.book(messages, untrained)
        if self.watch is not None:
            self.watch(ingested.rows)
        by_source = {source: at(action, places) for source, places in ingested.decisions.items()}
        return by_source, ingested.episodes, ingested.finished

    def begin_anew(self) -> None:
        """Forget all agents and trajectories; keep only the number of decisions."""
        super().begin_anew()
        self.forget()

    def recorded(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Return the newest real observations [N, *shape] and action masks [N, M], to check an exported policy with."""
        if self.paged is None:
            return self.known
        return self.paged.slots.recorded()

    def _decide(self, paged: PagedBuffer, ingested: Ingested) -> Action:
        paged.buffer = self.replaced(paged.buffer, ingested.taken)
        if ingested.left_out is not None:
            paged.buffer = self.programs.leave_out(paged.buffer, ingested.left_out)
        key_data = noise.noise_key(self.run_key, self.decisions)
        moved = () if ingested.moved is None or not self.remembers else (ingested.moved,)
        action, paged.buffer, self.connected = self.programs.decide(
            self.policy, paged.buffer, ingested.steps, key_data, self.connected, *moved
        )
        return action

    def _grow(self, paged: PagedBuffer) -> None:
        self.grow(paged.slots.rows, paged.slots.members)

    def _buffer_for(self, messages: Mapping[Source, BehaviorMessage]) -> PagedBuffer:
        rows, (members,) = first_sizes(messages, team_rows=self.algorithm.team_rows)
        self.connect(rows, members)
        slots = Slots(
            self.spec,
            team_rows=self.algorithm.team_rows,
            rows=rows,
            members=members,
            max_length=self.wanted.max_length,
            leave_out_taken=self.environment.outside_actions == "leave_out",
            interrupt_overdue=self.environment.missing == "carry",
            most=(self.most,),
        )

        def allocate(capacity: int) -> Any:
            return self.allocated(self.programs, capacity, rows, members)

        return PagedBuffer(self.name, slots, self.programs, allocate, self.wanted, cut=self._cut)


def unseen(spec: BehaviorSpec) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Return zero observations [1, *shape] and an all-true action mask [1, M], used before the first message."""
    zeros = tuple(np.zeros((1, *sensor.shape), sensor.dtype) for sensor in spec.observations)
    return zeros, np.ones((1, spec.action.mask_size), bool)


def at(action: Action, places: Places) -> Action:
    """Return the actions [N, ...] of the agents at `places`, from actions over rows."""
    return Action(*(by_place(np.asarray(x)).take(places, axis=0) for x in action))
