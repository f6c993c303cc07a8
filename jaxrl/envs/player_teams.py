"""Who is who in a player: ids, held actions and summed rewards of all members in all areas. Numpy only.

The environment speaks in rows, E areas of A members; the trainer in agents with ids. One id names one episode of one
agent and is never used again. A group id names an area's team and stays: a Unity scene keeps one group object per area.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from jaxrl.types import NO_GROUP, Action, BehaviorSpec, DecisionSteps, EndedSteps


class PlayedStep(NamedTuple):
    """What a step, or a reset, brought about in E areas. After a reset nobody has ended."""

    ended: np.ndarray  # bool [E, A], the agent's episode ended with this step
    truncated: np.ndarray  # bool [E, A], of these: cut off, not terminated
    reward: np.ndarray  # float32 [E, A]
    group_reward: np.ndarray  # float32 [E, A]
    last_obs: tuple[np.ndarray, ...]  # float32 [E, A, *shape], of the episode that the step belongs to
    alive: np.ndarray  # bool [E, A], agents that play on or have just begun
    action_mask: np.ndarray  # bool [E, A, M], True: allowed
    obs: tuple[np.ndarray, ...]  # float32 [E, A, *shape], of those who play on
    over: np.ndarray  # bool [E], the area's episode ended and a new one began
    stats: Mapping[str, np.ndarray]  # float32 [E] by tag, valid where over


class Simulation(Protocol):
    """E areas of an environment. Parameters are float32 [E] by name and hold for episodes that begin with this call."""

    def reset(self, parameters: Mapping[str, np.ndarray]) -> PlayedStep:
        """Begin a new episode in every area."""
        ...

    def step(self, actions: Action, parameters: Mapping[str, np.ndarray]) -> PlayedStep:
        """`actions`: float32 [E, A, C] and int32 [E, A, D]; rows of members that are not alive are zero."""
        ...


class Teams:
    """Bookkeeping between two messages. Agents go out by area, then by row; actions come back in that order."""

    def __init__(self, spec: BehaviorSpec, areas: int, members: int) -> None:
        shape = (areas, members)
        self._next_id = 0
        self._agent_id = np.full(shape, -1, np.int64)
        group = np.arange(1, areas + 1) if members > 1 else np.full(areas, NO_GROUP)
        self._group_id = np.broadcast_to(group[:, None], shape)
        self._alive = np.zeros(shape, bool)
        self._reward = np.zeros(shape, np.float32)
        self._group_reward = np.zeros(shape, np.float32)
        self._asked = np.zeros(shape, bool)
        self.actions = Action(
            continuous=np.zeros((*shape, spec.action.continuous_size), np.float32),
            discrete=np.zeros((*shape, len(spec.action.discrete_branches)), np.int32),
        )

    def restart(self, step: PlayedStep) -> None:
        """All episodes were discarded without a word: whoever is alive now is new."""
        self._begin(step.alive)
        self._alive = step.alive

    def absorb(self, step: PlayedStep) -> EndedSteps:
        """Sum rewards, give new ids to agents that began, and return the agents that ended, with their last view."""
        self._reward += step.reward
        self._group_reward += step.group_reward
        rows = np.nonzero(step.ended)
        ended = EndedSteps(
            agent_id=self._agent_id[rows],
            group_id=self._group_id[rows],
            reward=self._reward[rows],
            group_reward=self._group_reward[rows],
            truncated=step.truncated[rows],
            obs=tuple(obs[rows] for obs in step.last_obs),
        )
        self._clear(step.ended)
        self._begin(step.alive & (step.ended | ~self._alive))
        self._alive = step.alive
        return ended

    def ask(self, step: PlayedStep, due: bool) -> DecisionSteps:
        """All living agents as asking for a decision if one is due, else nobody. Their rewards start again at 0."""
        self._asked = step.alive & due
        rows = np.nonzero(self._asked)
        deciding = DecisionSteps(
            agent_id=self._agent_id[rows],
            group_id=self._group_id[rows],
            reward=self._reward[rows],
            group_reward=self._group_reward[rows],
            action_mask=step.action_mask[rows],
            obs=tuple(obs[rows] for obs in step.obs),
        )
        self._reward[rows] = 0.0
        self._group_reward[rows] = 0.0
        return deciding

    def decide(self, actions: Action) -> None:
        """Actions of those who asked last; they are repeated until the next ones come."""
        self.actions.continuous[self._asked] = actions.continuous
        self.actions.discrete[self._asked] = actions.discrete

    def _begin(self, new: np.ndarray) -> None:
        count = int(new.sum())
        self._agent_id[new] = np.arange(self._next_id, self._next_id + count)
        self._next_id += count
        self._clear(new)

    def _clear(self, rows: np.ndarray) -> None:
        """Nothing of an episode may leak into the next one of the row."""
        self._reward[rows] = 0.0
        self._group_reward[rows] = 0.0
        self.actions.continuous[rows] = 0.0
        self.actions.discrete[rows] = 0
