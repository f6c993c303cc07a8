"""Environments of which one thing each is odd, as others write them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

ZERO = np.zeros(1, np.float32)


class Even(ParallelEnv):
    """Two agents whose episodes end after 4 steps. Nothing is odd about it."""

    metadata: Any = {"name": "even", "render_modes": []}  # noqa: RUF012
    possible_agents: Any = ("left_0", "right_0")

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 1, (1,))

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.clock = list(self.possible_agents), 0
        if seed is not None:
            self.random = np.random.default_rng(seed)
        return self.see(), {}

    def see(self) -> dict[str, Any]:
        return {agent: self.random.random(1).astype(np.float32) for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.clock += 1
        obs, over = self.see(), self.clock == 4
        agents = list(self.agents)
        self.agents = [] if over else agents
        return obs, self.rewards(agents), dict.fromkeys(agents, over), dict.fromkeys(agents, False), {}

    def rewards(self, agents: list[str]) -> dict[str, float]:
        return dict.fromkeys(agents, 1.0)


class Unseeded(Even):
    """Draws from nobody's seed."""

    def see(self) -> dict[str, Any]:
        return {agent: np.random.default_rng().random(1).astype(np.float32) for agent in self.agents}


class Hashed(Even):
    """Keeps agents in a set, whose order a process decides."""

    def __init__(self) -> None:
        self.possible_agents = [*{f"walker_{i}" for i in range(8)}]

    def see(self) -> dict[str, Any]:
        return dict.fromkeys(self.agents, ZERO)


class Uninvited(Even):
    """A third agent, which possible_agents do not name."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed)
        self.agents.append("guest_0")
        return self.see(), {}


class Vanishing(Even):
    """left_0 is gone without a flag after two steps."""

    def step(self, actions: Any) -> Any:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        if self.clock == 2:
            self.agents.remove("left_0")
        return obs, rewards, terminated, truncated, infos


class Growing(Even):
    """The spaces of left_0 grow with each episode."""

    size = 0

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 1, (self.size,) if agent == "left_0" else (1,))

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.size += 1
        return super().reset(seed)

    def see(self) -> dict[str, Any]:
        shapes = {agent: self.observation_space(agent).shape for agent in self.agents}
        return {agent: np.zeros(shape, np.float32) for agent, shape in shapes.items()}


class Duel(Even):
    """What one wins the other one loses; both are `player`."""

    possible_agents: Any = ("player_0", "player_1")

    def rewards(self, agents: list[str]) -> dict[str, float]:
        return {"player_0": 1.0, "player_1": -1.0}


class Strangers(Even):
    """Pays somebody who is not there."""

    def rewards(self, agents: list[str]) -> dict[str, float]:
        return dict.fromkeys(agents, 1.0) | {"ghost_0": 1.0}


class Single(gymnasium.Env):
    """One agent that is shown a number; `odd` says what is odd."""

    observation_space: Any = spaces.Box(0, 1, (1,))
    action_space: Any = spaces.Discrete(2)
    odd = ""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.clock = 0
        return ZERO, {}

    def step(self, action: Any) -> Any:
        self.clock += 1
        obs = {"nan": ZERO * np.nan, "outside": ZERO + 2}.get(self.odd if self.clock == 3 else "", ZERO)
        infos = {"action_mask": np.zeros(2)} if self.odd == "closed" and self.clock == 3 else {}
        return obs, 0.0, self.odd != "endless" and self.clock == 4, False, infos


class Unbounded(Single):
    action_space: Any = spaces.Box(0, np.inf, (1,))


for _odd in ("nan", "outside", "closed", "endless"):
    gymnasium.register(f"Odd{_odd.title()}-v0", type(_odd, (Single,), {"odd": _odd}))
gymnasium.register("Unbounded-v0", Unbounded)


class Rl:
    """An environment of RLlib's whose agents are numbers."""

    observation_space = spaces.Box(0, 1, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        self.clock = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.clock = 0
        return {0: ZERO, 1: ZERO}, {}

    def step(self, actions: Any) -> Any:
        self.clock += 1
        return {0: ZERO, 1: ZERO}, {0: 1.0, 1: 1.0}, {"__all__": self.clock == 3}, {"__all__": False}, {}
