"""One Gymnasium environment: an area with a single agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces

from jaxrl.envs.foreign.area import AreaOutcome, WrappedArea, handed_back
from jaxrl.envs.foreign.options import ALONE, AreaOptions

AGENT = "agent"
_LIVING, _NOBODY = (AGENT,), ()


class GymnasiumArea(WrappedArea):
    """`env`, whose one agent belongs to the behavior `name`."""

    def __init__(self, env: gymnasium.Env, name: str, options: AreaOptions = ALONE) -> None:
        super().__init__(env, options)
        self._name = name

    @property
    def announced(self) -> tuple[str]:
        """The one agent."""
        return _LIVING

    def spaces(self, agent: Any) -> tuple[spaces.Space, spaces.Space]:
        """Return the spaces of observations and actions."""
        return self._env.observation_space, self._bounded(self._env.action_space)

    def behavior(self, agent: Any) -> str:
        """Return the name of the environment."""
        return self._name

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> AreaOutcome:
        """Begin an episode. Raises any error of the environment; ValueError: its answer does not fit Gymnasium."""
        answer = self._begun(seed, options)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ValueError(f"returned {handed_back(answer)}, expected a pair (observation, info)")
        obs, info = answer
        return _outcome(obs, 0.0, False, False, info)

    def step(self, actions: Mapping[Any, Any]) -> AreaOutcome:
        """Step the environment. Raises as `reset`."""
        expected = "(observation, reward, terminated, truncated, info), as Gymnasium (not gym) has it"
        return _outcome(*self._stepped(actions[AGENT], expected))


def _outcome(obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> AreaOutcome:
    living = _NOBODY if terminated or truncated else _LIVING
    return AreaOutcome(
        obs={AGENT: obs},
        reward={AGENT: reward},
        terminated={AGENT: terminated},
        truncated={AGENT: truncated},
        infos={AGENT: info or {}},
        living=living,
        asked=living,
        over=not living,
    )
