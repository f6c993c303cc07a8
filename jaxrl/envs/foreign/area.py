"""The interface of one copy of a foreign environment for the host environment: any number of agents, by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

from gymnasium import spaces

from jaxrl.envs.foreign.actions import bounded
from jaxrl.envs.foreign.behaviors import unnumbered
from jaxrl.envs.foreign.options import AreaOptions
from jaxrl.envs.interface import EnvironmentFailure


class AreaOutcome(NamedTuple):
    """The result of a reset or a step of one copy. All mappings are by the agent's name and may lack agents."""

    obs: Mapping[Any, Any]
    reward: Mapping[Any, Any]  # missing: 0
    terminated: Mapping[Any, Any]  # missing: False
    truncated: Mapping[Any, Any]
    infos: Mapping[Any, Mapping[Any, Any]]  # missing: empty
    living: Collection[Any]  # agents whose episode goes on
    asked: Collection[Any]  # living agents that act next, if they have an observation
    over: bool  # the episode of the whole copy is over; else agents may come, even if none lives


class Area(Protocol):
    """Copy of an environment. A team is all agents of one behavior and side in one copy, if it has `teams`."""

    teams: bool
    sides: int  # number of sides that play against each other
    frames_per_second: float | None  # natural speed of its pictures; None: unknown

    @property
    def announced(self) -> Collection[Any]:
        """Agents that may come, if the environment lists them beforehand."""
        ...

    def spaces(self, agent: Any) -> tuple[spaces.Space, spaces.Space]:
        """Return the spaces of observations and of actions of an agent that lives or is announced."""
        ...

    def behavior(self, agent: Any) -> str:
        """Return the behavior name of an agent; agents with other spaces get another one."""
        ...

    def side(self, agent: Any) -> int | None:
        """Return the number of the side on which an agent plays against others; None: there are no sides."""
        ...

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> AreaOutcome:
        """Begin a new episode; a seed makes everything random repeat itself from here on."""
        ...

    def step(self, actions: Mapping[Any, Any]) -> AreaOutcome:
        """Step, with an element of its action space for each agent that was asked."""
        ...

    def render(self) -> Any:
        """Return a picture, or another return value of the environment's `render`."""
        ...

    def close(self) -> None:
        """Release resources."""
        ...


class WrappedArea:
    """The common part of `Area` for copies of Gymnasium's, PettingZoo's and RLlib's environments."""

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
        """Return the name without its number."""
        return unnumbered(agent)

    def side(self, agent: Any) -> int | None:
        """Return the number in `teams` for its name, or its name without the number. Raises EnvironmentFailure."""
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
        """Return the picture of the environment."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment, if it has a `close`."""
        getattr(self._env, "close", lambda: None)()

    def _bounded(self, action: spaces.Space) -> spaces.Space:
        """Return the action space, with bounds if `action_scale` is set."""
        return action if self._action_scale is None else bounded(action, self._action_scale)

    def _begun(self, seed: int | None, options: Mapping[str, Any] | None) -> Any:
        """Return the answer of the environment's `reset`."""
        return self._env.reset(seed=seed, options=None if options is None else dict(options))

    def _stepped(self, actions: Any, expected: str) -> tuple[Any, ...]:
        """Return the answer of the environment's `step`. Raises ValueError if it is not five values."""
        answer: Any = self._env.step(actions)
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise ValueError(f"returned {handed_back(answer)}, expected {expected}")
        return answer


def mappings(infos: Any) -> dict[Any, Mapping[Any, Any]]:
    """Return the infos of the agents that have any."""
    return {agent: info for agent, info in (infos or {}).items() if isinstance(info, Mapping)}


def handed_back(answer: Any) -> str:
    """Describe the return value of a `reset` or `step` that does not fit its library."""
    return f"{len(answer)} values" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
