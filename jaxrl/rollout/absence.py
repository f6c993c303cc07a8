"""Agents that vanish without an ending (M5): after so many messages without them they count as interrupted.

By default an absent agent keeps its open decision for ever, as in ML-Agents (U2). With `env_settings.missing: truncate`
its ending is written into the message at hand, before anybody else reads it: no reward, the newest observation as
the last one. If it shows up after all, it is a new agent. Numpy only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxrl.rollout.entries import all_ended, some_deciding
from jaxrl.settings import EnvironmentSettings
from jaxrl.types import BehaviorMessage, DecisionSteps, EnvMessage, TerminalSteps


class _Seen(NamedTuple):
    """An agent's newest request."""

    message: int  # number of the message of its environment
    steps: DecisionSteps
    place: int  # in them


class Absences:
    """Counts, for each environment, messages without each of its agents.

    Args:
      after: as many messages in a row without an agent end its episode, at least 1.
    """

    def __init__(self, after: int) -> None:
        self._after = after
        self._messages: dict[tuple[int, int], int] = {}  # by worker and incarnation
        self._seen: dict[tuple[int, int], dict[tuple[str, int], _Seen]] = {}

    def complete(self, message: EnvMessage) -> EnvMessage:
        """The message, and endings of those that have been absent for too long."""
        place = message.worker, message.incarnation
        now = self._messages[place] = self._messages.get(place, 0) + 1
        seen = self._seen.setdefault(place, {})
        for behavior_id, steps in message.steps.items():
            for agent in steps.ended.agent_id.tolist():
                seen.pop((behavior_id, agent), None)
            for i, agent in enumerate(steps.deciding.agent_id.tolist()):
                seen[behavior_id, agent] = _Seen(now, steps.deciding, i)
        late = [agent for agent, last in seen.items() if now - last.message >= self._after]
        if not late:
            return message
        vanished: dict[str, list[tuple[int, _Seen]]] = {}
        for agent in late:
            vanished.setdefault(agent[0], []).append((agent[1], seen.pop(agent)))
        steps = dict(message.steps)
        for behavior_id, gone in vanished.items():
            steps[behavior_id] = _with_endings(steps.get(behavior_id), gone)
        return message._replace(steps=steps)

    def forget(self, worker: int, incarnation: int) -> None:
        """The worker is no more."""
        self._messages.pop((worker, incarnation), None)
        self._seen.pop((worker, incarnation), None)


def absences(options: EnvironmentSettings) -> Absences | None:
    """As `env_settings` want it; None: an absent agent keeps its open decision."""
    return Absences(options.missing_after) if options.missing == "truncate" else None


def _with_endings(steps: BehaviorMessage | None, gone: list[tuple[int, _Seen]]) -> BehaviorMessage:
    """Interrupted endings of the vanished behind those of the message."""
    count = len(gone)
    late = TerminalSteps(
        agent_id=np.array([agent for agent, _ in gone], np.int64),
        group_id=np.array([last.steps.group_id[last.place] for _, last in gone], np.int64),
        reward=np.zeros(count, np.float32),
        group_reward=np.zeros(count, np.float32),
        truncated=np.ones(count, bool),
        obs=tuple(
            np.stack([last.steps.obs[k][last.place] for _, last in gone]) for k in range(len(gone[0][1].steps.obs))
        ),
    )
    if steps is None:
        nobody = some_deciding(gone[0][1].steps, np.zeros(0, np.int64))
        return BehaviorMessage(ended=late, deciding=nobody)
    return steps._replace(ended=all_ended(steps.ended, late))
