"""Tiny environments whose values and best actions are known, each of which fails for one reason only.

The idea of probes is from rejax' tests; tasks and code are our own. They speak in messages like any environment of
jaxrl, many copies step together, and every episode gets a new agent id.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from jaxrl.types import Action, BehaviorMessage, BehaviorSpec
from tests.helpers import decision_steps, make_spec, message, terminal_steps

DISCRETE = make_spec((2,), branches=(2,))
CONTINUOUS = make_spec((2,), continuous=1)
HYBRID = make_spec((2,), continuous=1, branches=(2,))


class Played(NamedTuple):
    """What a task answers to one action per copy."""

    reward: np.ndarray  # float32 [N]
    obs: np.ndarray  # float32 [N, 2]
    over: np.ndarray  # bool [N]
    truncated: np.ndarray  # bool [N]


class Task(Protocol):
    """One probe: N copies at once."""

    spec: BehaviorSpec

    def begin(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """First observations [n, 2]."""
        ...

    def play(self, obs: np.ndarray, clock: np.ndarray, action: Action) -> Played:
        """`clock` [N] counts the decisions of the episode before this one."""
        ...


def _signs(n: int, rng: np.random.Generator) -> np.ndarray:
    return np.stack([rng.choice([-1.0, 1.0], n), np.zeros(n)], axis=-1)


def _one_step(reward: np.ndarray, obs: np.ndarray) -> Played:
    return Played(reward=reward, obs=obs, over=np.ones(len(obs), bool), truncated=np.zeros(len(obs), bool))


class ConstantReward:
    """One step, reward 1: V = 1. Fails if the value is not learned at all."""

    spec = DISCRETE

    def begin(self, n, rng):
        return np.zeros((n, 2))

    def play(self, obs, clock, action):
        return _one_step(np.ones(len(obs)), obs)


class ObservedReward:
    """One step, reward = observation ±1: V(o) = o. Fails if observations go astray."""

    spec = DISCRETE

    def begin(self, n, rng):
        return _signs(n, rng)

    def play(self, obs, clock, action):
        return _one_step(obs[:, 0], obs)


class DelayedReward:
    """Two steps, reward 1 after the second: V(second) = 1, V(first) = γ. Fails if discount or time are wrong."""

    spec = DISCRETE

    def begin(self, n, rng):
        return np.zeros((n, 2))

    def play(self, obs, clock, action):
        over = clock == 1
        return Played(over.astype(float), np.stack([clock + 1.0, 0 * clock], -1), over, np.zeros(len(obs), bool))


class ChosenReward:
    """One step, reward -(a - 0.5)² of the action sent: best 0.5. Fails if advantage or log-probability are wrong."""

    spec = CONTINUOUS

    def begin(self, n, rng):
        return np.zeros((n, 2))

    def play(self, obs, clock, action):
        return _one_step(-np.square(action.continuous[:, 0] - 0.5), obs)


class MatchedReward:
    """One step, ±1: branch right if it is 1 for positive observations, minus (a - o / 2)². Fails if columns mix."""

    spec = HYBRID

    def begin(self, n, rng):
        return _signs(n, rng)

    def play(self, obs, clock, action):
        right = action.discrete[:, 0] == (obs[:, 0] > 0)
        return _one_step(2.0 * right - 1.0 - np.square(action.continuous[:, 0] - 0.5 * obs[:, 0]), obs)


class FarReward(MatchedReward):
    """The same where both numbers of the observation stand far from 0. Fails if statistics begin with zeros."""

    def __init__(self, offset: float) -> None:
        self._offset = offset

    def begin(self, n, rng):
        return super().begin(n, rng) + self._offset

    def play(self, obs, clock, action):
        played = super().play(obs - self._offset, clock, action)
        return played._replace(obs=played.obs + self._offset)


class EndlessReward:
    """Reward 1 for ever, cut into episodes of `length`; only the flag says whether it could have gone on."""

    spec = DISCRETE

    def __init__(self, *, truncated: bool, length: int = 4) -> None:
        self.truncated = truncated
        self.length = length

    def begin(self, n, rng):
        return np.zeros((n, 2))

    def play(self, obs, clock, action):
        over = clock + 1 == self.length
        return Played(np.ones(len(obs)), obs, over, over & self.truncated)


class ProbeEnv:
    """Copies of a task, one agent without a team in each; an episode that ends is followed by the next at once."""

    def __init__(self, task: Task, *, copies: int = 16, seed: int = 0) -> None:
        self.spec = task.spec
        self._task = task
        self._rng = np.random.default_rng(seed)
        self._clock = np.zeros(copies, int)
        self._ids = np.arange(copies)
        self._obs = task.begin(copies, self._rng)

    def first(self) -> BehaviorMessage:
        """Everybody asks."""
        return message(self.spec, None, decision_steps(self.spec, self._ids, obs=[self._obs]))

    def step(self, action: Action) -> BehaviorMessage:
        """Rewards for `action`, ends and new episodes."""
        played = self._task.play(self._obs, self._clock, action)
        over, reward = played.over, np.where(played.over, 0.0, played.reward)
        ended = terminal_steps(
            self.spec,
            self._ids[over],
            reward=played.reward[over],
            truncated=played.truncated[over],
            obs=[played.obs[over]],
        )
        self._ids = np.where(over, self._ids + len(over), self._ids)
        self._clock = np.where(over, 0, self._clock + 1)
        fresh = self._task.begin(len(over), self._rng)
        self._obs = np.where(over[:, None], fresh, played.obs)
        return message(self.spec, ended, decision_steps(self.spec, self._ids, reward=reward, obs=[self._obs]))


SACRIFICE = make_spec((3,), branches=(2,))
COST = 0.2


class SacrificeEnv:
    """Teams of two. A hero that chooses 1 dies at once, for -0.2; then its mate brings the team +1 one step later.

    With `at_once` the team has the +1 with the death itself, and the hero, ended before, has no part in it.

    The hero is dead when the reward comes: only posthumous credit can teach it. A hero that stays brings nothing.
    Observation: [1 for the hero, step, 1 if the hero died]. `alone`: the death has a message to itself.
    """

    def __init__(self, *, teams: int = 16, alone: bool = False, at_once: bool = False) -> None:
        self.spec = SACRIFICE
        self.alone = alone
        self.at_once = at_once
        self.teams = teams
        self.deaths = np.zeros(0, bool)  # of the newest episodes
        self._next = 0
        self._script = self._episodes()
        self._action: Action | None = None

    def first(self) -> BehaviorMessage:
        """The first episodes."""
        return next(self._script)

    def step(self, action: Action) -> BehaviorMessage:
        """Actions of those who asked."""
        self._action = action
        return next(self._script)

    def _episodes(self):
        ended = None
        while True:
            heroes = self._next + 2 * np.arange(self.teams)
            self._next += 2 * self.teams
            yield message(self.spec, ended, self._asks(np.concatenate([heroes, heroes + 1]), step=0))
            self.deaths = self._action.discrete[: self.teams, 0] == 1
            dead, alive = heroes[self.deaths], np.concatenate([heroes[~self.deaths], heroes + 1])
            ended = self._ends(dead, reward=-COST)
            if self.alone:
                yield message(self.spec, ended)
                ended = None
            yield message(self.spec, ended, self._asks(alive, step=1))
            late = None if self.at_once else np.isin(alive - alive % 2, dead).astype(float)
            ended = self._ends(alive, group_reward=late)

    def _fields(self, agents: np.ndarray, step: int) -> dict:
        died = np.zeros(len(agents)) if step == 0 else np.isin(agents - 1, self._dead()) & (agents % 2 == 1)
        obs = np.stack([agents % 2 == 0, np.full(len(agents), step), died], axis=-1)
        return {"agents": agents, "groups": 1 + agents // 2, "obs": [obs]}

    def _dead(self) -> np.ndarray:
        return self._next - 2 * self.teams + 2 * np.flatnonzero(self.deaths)

    def _asks(self, agents: np.ndarray, step: int):
        fields = self._fields(agents, step)
        if self.at_once:
            fields["group_reward"] = fields["obs"][0][:, 2]  # its hero has died
        return decision_steps(self.spec, **fields)

    def _ends(self, agents: np.ndarray, reward: float = 0.0, group_reward: np.ndarray | None = None):
        rewards = np.full(len(agents), reward)
        return terminal_steps(self.spec, **self._fields(agents, step=1), reward=rewards, group_reward=group_reward)
