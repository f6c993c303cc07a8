"""A Unity environment as a parallel environment of PettingZoo."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from jaxrl.client.environment import UnityEnvironment
from jaxrl.client.spaces import BehaviorSpaces
from jaxrl.types import Action, BehaviorMessage


class _Seen(NamedTuple):
    """A living agent: its name on the wire, and its last observation."""

    behavior: str
    agent_id: int
    obs: Any
    info: dict[str, Any]


class _Outcome(NamedTuple):
    """Return values of `step`, by the names of the agents."""

    obs: dict[str, Any]
    reward: dict[str, float]
    terminated: dict[str, bool]
    truncated: dict[str, bool]
    infos: dict[str, dict[str, Any]]

    def add(self, name: str, obs: Any, reward: float, info: dict[str, Any]) -> None:
        """Add an agent that has not ended."""
        self.obs[name], self.reward[name], self.infos[name] = obs, reward, dict(info)
        self.terminated[name] = self.truncated[name] = False


def pettingzoo_view(env: UnityEnvironment, *, uint8_visual: bool | None = None) -> PettingZooView:
    """Return `env` as a `pettingzoo.ParallelEnv`. It is reset once, to learn its agents.

    `uint8_visual`: images as bytes (True), as float32 from 0 to 1 (False), or as the environment sends them.

    Raises:
        EnvironmentFailure: as `UnityEnvironment.reset`.
    """
    return PettingZooView(env, uint8_visual=uint8_visual)


class PettingZooView(ParallelEnv[str, Any, Any]):
    """A Unity environment as a `pettingzoo.ParallelEnv`, see `pettingzoo_view`. Spaces: `jaxrl.client.spaces`.

    Agents are called `<behavior>_<number>`, in the order in which they first ask in an episode of the view; numbers are
    not used twice in it. The episode is over when all have ended; agents that begin in that message belong to the next
    episode, with which `reset` goes on. In the middle of an episode, or with `options`, `reset` starts the scene anew;
    `options` are environment parameters, which a scene reads as an episode begins. So episodes are those of the scene
    if it has one training area; with several that end one by one, the view's may go on for ever.

    An agent that lives and does not ask shows its last observation again, earns 0, and its action is ignored:
    `info["asked"]` is False. Rewards are own plus group reward; `info` holds `agent_id`, `group_id`, `group_reward` and
    `action_mask` (bool [M], True: allowed) where actions are discrete. A player cannot be seeded again: the seed of
    `reset` has no effect.
    """

    metadata = {"name": "unity", "render_modes": [], "is_parallelizable": True}  # noqa: RUF012, as PettingZoo does
    render_mode = None

    def __init__(self, env: UnityEnvironment, *, uint8_visual: bool | None = None) -> None:
        self._env = env
        self._uint8_visual = uint8_visual
        self._spaces: dict[str, BehaviorSpaces] = {}
        self._behavior_of: dict[str, str] = {}
        self._lives: dict[str, _Seen] = {}
        self._counts: dict[str, int] = {}
        self.possible_agents: list[str] = []
        self.agents: list[str] = []
        env.reset()
        self._begin()
        self.agents = []

    def observation_space(self, agent: str) -> spaces.Space:
        """Return the space of an agent in `possible_agents`."""
        return self._spaces[self._behavior_of[agent]].observation

    def action_space(self, agent: str) -> spaces.Space:
        """Return the space of an agent in `possible_agents`."""
        return self._spaces[self._behavior_of[agent]].action

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Return first observations and infos of all agents. Raises EnvironmentFailure."""
        if self.agents or options:
            self._env.reset({name: float(value) for name, value in (options or {}).items()})
        self._begin()
        lives = self._lives.items()
        return {name: seen.obs for name, seen in lives}, {name: dict(seen.info) for name, seen in lives}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        """Return observations, rewards, terminations, truncations and infos of all agents that lived, by agent.

        Raises:
            KeyError: an agent that asks got no action.
            ActionError, EnvironmentFailure: as `UnityEnvironment.step`.
        """
        self._send(actions)
        self._env.step()
        outcome = _Outcome({}, {}, {}, {}, {})
        self._end(outcome)
        silent = set(self._lives)
        if self._lives:  # else new agents belong to the next episode
            for name, reward in self._meet().items():
                silent.discard(name)
                outcome.add(name, self._lives[name].obs, reward, self._lives[name].info)
        for name in silent:
            seen = self._lives[name]
            outcome.add(name, copy.deepcopy(seen.obs), 0.0, {**seen.info, "asked": False})
        self.agents = list(self._lives)
        return tuple(outcome)

    def render(self) -> None:
        """Do nothing: a player draws itself."""

    def close(self) -> None:
        """End the player."""
        self._env.close()

    def _begin(self) -> None:
        """Begin an episode of the view with the agents that ask now."""
        self._lives, self._counts = {}, {}
        while not any(len(message.deciding.agent_id) for message in self._env.steps.values()):
            self._env.step()
        self._meet()
        self.agents = list(self._lives)

    def _end(self, outcome: _Outcome) -> None:
        """Remove agents of this episode that ended from the living ones."""
        names = self._names()
        for behavior, message in self._env.steps.items():
            ended = message.ended
            for row, agent_id in enumerate(ended.agent_id.tolist()):
                name = names.get((behavior, agent_id))
                if name is None:
                    continue
                del self._lives[name]
                group_reward, truncated = float(ended.group_reward[row]), bool(ended.truncated[row])
                info = {"agent_id": agent_id, "group_id": int(ended.group_id[row]), "group_reward": group_reward}
                obs = self._space(behavior).see(ended.obs, row)
                outcome.add(name, obs, float(ended.reward[row]) + group_reward, {**info, "asked": False})
                outcome.truncated[name], outcome.terminated[name] = truncated, not truncated

    def _meet(self) -> dict[str, float]:
        """Register all agents that ask; return their rewards by name."""
        names, rewards = self._names(), {}
        for behavior, message in self._env.steps.items():
            deciding = message.deciding
            for row, agent_id in enumerate(deciding.agent_id.tolist()):
                name = names.get((behavior, agent_id)) or self._new_name(behavior)
                obs = self._space(behavior).see(deciding.obs, row)
                self._lives[name] = _Seen(behavior, agent_id, obs, _info(message, row))
                rewards[name] = float(deciding.reward[row] + deciding.group_reward[row])
        return rewards

    def _send(self, actions: dict[str, Any]) -> None:
        names = self._names()
        for behavior, message in self._env.steps.items():
            asking = [names[behavior, agent_id] for agent_id in message.deciding.agent_id.tolist()]
            if not asking:
                continue
            chosen = [self._space(behavior).act(actions[name]) for name in asking]
            continuous: Any = np.stack([action.continuous for action in chosen])
            discrete: Any = np.stack([action.discrete for action in chosen])
            self._env.set_actions(behavior, Action(continuous, discrete))

    def _names(self) -> dict[tuple[str, int], str]:
        """Return the living agents by behavior and agent id."""
        return {(seen.behavior, seen.agent_id): name for name, seen in self._lives.items()}

    def _space(self, behavior: str) -> BehaviorSpaces:
        if behavior not in self._spaces:
            self._spaces[behavior] = BehaviorSpaces(self._env.specs[behavior], self._uint8_visual)
        return self._spaces[behavior]

    def _new_name(self, behavior: str) -> str:
        """Return the next name of a behavior in this episode."""
        number = self._counts.get(behavior, 0)
        self._counts[behavior] = number + 1
        name = f"{behavior}_{number}"
        if name not in self._behavior_of:
            self._behavior_of[name] = behavior
            self.possible_agents.append(name)
            self._space(behavior)
        return name


def _info(message: BehaviorMessage, row: int) -> dict[str, Any]:
    deciding = message.deciding
    info: dict[str, Any] = {
        "agent_id": int(deciding.agent_id[row]),
        "group_id": int(deciding.group_id[row]),
        "group_reward": float(deciding.group_reward[row]),
        "asked": True,
    }
    if deciding.action_mask.shape[1]:
        info["action_mask"] = deciding.action_mask[row].copy()
    return info
