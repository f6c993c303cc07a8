"""Streams of single agents, kept on the host for callbacks that ask for trajectories. Numpy only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.occupants import Source
from jaxrl.rollout.following.followed import AgentRecord, Outcome, Trajectory
from jaxrl.types import Action, BehaviorMessage

Obs = tuple[np.ndarray, ...]


@dataclass
class _Stream:
    """Decisions since the last cut; the newest one waits for its reward."""

    begin: int  # decisions of the agent in the episode before the first of these
    obs: list[Obs] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    rewards: list[tuple[float, float]] = field(default_factory=list)


class Segments:
    """Observations, actions and rewards of each agent since its stream was cut. The key is source and id."""

    def __init__(self) -> None:
        self._streams: dict[tuple[Source, int], tuple[AgentRecord, _Stream]] = {}

    def outcomes(self, source: Source, steps: BehaviorMessage, horizon: int) -> list[tuple[AgentRecord, Trajectory]]:
        """Add the rewards of a message, which the tracker has booked before, to the decisions before it.

        `horizon` finished decisions cut a stream (time_horizon). Returns the streams that are complete: ended, cut, or
        left for another episode.
        """
        self._replace(source, steps)
        complete, (ended, deciding) = [], (steps.ended, steps.deciding)
        for i, agent_id in enumerate(ended.agent_id.tolist()):
            entry = self._streams.pop((source, agent_id), None)
            if entry is not None:
                entry[1].rewards.append((float(ended.reward[i]), float(ended.group_reward[i])))
                outcome = Outcome.TRUNCATED if ended.truncated[i] else Outcome.TERMINATED
                complete.append((entry[0], _trajectory(source, *entry, _row(ended.obs, i), outcome)))
        for i, agent_id in enumerate(deciding.agent_id.tolist()):
            entry = self._streams.get((source, agent_id))
            if entry is None:
                continue
            record, stream = entry
            stream.rewards.append((float(deciding.reward[i]), float(deciding.group_reward[i])))
            if record.outcome is not None or len(stream.rewards) >= horizon:
                del self._streams[source, agent_id]
                outcome = record.outcome or Outcome.CUT
                complete.append((record, _trajectory(source, record, stream, _row(deciding.obs, i), outcome)))
        return complete

    def decided(self, source: Source, steps: BehaviorMessage, records: list[AgentRecord], action: Action) -> None:
        """Add the actions, [N, C] and [N, D], of a message's deciding agents; `records` are in their order."""
        for i, agent_id in enumerate(steps.deciding.agent_id.tolist()):
            _, stream = self._streams.setdefault((source, agent_id), (records[i], _Stream(records[i].decisions - 1)))
            stream.obs.append(_row(steps.deciding.obs, i))
            stream.actions.append(Action(action.continuous[i], action.discrete[i]))

    def of_mates(self, records: list[AgentRecord]) -> dict[AgentRecord, Trajectory]:
        """Return the streams so far of those `records` that go on and have a finished decision in their stream."""
        wanted, streams = set(records), {}
        for (source, _), (record, stream) in self._streams.items():
            if record in wanted and stream.rewards:
                last = stream.obs[len(stream.rewards)] if len(stream.obs) > len(stream.rewards) else stream.obs[-1]
                streams[record] = _trajectory(source, record, stream, last, None)
        return streams

    def forget(self, loss: Loss) -> None:
        """Forget the streams of lost agents."""
        self._streams = {key: entry for key, entry in self._streams.items() if not loss.concerns(*key[0], key[1])}

    def _replace(self, source: Source, steps: BehaviorMessage) -> None:
        """Replace the newest actions of agents that took others than sent."""
        if steps.taken is None:
            return
        action = steps.taken.action
        for i, agent_id in enumerate(steps.taken.agent_id.tolist()):
            entry = self._streams.get((source, agent_id))
            if entry is not None:
                entry[1].actions[-1] = Action(action.continuous[i], action.discrete[i])


def _row(obs: Obs, i: int) -> Obs:
    """Copy one agent's observations: arrays of messages may be views of memory that is used again."""
    return tuple(np.array(sensor[i]) for sensor in obs)


def _trajectory(
    source: Source, record: AgentRecord, stream: _Stream, last_obs: Obs, outcome: Outcome | None
) -> Trajectory:
    finished = len(stream.rewards)
    rewards = np.array(stream.rewards, np.float32).reshape(finished, 2)
    return Trajectory(
        obs=tuple(_fixed(np.stack(sensor)) for sensor in zip(*stream.obs[:finished], strict=True)),
        action=Action(*(_fixed(np.stack(part)) for part in zip(*stream.actions[:finished], strict=True))),
        reward=_fixed(rewards[:, 0]),
        group_reward=_fixed(rewards[:, 1]),
        last_obs=tuple(_fixed(sensor.view()) for sensor in last_obs),
        outcome=outcome,
        time_step=_fixed(np.arange(stream.begin, stream.begin + finished, dtype=np.int32)),
        worker=source.worker,
        agent_index=record.index,
    )


def _fixed(x: np.ndarray) -> np.ndarray:
    """Make an array read-only, since a change of it would not be learned from."""
    x.flags.writeable = False
    return x
