"""Environment with the interface of RLlib's `MultiAgentEnv`: dictionaries by agent, and `__all__`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from jaxrl.envs.foreign.area import AreaOutcome, WrappedArea, mappings
from jaxrl.envs.foreign.options import IN_TEAMS, AreaOptions

ALL = "__all__"
_SPACES = ("observation", "action")


class MultiAgentArea(WrappedArea):
    """An agent lives from its first observation until its flag or that of all; agents with an observation act next.

    The behavior of `adversary_0` is `adversary`; numbers alone are `agent`. Spaces are looked for as in RLlib: in
    `observation_spaces` by agent, then in `observation_space`, if it is by agent, then in the result of
    `get_observation_space(agent)`, then in an `observation_space` for all; actions likewise.

    Args:
        env: has `reset(seed=, options=)` and `step(actions)` as RLlib 2.3 and later define them.
        options: of `env_args`.
    """

    def __init__(self, env: Any, options: AreaOptions = IN_TEAMS) -> None:
        super().__init__(env, options)
        self._living: dict[Any, None] = {}  # in the order in which they appeared

    @property
    def announced(self) -> tuple[Any, ...]:
        """The environment's `possible_agents`, those of `get_agent_ids()`, and those that its spaces are listed for."""
        ids = getattr(self._env, "get_agent_ids", tuple)()
        listed = [getattr(self._env, f"{what}_spaces", None) for what in _SPACES]
        seen, done = (getattr(getattr(self._env, f"{what}_space", None), "spaces", None) for what in _SPACES)
        if isinstance(seen, Mapping) and isinstance(done, Mapping) and seen.keys() == done.keys():  # by agent
            listed.append(seen)
        agents = (agent for by_agent in listed if isinstance(by_agent, Mapping) for agent in by_agent)
        return tuple(dict.fromkeys((*super().announced, *ids, *agents)))

    def spaces(self, agent: Any) -> tuple[spaces.Space, spaces.Space]:
        """Return the spaces of observations and actions. Raises ValueError where the environment has none."""
        return self._space("observation", agent), self._bounded(self._space("action", agent))

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> AreaOutcome:
        """Begin an episode. Raises any error of the environment; ValueError: its answer does not fit RLlib."""
        answer = self._begun(seed, options)
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Mapping):
            raise ValueError("returned no pair of dictionaries (observations, infos): written for RLlib before 2.3")
        obs, infos = answer
        self._living = {}
        return self._outcome(obs, {}, {ALL: False}, {ALL: False}, infos)

    def step(self, actions: Mapping[Any, Any]) -> AreaOutcome:
        """Step the environment. Raises as `reset`."""
        expected = "(observations, rewards, terminateds, truncateds, infos)"
        obs, reward, terminated, truncated, infos = self._stepped(dict(actions), expected)
        if ALL not in terminated:
            raise ValueError(f"returned terminateds without {ALL!r}, which says whether the episode of all is over")
        return self._outcome(obs, reward, terminated, truncated, infos)

    def _outcome(self, obs: Any, reward: Any, terminated: Any, truncated: Any, infos: Any) -> AreaOutcome:
        self._living |= dict.fromkeys(obs)
        ends, cut = bool(terminated[ALL]), bool(truncated.get(ALL, False))
        terminated = {agent: bool(terminated.get(agent, False)) or ends for agent in self._living}
        truncated = {agent: bool(truncated.get(agent, False)) or cut for agent in self._living}
        self._living = {a: None for a in self._living if not terminated[a] and not truncated[a]}
        return AreaOutcome(
            obs=obs,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            infos=mappings(infos),
            living=tuple(self._living),
            asked=[agent for agent in obs if agent in self._living],
            over=ends or cut,
        )

    def _space(self, what: str, agent: Any) -> spaces.Space:
        of_all = [getattr(self._env, f"{what}_{word}", None) for word in ("spaces", "space")]
        for spaces_by_name in of_all:
            by_agent = getattr(spaces_by_name, "spaces", spaces_by_name)  # a Dict space itself holds samples
            if isinstance(by_agent, Mapping) and agent in by_agent:
                return by_agent[agent]
        space = getattr(self._env, f"get_{what}_space", lambda _: None)(agent)
        if isinstance(space, spaces.Space):
            return space
        if isinstance(of_all[1], spaces.Space):
            return of_all[1]
        raise ValueError(
            f"the environment tells no {what} space: expected {what}_spaces[{agent!r}], {what}_space "
            f"or get_{what}_space"
        )
