"""One PettingZoo environment: an area with agents that come and go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import aec_to_parallel, turn_based_aec_to_parallel

from jaxrl.envs.foreign.area import AreaOutcome, WrappedArea, mappings
from jaxrl.envs.foreign.options import IN_TEAMS, AreaOptions


class PettingZooArea(WrappedArea):
    """A parallel environment, or one in turns, in which only the agent whose turn it is is asked.

    The behavior of `adversary_0` is `adversary`, that of `agent_1` is `agent`; a name without a number is the behavior.

    Args:
        env: agents of an AEC environment that calls itself parallelizable act all at once, others in turns.
        options: of `env_args`.

    Raises:
        TypeError: `env` is no environment of PettingZoo.
    """

    def __init__(self, env: Any, options: AreaOptions = IN_TEAMS) -> None:
        self._turns: AECEnv | None = None
        if isinstance(env, AECEnv):
            in_turns = not env.metadata.get("is_parallelizable", False)
            self._turns = env if in_turns else None
            env = turn_based_aec_to_parallel(env) if in_turns else aec_to_parallel(env)
        if not isinstance(env, ParallelEnv):
            raise TypeError(f"got a {type(env).__name__}, expected a ParallelEnv or an AECEnv of PettingZoo")
        super().__init__(env, options)

    def spaces(self, agent: Any) -> tuple[spaces.Space, spaces.Space]:
        """Return the spaces of observations and actions."""
        return self._env.observation_space(agent), self._bounded(self._env.action_space(agent))

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> AreaOutcome:
        """Begin an episode. Raises any error of the environment; ValueError: its answer does not fit PettingZoo."""
        answer = self._begun(seed, options)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ValueError("returned no pair (observations, infos): an environment of PettingZoo before 1.24")
        obs, infos = answer
        return self._outcome(obs, {}, {}, {}, infos)

    def step(self, actions: Mapping[Any, Any]) -> AreaOutcome:
        """Step the environment. Raises as `reset`."""
        expected = "(observations, rewards, terminations, truncations, infos), as PettingZoo 1.24 has it"
        return self._outcome(*self._stepped(dict(actions), expected))

    def _outcome(self, obs: Any, reward: Any, terminated: Any, truncated: Any, infos: Any) -> AreaOutcome:
        """Return the outcome; an agent with a flag is over, even if the environment still lists it."""
        living = [a for a in self._env.agents if not terminated.get(a, False) and not truncated.get(a, False)]
        asked = living if self._turns is None else [a for a in living if a == self._turns.agent_selection]
        return AreaOutcome(
            obs=obs,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            infos=mappings(infos),
            living=living,
            asked=asked,
            over=not living,
        )
