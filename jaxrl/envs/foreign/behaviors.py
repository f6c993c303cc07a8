"""Which behavior an agent belongs to: those of one name and equal spaces."""

from __future__ import annotations

import re
from typing import Any

from gymnasium import spaces

from jaxrl.envs.foreign.actions import ActionWriter
from jaxrl.envs.foreign.observations import ObservationReader
from jaxrl.types import BehaviorSpec

_NUMBERED = re.compile(r"(.*?)[_-]?\d+")


def unnumbered(agent: Any) -> str:
    """`adversary_0` as `adversary`, a number alone as `agent`; signs that no behavior may have become _."""
    match = _NUMBERED.fullmatch(str(agent))
    name = match.group(1) if match else str(agent)
    return re.sub(r"[^\w.-]", "_", name) or "agent"


class AgentKind:
    """What agents of one behavior share: the name, the spaces, and how they are read and written."""

    def __init__(self, name: str, observation: spaces.Space, action: spaces.Space) -> None:
        self.name = name
        self.action = ActionWriter(action)
        self.observation = ObservationReader(observation, self.action.spec.mask_size)
        self.spec = BehaviorSpec(observations=self.observation.specs, action=self.action.spec)
        self.spaces = observation, action


class Behaviors:
    """The kinds of agents seen so far. A second kind of one name is called NAME-2, and so on."""

    def __init__(self) -> None:
        self._of: dict[Any, AgentKind] = {}
        self._kinds: dict[str, list[AgentKind]] = {}
        self.new: dict[str, BehaviorSpec] = {}  # since the owner last emptied it

    def of(self, agent: Any) -> AgentKind | None:
        """The kind of an agent that was met before."""
        return self._of.get(agent)

    def meet(self, agent: Any, name: str, observation: spaces.Space, action: spaces.Space) -> AgentKind:
        """The kind of an agent that is seen for the first time. Raises SpaceError."""
        kinds = self._kinds.setdefault(name, [])
        kind = next((kind for kind in kinds if kind.spaces == (observation, action)), None)
        if kind is None:
            kind = AgentKind(f"{name}-{len(kinds) + 1}" if kinds else name, observation, action)
            kinds.append(kind)
            self.new[kind.name] = kind.spec
        self._of[agent] = kind
        return kind
