"""Track episodes through the messages of environments. Host side, used only if episodes are followed."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.occupants import Source
from jaxrl.rollout.booking.team_returns import Received, TeamReturns
from jaxrl.rollout.following.followed import AgentRecord, Episode, Outcome, episode_id
from jaxrl.types import NO_GROUP, Action, BehaviorMessage, DecisionSteps, EnvMessage, TerminalSteps

Agent = tuple[str, int]  # behavior id, agent id


class Noticed(NamedTuple):
    """Events of one message of one environment, in their order."""

    went_on: list[Episode]  # earlier episodes with an agent in the message, also if they end now
    over: list[Episode]
    begun: list[Episode]
    newcomers: list[tuple[Episode, AgentRecord]]  # first decisions, also in earlier episodes


@dataclass
class _Worker:
    """Running episodes of one incarnation of a worker."""

    episodes: dict[Hashable, Episode] = field(default_factory=dict)  # by team, or agent without one
    records: dict[Agent, tuple[Episode, AgentRecord]] = field(default_factory=dict)  # records of living agents
    gone: set[AgentRecord] = field(default_factory=set)  # agents that left with this message
    count: int = 0  # episodes so far


class EpisodeTracker:
    """Tracker of every agent of every worker.

    Args:
      seed: seed of the run.
      begun_at: number of decisions at which the run begins, 0 unless it is resumed.
      observes: whether to copy the last observations and actions of agents.
    """

    def __init__(self, seed: int, begun_at: int = 0, *, observes: bool = True) -> None:
        self._seed = seed
        self._observes = observes
        self._begun_at = begun_at
        self._workers: dict[tuple[int, int], _Worker] = {}  # by worker and incarnation
        self._paid: dict[AgentRecord, float] = {}  # group rewards of this message
        self._teams = TeamReturns[AgentRecord, Episode](self._received)

    def record(self, source: Source, agent_id: int) -> AgentRecord | None:
        """Return the record of a living agent; None: no agent of that id lives."""
        here = self._workers.get((source.worker, source.incarnation))
        entry = None if here is None else here.records.get((source.behavior_id, agent_id))
        return None if entry is None else entry[1]

    def living(self) -> list[tuple[Episode, AgentRecord]]:
        """Return all living agents, worker by worker."""
        return [entry for here in self._workers.values() for entry in here.records.values()]

    def observe(self, message: EnvMessage) -> Noticed:
        """Book one message: endings first, then agents that change their team, then decisions.

        Agents that are first seen ended are ignored. An agent that asks under another group id leaves its episode and
        is a newcomer of the next, with the policy that it has.
        """
        here = self._workers.setdefault((message.worker, message.incarnation), _Worker())
        went_on = _spoken_of(here, message)
        for episode in went_on:
            episode.length += 1
        for episode in here.episodes.values():
            episode.infos = message.infos or episode.infos
        moved: dict[Agent, AgentRecord] = {}
        for behavior_id, steps in message.steps.items():
            self._replace(here, behavior_id, steps)
            self._end(here, behavior_id, steps.ended, steps)
        for behavior_id, steps in message.steps.items():
            moved |= self._move(here, behavior_id, steps.deciding)
        over = self._close(here)
        noticed = Noticed(went_on=went_on, over=over, begun=[], newcomers=[])
        for behavior_id, steps in message.steps.items():
            self._decide(here, message, behavior_id, steps, moved, noticed)
        for episode in went_on:
            if not episode.over and any(agent in self._paid for agent in episode.agents):
                episode.group_return = self._teams.earned(episode)
        self._teams.message_over()
        self._paid.clear()
        return noticed

    def lost(self, loss: Loss, error: Exception | None) -> list[Episode]:
        """End the episodes of lost agents as faulty. Unknown agents are no error.

        error: the cause; None: their process was closed in order, and they are truncated without a fault.
        """
        here = self._workers.get((loss.worker, loss.incarnation), _Worker())
        lost = list(here.episodes.values())
        if loss.agents is None:
            self._workers.pop((loss.worker, loss.incarnation), None)
        else:
            lost = self._left_by(here, loss.agents)
        for episode in lost:
            episode.over, episode.truncated, episode.error = True, True, error
            for agent in episode.living:
                agent.outcome = Outcome.LOST
                self._teams.leave(agent)
            self._teams.forget(episode)
        return lost

    def _left_by(self, here: _Worker, agents: Mapping[str, Collection[int]]) -> list[Episode]:
        """Remove and return the episodes of these agents."""
        known = [here.records.get((behavior_id, agent)) for behavior_id, ids in agents.items() for agent in ids]
        lost = {id(entry[0]) for entry in known if entry is not None}
        here.records = {agent: entry for agent, entry in here.records.items() if id(entry[0]) not in lost}
        over = {key: episode for key, episode in here.episodes.items() if id(episode) in lost}
        here.episodes = {key: episode for key, episode in here.episodes.items() if key not in over}
        return list(over.values())

    def begin_anew(self, begun_at: int) -> None:
        """Forget all agents; ids of episodes become those of a run that begins at `begun_at` decisions."""
        self._workers.clear()
        self._teams = TeamReturns(self._received)
        self._begun_at = begun_at

    def _end(self, here: _Worker, behavior_id: str, ended: TerminalSteps, steps: BehaviorMessage) -> None:
        for i, agent_id in enumerate(ended.agent_id.tolist()):
            _, record = here.records.pop((behavior_id, agent_id), (None, None))
            if record is None:
                continue
            self._end_life(record, float(ended.reward[i]), float(ended.group_reward[i]))
            record.infos = steps.infos.get(agent_id, record.infos)
            record.outcome = Outcome.TRUNCATED if ended.truncated[i] else Outcome.TERMINATED
            self._see(record, ended.obs, i)
            here.gone.add(record)

    def _move(self, here: _Worker, behavior_id: str, deciding: DecisionSteps) -> dict[Agent, AgentRecord]:
        moved: dict[Agent, AgentRecord] = {}
        for i, (agent_id, group) in enumerate(zip(deciding.agent_id.tolist(), deciding.group_id.tolist(), strict=True)):
            agent = behavior_id, agent_id
            if agent in here.records and here.records[agent][0].group_id != group:
                _, record = here.records.pop(agent)
                self._end_life(record, float(deciding.reward[i]), float(deciding.group_reward[i]))
                record.outcome = Outcome.MOVED
                self._see(record, deciding.obs, i)
                moved[agent] = record
                here.gone.add(record)
        return moved

    def _close(self, here: _Worker) -> list[Episode]:
        """End and return the episodes without living agents."""
        alive = {id(episode) for episode, _ in here.records.values()}
        over = {key: episode for key, episode in here.episodes.items() if id(episode) not in alive}
        for key, episode in over.items():
            del here.episodes[key]
            episode.over, episode.group_return = True, self._teams.earned(episode)
            self._teams.forget(episode)
            finishers = (agent for agent in episode.agents if agent in here.gone)
            episode.truncated = any(agent.outcome is not Outcome.TERMINATED for agent in finishers)
        here.gone.clear()
        return list(over.values())

    def _decide(
        self,
        here: _Worker,
        message: EnvMessage,
        behavior_id: str,
        steps: BehaviorMessage,
        moved: dict[Agent, AgentRecord],
        noticed: Noticed,
    ) -> None:
        deciding = steps.deciding
        for i, (agent_id, group) in enumerate(zip(deciding.agent_id.tolist(), deciding.group_id.tolist(), strict=True)):
            agent = behavior_id, agent_id
            if agent in here.records:
                record = here.records[agent][1]
                self._pay(record, float(deciding.reward[i]), float(deciding.group_reward[i]))
            else:
                key = ("agent", *agent) if group == NO_GROUP else ("team", group)
                episode = here.episodes.get(key) or self._begin(here, message, key, group, noticed)
                record = _newcomer(behavior_id, agent_id, moved.get(agent))
                record.index = len(episode.agents)
                episode.agents.append(record)
                here.records[agent] = episode, record
                self._teams.join(record, episode)
                noticed.newcomers.append((episode, record))
            record.decisions += 1
            self._see(record, deciding.obs, i)
            record.infos = steps.infos.get(agent_id, record.infos)

    def decided(self, source: Source, steps: BehaviorMessage, action: Action) -> list[AgentRecord]:
        """Note the actions, [N, C] and [N, D], of a message's deciding agents. Return their records in that order."""
        records = [self.record(source, agent_id) for agent_id in steps.deciding.agent_id.tolist()]
        for i, record in enumerate(records if self._observes else ()):
            if record is not None:
                record.last_action = Action(action.continuous[i].copy(), action.discrete[i].copy())
        return [record for record in records if record is not None]

    def _replace(self, here: _Worker, behavior_id: str, steps: BehaviorMessage) -> None:
        """Note the actions of agents that took others than sent."""
        if steps.taken is None or not self._observes:
            return
        action = steps.taken.action
        for i, agent_id in enumerate(steps.taken.agent_id.tolist()):
            _, record = here.records.get((behavior_id, agent_id), (None, None))
            if record is not None:
                record.last_action = Action(action.continuous[i].copy(), action.discrete[i].copy())

    def _see(self, record: AgentRecord, obs: tuple[np.ndarray, ...], i: int) -> None:
        """Copy an agent's observation: arrays of messages may be views of memory that is used again."""
        if self._observes:
            record.last_obs = tuple(np.array(sensor[i]) for sensor in obs)

    def _pay(self, record: AgentRecord, own: float, group: float) -> None:
        record.last_reward, record.last_group_reward = own, group
        record.own_return += own
        record.group_return += group
        self._paid[record] = group

    def _end_life(self, record: AgentRecord, own: float, group: float) -> None:
        """Pay an agent that leaves its episode."""
        self._pay(record, own, group)
        self._teams.end(record, self._received(record))

    def _received(self, record: AgentRecord) -> Received:
        return Received(record.group_return, self._paid.get(record), record.decisions)

    def _begin(self, here: _Worker, message: EnvMessage, key: Hashable, group: int, noticed: Noticed) -> Episode:
        name = episode_id(self._seed, self._begun_at, message.worker, message.incarnation, here.count)
        here.count += 1
        episode = here.episodes[key] = Episode(
            name, message.worker, message.incarnation, group_id=group, infos=message.infos
        )
        noticed.begun.append(episode)
        return episode


def _spoken_of(here: _Worker, message: EnvMessage) -> list[Episode]:
    """Return the episodes with an agent in the message, also a newcomer, in the order in which they began."""
    ids: set[int] = set()
    for behavior_id, steps in message.steps.items():
        agents = ((behavior_id, i) for part in (steps.ended, steps.deciding) for i in part.agent_id.tolist())
        teams = (("team", group) for group in set(steps.deciding.group_id.tolist()))
        ids.update(id(here.records[agent][0]) for agent in agents if agent in here.records)
        ids.update(id(here.episodes[team]) for team in teams if team in here.episodes)
    return [episode for episode in here.episodes.values() if id(episode) in ids]


def _newcomer(behavior_id: str, agent_id: int, before: AgentRecord | None) -> AgentRecord:
    """Make an agent's record, with the policy that it had in its former team."""
    record = AgentRecord(agent_id, behavior_id, policy=behavior_id.partition("?")[0])
    if before is not None:
        record.policy, record.samples, record.mapped = before.policy, before.samples, before.mapped
    return record
