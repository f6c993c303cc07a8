"""What the host environment asks of one copy of somebody's environment: any number of agents, called by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

from gymnasium import spaces

from jaxrl.envs.foreign.actions import bounded
from jaxrl.envs.foreign.behaviors import unnumbered
from jaxrl.envs.foreign.options import AreaOptions
from jaxrl.envs.interface import EnvironmentFailure


class AreaOutcome(NamedTuple):
    """What one copy answers to a reset or a step. All mappings are by the agent's name and may lack agents."""

    obs: Mapping[Any, Any]
    reward: Mapping[Any, Any]  # missing: 0
    terminated: Mapping[Any, Any]  # missing: False
    truncated: Mapping[Any, Any]
    infos: Mapping[Any, Mapping[Any, Any]]  # missing: empty
    living: Collection[Any]  # agents whose episode goes on
    asked: Collection[Any]  # those of them that act next, if they have an observation
    over: bool  # whether the episode of the whole copy is; else others may come, though nobody lives


class Area(Protocol):
    """One copy. A team is all agents of one behavior and side in one copy, if it has `teams`."""

    teams: bool
    sides: int  # how many numbers of teams that play against each other there are
    frames_per_second: float | None  # at which its pictures look natural; None: it does not say

    @property
    def announced(self) -> Collection[Any]:
        """Agents that may come, as far as the environment says so beforehand."""
        ...

    def spaces(self, agent: Any) -> tuple[spaces.Space, spaces.Space]:
        """Of observations and of actions of an agent that lives or is announced."""
        ...

    def behavior(self, agent: Any) -> str:
        """The name of the behavior to which an agent belongs, unless its spaces are others than those of the name."""
        ...

    def side(self, agent: Any) -> int | None:
        """The number of the side on which an agent plays against others; None: there are no sides."""
        ...

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> AreaOutcome:
        """Begin a new episode; a seed makes everything random repeat itself from here on."""
        ...

    def step(self, actions: Mapping[Any, Any]) -> AreaOutcome:
        """One step, with an element of its action space for each agent that was asked."""
        ...

    def render(self) -> Any:
        """A picture, or what the environment gives in place of one."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class WrappedArea:
    """What copies of Gymnasium's, PettingZoo's and RLlib's environments share: a part of `Area`."""

    def __init__(self, env: Any, options: AreaOptions) -> None:
        self.teams = options.teams
        self.sides = 1 + max(options.sides.values(), default=0)
        self._sides = options.sides
        self._action_scale = options.action_scale
        self.frames_per_second: float | None = (getattr(env, "metadata", None) or {}).get("render_fps")
        self._env = env

    @property
    def announced(self) -> Collection[Any]:
        """The environment's `possible_agents`."""
        return tuple(getattr(self._env, "possible_agents", None) or ())

    def behavior(self, agent: Any) -> str:
        """The name without its number."""
        return unnumbered(agent)

    def side(self, agent: Any) -> int | None:
        """The number that `teams` give it by its name, or by its name without the number. Raises EnvironmentFailure."""
        if not self._sides:
            return None
        for name in (str(agent), unnumbered(agent)):
            if name in self._sides:
                return self._sides[name]
        raise EnvironmentFailure(
            f"env_args: teams: agent {agent!r} is in none of {dict(self._sides)}; add it by its name, or by "
            f"{unnumbered(agent)!r}"
        )

    def render(self) -> Any:
        """What the environment draws."""
        return self._env.render()

    def close(self) -> None:
        """Close it, if it can be."""
        getattr(self._env, "close", lambda: None)()

    def _bounded(self, action: spaces.Space) -> spaces.Space:
        """Return the action space with bounds, if `action_scale` says how wide it is."""
        return action if self._action_scale is None else bounded(action, self._action_scale)

    def _begun(self, seed: int | None, options: Mapping[str, Any] | None) -> Any:
        """What its own `reset` answers."""
        return self._env.reset(seed=seed, options=None if options is None else dict(options))

    def _stepped(self, actions: Any, expected: str) -> tuple[Any, ...]:
        """What its own `step` answers. Raises ValueError if that is not five values."""
        answer: Any = self._env.step(actions)
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise ValueError(f"returned {handed_back(answer)}, expected {expected}")
        return answer


def mappings(infos: Any) -> dict[Any, Mapping[Any, Any]]:
    """Those of the agents that have any."""
    return {agent: told for agent, told in (infos or {}).items() if isinstance(told, Mapping)}


def handed_back(answer: Any) -> str:
    """Words for what a `reset` or `step` returned that is not what its library defines."""
    return f"{len(answer)} values" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
