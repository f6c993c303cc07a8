"""Route agents to policies: split messages by policy, and put the actions together again. Numpy only.

An `Assignment` says which policy an agent follows, as a mapping of callbacks does. Without assignments a whole message
goes to the policy of its team: its behavior's, or an opponent of self-play. Learning, frozen and evaluated policies all
act in `decide`, as does any other object with an `act` method.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from jaxrl.artifacts.names import behavior_name
from jaxrl.callbacks import Follows
from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.booking.missing import some
from jaxrl.rollout.booking.occupants import Source
from jaxrl.rollout.following.followed import AgentRecord, Episode
from jaxrl.types import Action, ActionSpec, BehaviorMessage, EnvMessage, Taken

Assignment = Callable[[AgentRecord, Episode], Follows | None]
"""(agent, its episode) → the policy that it follows there; None: ask the next assignment; after the last one its
team's own policy acts. The episode knows its `worker` and `group_id`, the team is part of `agent.behavior_id`."""
Chosen = dict[int, dict[str, Action]]
"""Worker → behavior id → actions of its deciding agents, in their order."""
Own = Callable[[int, str], str]
"""(worker, behavior id) → the policy of its agents without an assignment: the behavior's, or an opponent."""
Record = Callable[[Source, int], AgentRecord | None]
"""(source, agent id) → the record of a living agent."""


class Decides(Protocol):
    """A policy that agents can follow."""

    def act(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]]
    ) -> tuple[dict[Source, Action], list[EpisodeRecords]]:
        """Return each source's actions in its agents' order, and finished episodes.

        Decisions of agents in `untrained`, ids by source, are not learned from.
        """
        ...


@dataclass
class Share:
    """Part of the messages that one policy acts on."""

    messages: dict[Source, BehaviorMessage] = field(default_factory=dict)
    untrained: dict[Source, set[int]] = field(default_factory=dict)  # agents whose decisions leave no samples
    deciding: dict[Source, np.ndarray] = field(default_factory=dict)  # places in the whole message; no entry: all


def of_behavior(worker: int, behavior_id: str) -> str:
    """Return the policy of the behavior: its name."""
    return behavior_name(behavior_id)


def whole(results: Sequence[EnvMessage], own: Own = of_behavior) -> dict[str, Share]:
    """Return the shares of whole messages, without assignments: each behavior id (a team) follows its own policy."""
    shares: dict[str, Share] = {}
    for result in results:
        for behavior_id, steps in result.steps.items():
            source = Source(result.worker, behavior_id, result.incarnation)
            shares.setdefault(own(result.worker, behavior_id), Share()).messages[source] = steps
    return shares


def decide(
    shares: Mapping[str, Share], policies: Mapping[str, Decides], chosen: Chosen
) -> dict[str, list[EpisodeRecords]]:
    """Call each policy once, put its actions into `chosen`, and return the episodes that ended by policy."""
    over = {}
    for name, share in shares.items():
        actions, over[name] = policies[name].act(share.messages, share.untrained)
        join(chosen, share, actions)
    return over


def joint(shares: dict[str, Share], team: Sequence[str]) -> Share | None:
    """Remove the shares of a team's policies from `shares` and return them merged; None if there are none."""
    merged = None
    for name in team:
        share = shares.pop(name, None)
        if share is not None:
            merged = merged or Share()
            merged.messages |= share.messages
            merged.untrained |= share.untrained
            merged.deciding |= share.deciding
    return merged


class Router:
    """Remembers which policy each living agent followed last, as its next reward belongs to that policy."""

    def __init__(self, record: Record, own: Own = of_behavior) -> None:
        self._record = record
        self._own = own
        self._followed: dict[Source, dict[int, str]] = {}
        self._orphans: dict[Source, set[int]] = {}  # agents that followed a policy since removed

    def split(self, results: Sequence[EnvMessage]) -> dict[str, Share]:
        """Split messages, which the tracker has booked before, into each policy's share.

        Agents that end before they ever asked belong to the policy of their behavior.
        """
        shares: dict[str, Share] = {}
        for result in results:
            for behavior_id, steps in result.steps.items():
                source = Source(result.worker, behavior_id, result.incarnation)
                self._share_out(source, steps, self._own(result.worker, behavior_id), shares)
        return shares

    def removed(self, policy: str) -> None:
        """Forget a removed policy: the next outcomes of its agents go to no policy."""
        for source, followed in self._followed.items():
            gone = {agent for agent, name in followed.items() if name == policy}
            self._orphans.setdefault(source, set()).update(gone)
            for agent in gone:
                del followed[agent]

    def forget(self, loss: Loss) -> None:
        """Forget lost agents."""
        for source, followed in self._followed.items():
            self._followed[source] = {i: name for i, name in followed.items() if not loss.concerns(*source, i)}
        for source, orphans in self._orphans.items():
            self._orphans[source] = {agent for agent in orphans if not loss.concerns(*source, agent)}

    def _share_out(self, source: Source, steps: BehaviorMessage, own: str, shares: dict[str, Share]) -> None:
        followed, orphans = self._followed.setdefault(source, {}), self._orphans.get(source, set())
        asked, ended = steps.deciding.agent_id.tolist(), steps.ended.agent_id.tolist()
        taken = [] if steps.taken is None else [followed.get(i) for i in steps.taken.agent_id.tolist()]
        of_ended = [None if agent in orphans else followed.pop(agent, own) for agent in ended]
        orphans.difference_update(ended, asked)
        of_asked = []
        for agent in asked:
            record = self._record(source, agent)
            assert record is not None  # the tracker has booked it
            of_asked.append(record.policy)
            if not record.samples:
                shares.setdefault(record.policy, Share()).untrained.setdefault(source, set()).add(agent)
        followed.update(zip(asked, of_asked, strict=True))
        everybody = {*of_asked, *of_ended, *taken}
        for policy in sorted(name for name in everybody if name is not None):
            share = shares.setdefault(policy, Share())
            share.deciding[source] = np.array([i for i, name in enumerate(of_asked) if name == policy], np.int64)
            if everybody == {policy}:
                share.messages[source] = steps
                continue
            share.messages[source] = _part(
                steps,
                ended=[i for i, name in enumerate(of_ended) if name == policy],
                deciding=share.deciding[source],
                taken=[i for i, name in enumerate(taken) if name == policy],
            )


def blank(results: Sequence[EnvMessage], spec: Callable[[str], ActionSpec]) -> Chosen:
    """Return zero actions of all deciding agents, for `join` to fill; `spec` returns a behavior id's action spec."""
    chosen: Chosen = {}
    for result in results:
        here = chosen[result.worker] = {}
        for behavior_id, steps in result.steps.items():
            count, action = len(steps.deciding.agent_id), spec(behavior_id)
            here[behavior_id] = Action(
                continuous=np.zeros((count, action.continuous_size), np.float32),
                discrete=np.zeros((count, len(action.discrete_branches)), np.int32),
            )
    return chosen


def join(chosen: Chosen, share: Share, actions: Mapping[Source, Action]) -> None:
    """Write a policy's actions to its agents' places in the whole message, in place."""
    for source, action in actions.items():
        here, places = chosen[source.worker], share.deciding.get(source)
        if places is None:
            here[source.behavior_id] = action
            continue
        everybody = here[source.behavior_id]
        everybody.continuous[places], everybody.discrete[places] = action.continuous, action.discrete


def _part(
    steps: BehaviorMessage, *, ended: Sequence[int], deciding: np.ndarray, taken: Sequence[int]
) -> BehaviorMessage:
    """Return the message reduced to some of its agents, by their places in it; infos stay whole."""
    theirs = None
    if steps.taken is not None and taken:
        rows = list(taken)
        action = steps.taken.action
        theirs = Taken(steps.taken.agent_id[rows], Action(action.continuous[rows], action.discrete[rows]))
    return BehaviorMessage(
        ended=some(steps.ended, ended), deciding=some(steps.deciding, deciding), infos=steps.infos, taken=theirs
    )
