"""A Unity environment with a single agent as a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from jaxrl.client.environment import UnityEnvironment
from jaxrl.client.spaces import BehaviorSpaces
from jaxrl.types import Action, BehaviorMessage, JaxrlError


class ViewError(JaxrlError):
    """The environment does not fit the view. The text names one that does."""


def gymnasium_view(env: UnityEnvironment, *, uint8_visual: bool | None = None) -> GymnasiumView:
    """Return `env`, which has one agent at a time, as a `gymnasium.Env`. It is reset once, to learn its spaces.

    `uint8_visual`: images as bytes (True), as float32 from 0 to 1 (False), or as the environment sends them.

    Raises:
        ViewError: it has several behaviors, or several agents.
        EnvironmentFailure: as `UnityEnvironment.reset`.
    """
    return GymnasiumView(env, uint8_visual=uint8_visual)


class GymnasiumView(gymnasium.Env[Any, Any]):
    """A Unity environment as a `gymnasium.Env`, see `gymnasium_view`. Spaces: `jaxrl.client.spaces`.

    The reward is the agent's own plus its group's. `info` holds `agent_id`, and `action_mask` (bool [M], True: allowed)
    where actions are discrete. `reset` begins with the episode that the scene itself has begun. It starts the scene
    anew only in the middle of an episode, or with `options`: environment parameters, which a scene reads as an episode
    begins. A player cannot be seeded again: the seed of `reset` seeds `np_random` alone. `spec.make()` gives another
    view of the player, begins its scene anew, and does not end the player when it is closed.
    """

    metadata = {"render_modes": []}  # noqa: RUF012, as Gymnasium declares it

    def __init__(self, env: UnityEnvironment, *, uint8_visual: bool | None = None) -> None:
        self.spec = EnvSpec(
            id="jaxrl/Unity-v0",
            entry_point=lambda **_: _SecondView(env, uint8_visual=uint8_visual),
            nondeterministic=True,
        )
        self._env = env
        steps = env.reset()
        if len(steps) != 1:
            raise ViewError(
                f"there are the behaviors {', '.join(steps)}, the Gymnasium view shows one; use jaxrl.pettingzoo_view"
            )
        (self._behavior,) = steps
        self._spaces = BehaviorSpaces(env.specs[self._behavior], uint8_visual)
        self.observation_space, self.action_space = self._spaces.observation, self._spaces.action
        self._agent: int | None = None  # agent whose episode goes on; None: the next episode has not begun
        self._wait_for(None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the first observation of an episode and its info. Raises ViewError, EnvironmentFailure."""
        super().reset(seed=seed)
        if self._agent is not None or options:
            self._env.reset({name: float(value) for name, value in (options or {}).items()})
        message = self._wait_for(None)
        return self._spaces.see(message.deciding.obs, 0), _info(message)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act and wait until the agent asks again or its episode is over. Raises ViewError, EnvironmentFailure."""
        agent = int(self._env.get_steps(self._behavior).deciding.agent_id[0])
        chosen = self._spaces.act(action)
        self._env.set_actions(self._behavior, Action(chosen.continuous[None], chosen.discrete[None]))
        self._env.step()
        message = self._wait_for(agent)
        rows = np.flatnonzero(message.ended.agent_id == agent)
        if len(rows):
            self._agent = None
            ended, row = message.ended, int(rows[0])
            truncated = bool(ended.truncated[row])
            reward = float(ended.reward[row] + ended.group_reward[row])
            return self._spaces.see(ended.obs, row), reward, not truncated, truncated, {"agent_id": agent}
        self._agent = agent
        deciding = message.deciding
        reward = float(deciding.reward[0] + deciding.group_reward[0])
        return self._spaces.see(deciding.obs, 0), reward, False, False, _info(message)

    def close(self) -> None:
        """End the player."""
        self._env.close()

    def _wait_for(self, agent: int | None) -> BehaviorMessage:
        """Wait for a message, perhaps the present one, in which `agent` ended or asks; None: in which any agent asks.

        Raises ViewError if other agents ask.
        """
        while True:
            message = self._env.get_steps(self._behavior)
            asking = message.deciding.agent_id.tolist()
            ended = agent is not None and agent in message.ended.agent_id
            if len(asking) > 1 or (agent is not None and not ended and asking not in ([], [agent])):
                raise ViewError(
                    f"behavior {self._behavior}: the agents {asking} ask, the Gymnasium view shows exactly one; use "
                    "jaxrl.pettingzoo_view, or num_areas=1"
                )
            if asking or ended:
                return message
            self._env.step()


class _SecondView(GymnasiumView):
    """A view beside another one of the same player."""

    def close(self) -> None:
        """Leave the player to the first view."""


def _info(message: BehaviorMessage) -> dict[str, Any]:
    info: dict[str, Any] = {"agent_id": int(message.deciding.agent_id[0])}
    if message.deciding.action_mask.shape[1]:
        info["action_mask"] = message.deciding.action_mask[0].copy()
    return info
