"""A policy that acts ("actor"): it decides for the agents of one behavior and keeps the streams of what they do.

Knows no learner, no process and no file. `decide`, the one compiled call per environment result, acts and appends to
the `PagedBuffer`. Whose policy it is, and who learns from its streams, is a matter of the host loop's routing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from jaxrl.algorithms.interface import Algorithm, PolicyState
from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout import noise
from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.booking.occupants import first_size
from jaxrl.rollout.booking.records import Ingested, RowsMessage
from jaxrl.rollout.booking.slots import Slots, Source
from jaxrl.rollout.buffer.trajectory_state import TrajectoryState
from jaxrl.settings import BehaviorSettings, EnvironmentSettings
from jaxrl.training.host import connectors
from jaxrl.training.host.decide import ActorPrograms
from jaxrl.training.host.paged_buffer import CutWarning, PagedBuffer
from jaxrl.types import NOTHING, Action, BehaviorMessage, BehaviorSpec

log = logging.getLogger(__name__)

Watch = Callable[[RowsMessage], None]

USUAL = EnvironmentSettings()
UNTRAINED = 1024
"""Decisions that an actor keeps that nobody learns from: statistics are drawn from them."""
VANISHED = (
    "%s: %d agents have asked for nothing for long while others did, and are more than those: they seem to have "
    "vanished without an ending. Their episodes are interrupted, now and whenever there are so many again; one that "
    "asks later begins another. Let agents that go end their episode (in Unity Agent.EndEpisode, EpisodeInterrupted)."
)


class ActingPolicy:
    """Acts for one behavior and keeps what happens.

    Args:
      keeps: agent decisions that the buffer is to hold.
      environment: what becomes of actions that agents took otherwise, and of agents that vanish.
      run_key: two words; with the number of a decision they fix its noise.
      env_steps: messages of each worker that the buffer is to hold instead; None: `keeps` counts.
      max_length: decisions after which an agent's episode is interrupted; None: never.
      whole_episodes_only: keep running episodes at each update, for a later one, and do not cut them.
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
        *,
        keeps: int,
        env_steps: int | None = None,
        max_length: int | None = None,
        whole_episodes_only: bool = False,
        environment: EnvironmentSettings = USUAL,
        watch: Watch | None = None,
    ) -> None:
        self.name = name
        self.spec = spec
        self.algorithm = algorithm
        self.policy = policy  # whoever learns replaces it after each update
        self.decisions = 0  # calls of `decide`; with the run's key they fix the next action noise
        self.finished = 0  # decisions whose reward has arrived, ever
        self.fresh = 0  # decisions whose reward has arrived since the last `taken`
        self._watch = watch
        self.programs = programs
        self._run_key = run_key
        self.env_steps = 0  # of all areas since the last `taken`; the host loop counts them
        self.held = 0  # decisions that the buffer holds, those of running episodes too
        self.environment = environment
        self.paged: PagedBuffer | None = None  # from the first message on, which says for how many agents
        self._keeps = keeps
        self._env_steps = env_steps
        self._max_length = max_length
        self._whole_episodes_only = whole_episodes_only
        self._cuts = CutWarning(name)
        self._told_of_vanished = False
        self._connected: Any = ()  # what its connectors remember
        zeros = tuple(np.zeros((1, *sensor.shape), sensor.dtype) for sensor in spec.observations)
        self.known = zeros, np.ones((1, spec.action.mask_size), bool)  # what `recorded` gives before the first message

    @property
    def keeps(self) -> int:
        """Agent decisions that the buffer is to hold, at most where environment steps are counted."""
        return self._keeps if self.paged is None else self.paged.keeps

    @property
    def full(self) -> bool:
        """Whether the buffer has no room for another message, and shall have none."""
        return self.paged is not None and self.paged.full

    @property
    def begin(self) -> tuple[np.ndarray, ...]:
        """What the programs of an update are given beside the buffer: nothing, or where running episodes begin."""
        running = None if self.paged is None else self.paged.running
        return () if running is None else (running.begin,)

    @property
    def rows(self) -> np.ndarray:
        """int64 [pages in use], the row that has written each page of the buffer."""
        assert self.paged is not None
        return self.paged.pages.rows

    @property
    def buffer(self) -> TrajectoryState | None:
        """What has been collected; None before the first message."""
        return None if self.paged is None else self.paged.buffer

    @property
    def statistics(self) -> Any:
        """What its connectors have learned of their input, as `PolicyState.connectors`."""
        return self._connected.state.shared if self._connected else self.policy.connectors

    def act(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> tuple[dict[Source, Action], list[EpisodeRecords], int]:
        """Book one message per source; nobody learns from the decisions of agents in `untrained`, ids by source.

        Returns each source's actions in its agents' order, finished episodes, and how many decisions got their reward.
        Raises ExternalActionError for what agents cannot have done, or what cannot be learned from.
        """
        paged = self.paged = self.paged or self._buffer_for(messages)
        ingested = paged.slots.ingest(messages, untrained)
        if paged.follow() and self.algorithm.connectors is not None:
            self._connected = connectors.resize(self._connected, (paged.slots.rows, paged.slots.members))
        paged.turn(ingested.steps, self.fresh)
        if ingested.taken is not None or ingested.left_out is not None:
            self._amend(paged, ingested)
        key_data = noise.noise_key(self._run_key, self.decisions)
        remembers = bool(self.algorithm.memories) or self.algorithm.connectors is not None
        moved = () if ingested.moved is None or not remembers else (ingested.moved,)
        action, paged.buffer, self._connected = self.programs.decide(
            self.policy, paged.buffer, ingested.steps, key_data, self._connected, *moved
        )
        paged.append(ingested.steps)
        if ingested.vanished and not self._told_of_vanished:
            self._told_of_vanished = True
            log.warning(VANISHED, self.name, ingested.vanished)
        if self._watch is not None:
            self._watch(ingested.steps)
        self.decisions += 1
        self.fresh = self.fresh + ingested.finished if paged.running is None else paged.running.complete
        self.held += ingested.finished
        self.finished += ingested.finished
        chosen = Action(continuous=np.asarray(action.continuous), discrete=np.asarray(action.discrete))
        return _by_source(ingested, chosen), ingested.episodes, ingested.finished

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

    def taken(self, buffer: TrajectoryState) -> None:
        """Somebody has learned from the buffer: it goes on as `buffer`, of the same shapes."""
        assert self.paged is not None
        self.paged.taken(buffer)
        self.held -= self.fresh
        self.fresh, self.env_steps = 0, 0

    def begin_anew(self) -> None:
        """Nothing has been seen yet; only the number of decisions goes on."""
        self.paged, self._connected = None, ()
        self.fresh, self.held, self.env_steps = 0, 0, 0

    def discard(self) -> None:
        """Forget what was collected, as if somebody had learned from it."""
        assert self.paged is not None
        self.paged.discard()
        self.fresh, self.held, self.env_steps = 0, 0, 0

    def lose(self, loss: Loss) -> int:
        """Drop what the agents of a lost process or copy had begun. Returns their number, one decision each."""
        if self.paged is None:
            return 0
        slots, agents = self.paged.slots, loss.agents
        sources = slots.sources(loss.worker, loss.incarnation)
        return sum(slots.discard(s, None if agents is None else agents.get(s.behavior_id, ())) for s in sources)

    def recorded(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Newest real observations and action masks, [N, *shape] and [N, M], for checking an exported policy."""
        if self.paged is None:
            return self.known
        return self.paged.slots.recorded()

    def _buffer_for(self, messages: Mapping[Source, BehaviorMessage]) -> PagedBuffer:
        """PagedBuffer for the agents of the first messages; its connectors have as much."""
        algorithm = self.algorithm
        rows, members = first_size(messages, team_rows=algorithm.team_rows)
        if algorithm.connectors is not None:
            self._connected = connectors.start(algorithm.connectors, self.policy.connectors, (rows, members))
        slots = Slots(
            self.spec,
            team_rows=algorithm.team_rows,
            rows=rows,
            members=members,
            max_length=self._max_length,
            leave_out_taken=self.environment.outside_actions == "leave_out",
            interrupt_overdue=self.environment.missing == "carry",
        )
        return PagedBuffer(
            self.name,
            slots,
            algorithm,
            self.programs,
            keeps=self._keeps,
            env_steps=self._env_steps,
            whole_episodes_only=self._whole_episodes_only,
            cuts=self._cuts,
        )


def make_acting_policy(
    name: str,
    spec: BehaviorSpec,
    settings: BehaviorSettings,
    algorithm: Algorithm,
    programs: ActorPrograms,
    policy: PolicyState,
    run_key: list[int],
    *,
    learned: bool,
    areas: int = 1,
    environment: EnvironmentSettings,
    watch: Watch | None = None,
) -> ActingPolicy:
    """An actor as the settings of its behavior want it, whoever acts: who learns, is frozen, or is evaluated.

    Args:
      learned: somebody learns from what it collects; otherwise it is forgotten now and then.
      areas: of so many that step alike, in all workers, each gives its share where `collect_size` counts their steps.
    """
    return ActingPolicy(
        name,
        spec,
        algorithm,
        programs,
        policy,
        run_key,
        keeps=algorithm.collect_size if learned else min(algorithm.collect_size, UNTRAINED),
        env_steps=-(-algorithm.collect_size // areas) if learned and settings.count_by == "env_steps" else None,
        max_length=settings.max_episode_length,
        whole_episodes_only=learned and settings.batch_mode == "complete_episodes",
        environment=environment,
        watch=watch,
    )


def _by_source(ingested: Ingested, action: Action) -> dict[Source, Action]:
    return {
        source: Action(continuous=action.continuous[places], discrete=action.discrete[places])
        for source, places in ingested.decisions.items()
    }
