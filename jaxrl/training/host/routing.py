"""Whose actor decides for whom: messages are split by policy, and the actions put together again. Numpy only.

Without a mapping the loop does not come here: a message passes whole to the actor of its behavior.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxrl.rollout.booking.absence import some
from jaxrl.rollout.booking.occupants import Source
from jaxrl.rollout.following.followed import AgentRecord
from jaxrl.types import Action, ActionSpec, BehaviorMessage, EnvMessage, Taken

Chosen = dict[int, dict[str, Action]]
"""Worker → behavior id → actions of its deciding agents, in their order."""
Record = Callable[[Source, int], AgentRecord | None]
"""(source, agent id) → the record of a living agent."""


@dataclass
class Share:
    """What one policy gets of the messages."""

    messages: dict[Source, BehaviorMessage] = field(default_factory=dict)
    untrained: dict[Source, set[int]] = field(default_factory=dict)  # ids whose decisions leave no samples
    deciding: dict[Source, np.ndarray] = field(default_factory=dict)  # their places in the whole message


class Router:
    """Remembers which policy each living agent followed last: what it brings belongs to that one."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._followed: dict[Source, dict[int, str]] = {}
        self._orphans: dict[Source, set[int]] = {}  # followed a policy that is no more

    def split(self, results: Sequence[EnvMessage], own: Callable[[str], str]) -> dict[str, Share]:
        """Each policy's share of the messages; the tracker has booked them before.

        `own` gives the policy of a behavior id: that of agents which end before they ever asked (U1).
        """
        shares: dict[str, Share] = {}
        for result in results:
            for behavior_id, steps in result.steps.items():
                source = Source(result.worker, behavior_id, result.incarnation)
                self._share_out(source, steps, own(behavior_id), shares)
        return shares

    def removed(self, policy: str) -> None:
        """The policy is no more: what its agents bring next is an answer to nobody."""
        for source, followed in self._followed.items():
            gone = {agent for agent, name in followed.items() if name == policy}
            self._orphans.setdefault(source, set()).update(gone)
            for agent in gone:
                del followed[agent]

    def forget(self, worker: int, incarnation: int, agents: Mapping[str, Collection[int]] | None = None) -> None:
        """The worker is no more, or these agents of it, by behavior id."""

        def gone(source: Source, agent: int) -> bool:
            here = (source.worker, source.incarnation) == (worker, incarnation)
            return here and (agents is None or agent in agents.get(source.behavior_id, ()))

        for source, followed in self._followed.items():
            self._followed[source] = {agent: name for agent, name in followed.items() if not gone(source, agent)}
        for source, orphans in self._orphans.items():
            self._orphans[source] = {agent for agent in orphans if not gone(source, agent)}

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
    """Actions of all deciding agents, to be filled by `join`; `spec` gives the actions of a behavior id."""
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
    """Put a policy's actions where its agents stand in the whole message, in place."""
    for source, action in actions.items():
        places = share.deciding[source]
        whole = chosen[source.worker][source.behavior_id]
        whole.continuous[places], whole.discrete[places] = action.continuous, action.discrete


def _part(
    steps: BehaviorMessage, *, ended: Sequence[int], deciding: np.ndarray, taken: Sequence[int]
) -> BehaviorMessage:
    """The message of some of its agents, by their places in it; infos stay whole."""
    theirs = None
    if steps.taken is not None and taken:
        kept = list(taken)
        action = steps.taken.action
        theirs = Taken(steps.taken.agent_id[kept], Action(action.continuous[kept], action.discrete[kept]))
    return BehaviorMessage(
        ended=some(steps.ended, ended),
        deciding=some(steps.deciding, deciding),
        infos=steps.infos,
        taken=theirs,
    )
