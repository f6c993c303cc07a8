"""Episodes that the environment does not end: of agents that vanish, and of agents whose episode is too long.

Agents count as interrupted after a number of messages without them. With `env_settings.missing: truncate` their ending
is written into the message at hand, before any other code reads it: no reward, the newest observation as the last one.
An agent that comes back is a new agent. By default an absent agent keeps its pending decision, as in ML-Agents, until
it has to make room (`booking.overdue`). Numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.occupants import Occupant, places_of
from jaxrl.rollout.booking.overdue import REMEMBERED
from jaxrl.settings import EnvironmentSettings
from jaxrl.types import BehaviorMessage, DecisionSteps, EnvMessage, TerminalSteps


class _Seen(NamedTuple):
    """An agent's newest request."""

    message: int  # number of the message of its environment
    steps: DecisionSteps
    place: int  # index in `steps`


class MissingAgents:
    """Counts, for each environment, messages without each of its agents.

    Args:
      after: number of messages in a row without an agent that end its episode, at least 1.

    `longest_wait`: most messages after which an interrupted agent came back so far; 0: none did.
    """

    def __init__(self, after: int) -> None:
        self.longest_wait = 0
        self._after = after
        self._messages: dict[tuple[int, int], int] = {}  # number by worker and incarnation
        self._seen: dict[tuple[int, int], dict[tuple[str, int], _Seen]] = {}
        self._over: dict[tuple[int, int], dict[tuple[str, int], int]] = {}  # newest request of interrupted agents

    def complete(self, message: EnvMessage) -> EnvMessage:
        """Return the message with endings for agents that have been absent for too long."""
        place = message.worker, message.incarnation
        now = self._messages[place] = self._messages.get(place, 0) + 1
        seen, over = self._seen.setdefault(place, {}), self._over.setdefault(place, {})
        for behavior_id, steps in message.steps.items():
            for agent in steps.ended.agent_id.tolist():
                seen.pop((behavior_id, agent), None)
            for i, agent in enumerate(steps.deciding.agent_id.tolist()):
                seen[behavior_id, agent] = _Seen(now, steps.deciding, i)
            for agent in chain(*(part.agent_id.tolist() for part in steps[:2])) if over else ():
                self.longest_wait = max(self.longest_wait, now - over.pop((behavior_id, agent), now))
        late = [agent for agent, last in seen.items() if now - last.message >= self._after]
        if not late:
            return message
        vanished: dict[str, list[tuple[int, _Seen]]] = {}
        for agent in late:
            over[agent] = seen[agent].message
            vanished.setdefault(agent[0], []).append((agent[1], seen.pop(agent)))
        for agent in list(over)[:-REMEMBERED]:
            del over[agent]
        steps = dict(message.steps)
        for behavior_id, gone in vanished.items():
            steps[behavior_id] = _with_endings(steps.get(behavior_id), gone)
        return message._replace(steps=steps)

    def forget(self, loss: Loss) -> None:
        """Forget the agents of a lost worker or copy."""
        place = loss.worker, loss.incarnation
        if loss.agents is None:
            self._messages.pop(place, None)
            self._seen.pop(place, None)
            self._over.pop(place, None)
            return
        for behavior_id, ids in loss.agents.items():
            for agent in ids:
                self._seen.get(place, {}).pop((behavior_id, agent), None)
                self._over.get(place, {}).pop((behavior_id, agent), None)


def missing_agents(options: EnvironmentSettings) -> MissingAgents | None:
    """Make `MissingAgents` for `env_settings`; None: an absent agent keeps its pending decision."""
    return MissingAgents(options.missing_after) if options.missing == "truncate" else None


def interrupted(agents: list[int], groups: list[int], obs: tuple[np.ndarray, ...]) -> TerminalSteps:
    """Make endings of N agents that vanished: no reward, and their last observations `obs`, [N, *shape] by sensor."""
    return TerminalSteps(
        agent_id=np.array(agents, np.int64),
        group_id=np.array(groups, np.int64),
        reward=np.zeros(len(agents), np.float32),
        group_reward=np.zeros(len(agents), np.float32),
        truncated=np.ones(len(agents), bool),
        obs=obs,
    )


def _with_endings(steps: BehaviorMessage | None, gone: list[tuple[int, _Seen]]) -> BehaviorMessage:
    """Add interrupted endings of the vanished agents behind those of the message."""
    late = interrupted(
        [agent for agent, _ in gone],
        [int(last.steps.group_id[last.place]) for _, last in gone],
        tuple(np.stack([last.steps.obs[k][last.place] for _, last in gone]) for k in range(len(gone[0][1].steps.obs))),
    )
    if steps is None:
        return BehaviorMessage(ended=late, deciding=some(gone[0][1].steps, []))
    return steps._replace(ended=_joined(steps.ended, late))


def limited(message: BehaviorMessage, homes: Mapping[int, Occupant], lengths: np.ndarray, most: int) -> BehaviorMessage:
    """Return the message with an end of the episode for agents that ask after `most` decisions.

    Only the data change, not the environment: such an agent becomes an interrupted one, which ends with this
    observation and reward, and a new one under the same id, whose first request has no reward.

    Args:
      homes: slots of the living agents of the message's source, by id.
      lengths: int64 [B, A], finished decisions of each slot's episode.
    """
    deciding = message.deciding
    ids = deciding.agent_id.tolist()
    known = [(i, homes[agent]) for i, agent in enumerate(ids) if agent in homes]
    decided = lengths.take(places_of([home for _, home in known], lengths.shape[1]))
    late = [known[i][0] for i in np.flatnonzero(decided >= most - 1).tolist()]
    ended = set(message.ended.agent_id.tolist()) if late else ()
    late = [i for i in late if ids[i] not in ended]
    return interrupting(message, late) if late else message


def interrupting(message: BehaviorMessage, late: list[int]) -> BehaviorMessage:
    """Return the message with the deciding agents at the indices `late` interrupted and begun anew."""
    deciding = message.deciding
    over = some(deciding, late)
    cut = TerminalSteps(*over[:4], truncated=np.ones(len(late), bool), obs=over.obs)
    rewards = deciding.reward.copy(), deciding.group_reward.copy()
    for reward in rewards:
        reward[late] = 0.0
    deciding = deciding._replace(reward=rewards[0], group_reward=rewards[1])
    return message._replace(ended=_joined(message.ended, cut), deciding=deciding)


_Steps = TypeVar("_Steps", TerminalSteps, DecisionSteps)


def some(steps: _Steps, places: Sequence[int] | np.ndarray) -> _Steps:
    """Return the agents at these indices, in that order."""
    return _of_arrays(lambda x: x[np.asarray(places, np.int64)], steps)


def _joined(first: TerminalSteps, second: TerminalSteps) -> TerminalSteps:
    """Concatenate the ended agents of both, those of `first` in front."""
    return _of_arrays(lambda *pair: np.concatenate(pair), first, second)


def _of_arrays(function: Callable[..., np.ndarray], *steps: _Steps) -> _Steps:
    """Apply `function` to each array of the steps."""
    fields: list[Any] = [function(*arrays) for arrays in zip(*(x[:-1] for x in steps), strict=True)]
    obs = tuple(function(*sensors) for sensors in zip(*(x.obs for x in steps), strict=True))
    return steps[0]._make([*fields, obs])
