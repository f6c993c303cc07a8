"""A tiny deterministic HostEnv for tests: every feature of the protocol can be switched on by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.types import (
    NO_GROUP,
    Action,
    ActionSpec,
    Aggregation,
    BehaviorMessage,
    BehaviorSpec,
    DecisionSteps,
    EnvironmentStat,
    EnvMessage,
    ObservationSpec,
    ParameterValue,
    TerminalSteps,
)


@dataclass(frozen=True)
class ToySettings:
    """What the environment contains; the defaults give two areas with a team of two each and nothing else."""

    areas: int = 2
    agents_per_team: int = 2
    behaviors: tuple[str, ...] = ("Toy?team=0",)  # each area has one team of each
    teams: bool = True  # False: all agents are lone (NO_GROUP)
    observation_size: int = 4
    continuous: int = 1
    branches: tuple[int, ...] = (3,)
    episode_length: int = 5
    deaths: float = 0.0  # probability per step that a member ends (terminated) while its team goes on
    skips: float = 0.0  # probability per step that a living agent does not ask for a decision
    interrupted_every: int = 0  # every n-th episode of an area ends truncated; 0: never
    living_reward: float = 0.0  # per step and living agent; accumulates while the agent does not ask
    group_reward: float = 0.0  # for all members at the end of the episode
    stats: bool = False  # send one statistic per message
    seed: int = 0


@dataclass
class _Agent:
    agent_id: int
    target: int
    alive: bool = True
    reward: float = 0.0  # since its last record


class _Area:
    """One episode after another of one team per behavior. All draws come from one generator in a fixed order."""

    def __init__(self, settings: ToySettings) -> None:
        self.settings = settings
        self.clock = 0
        self.episode = 0
        self.group_id = NO_GROUP
        self.members: list[_Agent] = []

    def finishes(self) -> bool:
        return self.clock >= self.settings.episode_length or not any(agent.alive for agent in self.members)

    def interrupted(self) -> bool:
        every = self.settings.interrupted_every
        return bool(every) and self.episode % every == 0 and self.clock >= self.settings.episode_length


class ToyEnv:
    """Areas run in step with each other. Reward of an action: 1 if the first branch matches the target that the agent
    sees, less the distance of the first continuous dimension from the agent's clock in episodes.

    Observation of an agent: [clock / episode_length, target, agent id, noise ...].
    """

    def __init__(self, worker: int = 0, settings: ToySettings | None = None) -> None:
        self.worker = worker
        self.settings = settings or ToySettings()
        self.parameters: dict[str, Any] = {}
        self.closed = 0
        self._random = np.random.default_rng([self.settings.seed, worker])
        self._next_id = 1
        self._known = False
        self._areas: dict[str, list[_Area]] = {}
        self._asked: dict[str, list[tuple[_Area, _Agent]]] = {}

    @property
    def spec(self) -> BehaviorSpec:
        return BehaviorSpec(
            observations=(ObservationSpec(name="vector", shape=(self.settings.observation_size,)),),
            action=ActionSpec(continuous_size=self.settings.continuous, discrete_branches=self.settings.branches),
        )

    @property
    def about(self) -> str:
        return ""

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None, seed: int | None = None) -> EnvMessage:
        self.parameters.update(parameters or {})
        if seed is not None:
            self._random, self._next_id = np.random.default_rng(seed), 1
        self._areas = {
            behavior: [_Area(self.settings) for _ in range(self.settings.areas)] for behavior in self.settings.behaviors
        }
        for area in self._all_areas():
            self._begin(area)
        return self._result({behavior: [] for behavior in self._areas})

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        self._check(actions)
        for behavior, asked in self._asked.items():
            for row, (area, agent) in enumerate(asked):
                agent.reward += self._reward(area, agent, actions[behavior], row)
        ended = {behavior: self._advance(areas) for behavior, areas in self._areas.items()}
        return self._result(ended)

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        self.parameters.update(parameters)

    def close(self) -> None:
        self.closed += 1

    def _all_areas(self) -> list[_Area]:
        return [area for areas in self._areas.values() for area in areas]

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _begin(self, area: _Area) -> None:
        area.clock = 0
        area.episode += 1
        area.group_id = self._new_id() if self.settings.teams else NO_GROUP
        targets = self._random.integers(0, 2, self.settings.agents_per_team)
        area.members = [_Agent(agent_id=self._new_id(), target=int(target)) for target in targets]

    def _reward(self, area: _Area, agent: _Agent, action: Action, row: int) -> float:
        reward = 0.0
        if self.settings.branches:
            reward += float(action.discrete[row, 0] == agent.target)
        if self.settings.continuous:
            reward -= abs(float(action.continuous[row, 0]) - area.clock / self.settings.episode_length)
        return reward

    def _advance(self, areas: list[_Area]) -> list[tuple]:
        """Move the clock; the rows (area's group, agent, truncated, group reward, observation) of those that ended."""
        rows = []
        for area in areas:
            area.clock += 1
            for agent in area.members:
                agent.reward += self.settings.living_reward if agent.alive else 0.0
                if agent.alive and self._random.random() < self.settings.deaths:
                    agent.alive = False
                    rows.append((area.group_id, agent, False, 0.0, self._observe(area, agent)))
            if area.finishes():
                rows += [
                    (area.group_id, agent, area.interrupted(), self._team_reward(), self._observe(area, agent))
                    for agent in area.members
                    if agent.alive
                ]
                self._begin(area)
        return rows

    def _team_reward(self) -> float:
        return self.settings.group_reward if self.settings.teams else 0.0

    def _observe(self, area: _Area, agent: _Agent) -> np.ndarray:
        known = [area.clock / self.settings.episode_length, agent.target, agent.agent_id]
        size = self.settings.observation_size
        noise = self._random.standard_normal(max(0, size - len(known)))
        return np.concatenate([known, noise])[:size].astype(np.float32)

    def _result(self, ended: Mapping[str, list[tuple]]) -> EnvMessage:
        steps = {}
        for behavior, areas in self._areas.items():
            asked = [
                (area, agent)
                for area in areas
                for agent in area.members
                if agent.alive and (area.clock == 0 or self._random.random() >= self.settings.skips)
            ]
            self._asked[behavior] = asked
            steps[behavior] = BehaviorMessage(ended=self._ended(ended[behavior]), deciding=self._deciding(asked))
        stats: tuple[EnvironmentStat, ...] = ()
        if self.settings.stats:
            first = self._all_areas()[0]
            stats = (EnvironmentStat(name="Toy/Clock", value=float(first.clock), aggregation=Aggregation.AVERAGE),)
        new_specs = {} if self._known else dict.fromkeys(self.settings.behaviors, self.spec)
        self._known = True
        return EnvMessage(worker=self.worker, steps=steps, new_specs=new_specs, stats=stats, seconds=0.0)

    def _ended(self, rows: list[tuple]) -> TerminalSteps:
        return TerminalSteps(
            agent_id=np.array([agent.agent_id for _, agent, _, _, _ in rows], np.int64),
            group_id=np.array([group for group, _, _, _, _ in rows], np.int64),
            reward=np.array([agent.reward for _, agent, _, _, _ in rows], np.float32),
            group_reward=np.array([reward for _, _, _, reward, _ in rows], np.float32),
            truncated=np.array([truncated for _, _, truncated, _, _ in rows], bool),
            obs=(self._stack([observation for _, _, _, _, observation in rows]),),
        )

    def _deciding(self, asked: list[tuple[_Area, _Agent]]) -> DecisionSteps:
        rewards = [agent.reward for _, agent in asked]
        for _, agent in asked:
            agent.reward = 0.0
        return DecisionSteps(
            agent_id=np.array([agent.agent_id for _, agent in asked], np.int64),
            group_id=np.array([area.group_id for area, _ in asked], np.int64),
            reward=np.array(rewards, np.float32),
            group_reward=np.zeros(len(asked), np.float32),
            action_mask=np.ones((len(asked), sum(self.settings.branches)), bool),
            obs=(self._stack([self._observe(area, agent) for area, agent in asked]),),
        )

    def _stack(self, rows: list[np.ndarray]) -> np.ndarray:
        return np.array(rows, np.float32).reshape(len(rows), self.settings.observation_size)

    def _check(self, actions: Mapping[str, Action]) -> None:
        for behavior, asked in self._asked.items():
            action = actions[behavior]
            expected = ((len(asked), self.settings.continuous), (len(asked), len(self.settings.branches)))
            if (action.continuous.shape, action.discrete.shape) != expected:
                raise EnvironmentFailure(
                    f"actions of {behavior}: got shapes {action.continuous.shape} and {action.discrete.shape}, "
                    f"expected {expected[0]} and {expected[1]}"
                )


def no_actions(result: EnvMessage, settings: ToySettings | None = None) -> dict[str, Action]:
    """Zeros for every agent that asked in the result."""
    settings = settings or ToySettings()
    return {
        behavior: Action(
            continuous=np.zeros((len(steps.deciding.agent_id), settings.continuous), np.float32),
            discrete=np.zeros((len(steps.deciding.agent_id), len(settings.branches)), np.int32),
        )
        for behavior, steps in result.steps.items()
    }
