"""Small environments of which every number is known, as others would write them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from jaxrl.envs.foreign.environment import ForeignEnvironment
from jaxrl.envs.foreign.options import AreaOptions
from jaxrl.envs.gymnasium.area import GymnasiumArea
from jaxrl.envs.pettingzoo.area import PettingZooArea
from jaxrl.types import Action, EnvMessage


class Stairs(gymnasium.Env):
    """Observation [episode, step]; step n pays n. Episode 0 terminates with step 2, episode 1 is truncated with step 3.

    And so on in turns. `wrong` makes step 2 of episode 0 go wrong in a way of that name.
    """

    observation_space: Any = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space: Any = spaces.Discrete(3, start=5)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, wrong: str = "", render_mode: str | None = None, picture: Any = "picture") -> None:
        self.wrong = wrong
        self.render_mode = render_mode
        self.picture = picture
        self.episode = -1
        self.given: list[Any] = []
        self.seeds: list[int | None] = []
        self.options: list[dict[str, Any] | None] = []
        self.drawn = 0
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seeds.append(seed)
        self.options.append(options)
        self.episode += 1
        self.clock = 0
        return self.see(), {"episode_number": self.episode}

    def step(self, action: Any) -> Any:
        self.given.append(action)
        self.clock += 1
        terminated = self.episode % 2 == 0 and self.clock == 2
        truncated = self.episode % 2 == 1 and self.clock == 3
        answer = (self.see(), float(self.clock), terminated, truncated, {"clock": self.clock, "self": self})
        return self.spoil(answer) if self.episode == 0 and self.clock == 2 and self.wrong else answer

    def spoil(self, answer: Any) -> Any:
        obs, reward, terminated, truncated, info = answer
        if self.wrong == "raises":
            raise ValueError("out of stairs")
        return {
            "four": (obs, reward, terminated, info),
            "nan": (np.array([0, np.nan], np.float32), reward, terminated, truncated, info),
            "shape": (np.zeros(3, np.float32), reward, terminated, truncated, info),
            "reward": (obs, float("inf"), terminated, truncated, info),
            "rewards": (obs, np.zeros(2), terminated, truncated, info),
            "mask": (obs, reward, False, False, {"action_mask": np.ones(4)}),
        }[self.wrong]

    def see(self) -> np.ndarray:
        return np.array([self.episode, self.clock], np.float32)

    def render(self) -> Any:
        self.drawn += 1
        if not isinstance(self.picture, str):
            return self.picture
        return np.full((15, 20, 3), self.clock, np.uint8)

    def close(self) -> None:
        self.closed = True


class Relay(ParallelEnv):
    """Three runners and a guard, whose spaces differ. Every step pays an agent its number (the guard 10).

    Step 1: runner_2 has no observation. Step 2: runner_0 terminates. Step 3: runner_1 vanishes without a word and
    runner_3 joins. Step 5: the guard is truncated; nothing is said of the others, and nobody is left.
    """

    metadata: Any = {"name": "relay", "render_modes": []}  # noqa: RUF012
    possible_agents: Any = ("runner_0", "runner_1", "runner_2", "runner_3", "guard_0")

    def __init__(self, **_arguments: Any) -> None:
        self.given: list[dict[str, Any]] = []
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-np.inf, np.inf, (3 if agent == "guard_0" else 2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.clock = 0
        self.agents = ["runner_0", "runner_1", "runner_2", "guard_0"]
        return {agent: self.see(agent) for agent in self.agents}, {}

    def see(self, agent: str) -> np.ndarray:
        size = 3 if agent == "guard_0" else 2
        return np.full(size, 10 * self.clock + number(agent), np.float32)

    def step(self, actions: dict[str, Any]) -> Any:
        self.given.append(actions)
        self.clock += 1
        rewards = {agent: float(number(agent)) for agent in self.agents}
        terminated, truncated = {}, {}
        silent = {1: ["runner_2"], 3: ["runner_1"], 5: ["runner_2", "runner_3"]}.get(self.clock, [])
        if self.clock == 2:
            terminated["runner_0"] = True
            self.agents.remove("runner_0")
        seen = [*self.agents, "runner_0"] if self.clock >= 2 else list(self.agents)  # the dead are shown on
        if self.clock == 3:
            self.agents = ["runner_2", "runner_3", "guard_0"]
            seen.append("runner_3")
        if self.clock == 5:
            truncated["guard_0"] = True
            self.agents = []
        obs = {agent: self.see(agent) for agent in seen if agent not in silent}
        infos = {"guard_0": {"training_enabled": False}, "__common__": {"clock": self.clock}}
        return obs, rewards, terminated, truncated, infos


def number(agent: str) -> int:
    """1 for runner_0, ...; 10 for the guard."""
    return 10 if agent == "guard_0" else int(agent[-1]) + 1


def stairs_env(*games: gymnasium.Env, **settings: Any) -> ForeignEnvironment:
    """Copies of `Stairs` side by side."""
    return ForeignEnvironment(
        worker=settings.pop("worker", 3),
        name="gymnasium:Stairs-v0",
        make_area=lambda area: GymnasiumArea(games[area], "Stairs-v0"),
        areas=len(games),
        seed=settings.pop("seed", 7),
        **settings,
    )


def relay_env(*games: Any, teams: bool = True, **settings: Any) -> ForeignEnvironment:
    """Copies of a PettingZoo environment side by side."""
    return ForeignEnvironment(
        worker=0,
        name="pettingzoo:relay",
        make_area=lambda area: PettingZooArea(games[area], AreaOptions(teams=teams)),
        areas=len(games),
        seed=7,
        **settings,
    )


def choose(message: EnvMessage, choice: int = 0) -> dict[str, Action]:
    """The same choice for everybody who asks, with one branch."""
    return {
        name: Action(
            continuous=np.zeros((len(steps.deciding.agent_id), 0), np.float32),
            discrete=np.full((len(steps.deciding.agent_id), 1), choice, np.int32),
        )
        for name, steps in message.steps.items()
        if len(steps.deciding.agent_id)
    }
