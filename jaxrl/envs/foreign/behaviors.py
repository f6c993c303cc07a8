"""Finds the behavior of an agent: agents of one behavior have one name and equal spaces."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces

from jaxrl.envs.behavior_names import BehaviorNames
from jaxrl.envs.foreign.actions import ActionWriter
from jaxrl.envs.foreign.masks import find_mask, read_mask
from jaxrl.envs.foreign.observations import ObservationReader, leaves
from jaxrl.types import BehaviorSpec, Identity

if TYPE_CHECKING:
    from jaxrl.envs.foreign.area import Area, AreaOutcome

_NUMBERED = re.compile(r"(.*?)[_-]?\d+")


def unnumbered(agent: Any) -> str:
    """Return `adversary_0` as `adversary`, a number alone as `agent`; signs that are no part of names become _."""
    match = _NUMBERED.fullmatch(str(agent))
    name = match.group(1) if match else str(agent)
    return re.sub(r"[^\w.-]", "_", name) or "agent"


class Agent(NamedTuple):
    """Properties of an agent that determine its behavior."""

    name: str  # without its number
    observation: spaces.Space
    action: spaces.Space
    side: int | None = None  # side on which it plays against others


class AgentKind:
    """Common properties of agents of one behavior id: `name`, spaces, and their readers and writers."""

    def __init__(self, name: str, observation: spaces.Space, action: spaces.Space) -> None:
        self.name = name
        self.action = ActionWriter(action)
        self.observation = ObservationReader(observation, find_mask(observation, action))
        self._action_space = action
        self.warned_of_mask = False  # of a mask that forbids every choice
        self.spec = BehaviorSpec(observations=self.observation.specs, action=self.action.spec)

    def mask(self, obs: Any, told: Any = None) -> np.ndarray | None:
        """Return the mask, bool [M], of the observation, or else of the infos; None: all choices are allowed.

        Raises MaskError: it does not fit the actions.
        """
        mask = self.observation.mask(obs)
        mask = told if mask is None else mask
        return None if mask is None else read_mask(self._action_space, mask)


class Behaviors:
    """The kinds of agents in the copies of one worker, by name and spaces; `names` gives them their names."""

    def __init__(self, names: BehaviorNames | None = None) -> None:
        self._names = names or BehaviorNames()
        self._kinds: dict[str, AgentKind] = {}
        self.new: dict[str, BehaviorSpec] = {}  # since the owner last emptied it
        self.identities: dict[str, Identity] = {}  # likewise, also of agents that are announced and have not come

    def __getitem__(self, name: str) -> AgentKind:
        """Return the kind of that behavior id."""
        return self._kinds[name]

    def announce(self, agents: Iterable[Agent]) -> None:
        """Name the kinds of agents that are seen, or announced, in one step."""
        new = self._names.add(map(identity_of, agents))
        self.identities |= {self._names[identity]: identity for identity in new}

    def kind(self, agent: Agent) -> AgentKind:
        """Return the kind of an agent. Raises SpaceError."""
        identity = identity_of(agent)
        self.announce([agent])
        name = self._names[identity] if agent.side is None else f"{self._names[identity]}?team={agent.side}"
        if name not in self._kinds:
            self._kinds[name] = AgentKind(name, agent.observation, agent.action)
            self.new[name] = self._kinds[name].spec
        return self._kinds[name]


def described(area: Area, agent: Any) -> Agent:
    """Return the properties of an agent of this copy that determine its behavior."""
    return Agent(area.behavior(agent), *area.spaces(agent), area.side(agent))


def expected(area: Area, outcome: AreaOutcome) -> list[Agent]:
    """Return agents that live after a reset or may come later, if the copy gives their spaces beforehand."""
    agents = [described(area, agent) for agent in outcome.living]
    for agent in area.announced:
        with suppress(Exception):  # a user's code, which may know the spaces of an agent only once it has come
            agents.append(described(area, agent))
    return agents


def identity_of(agent: Agent) -> Identity:
    """Return the common identity of agents of one behavior."""
    spaces = f"{agent.observation} → {agent.action} #{_digest(agent.observation, agent.action)}"
    return Identity(agent.name, spaces)


def _digest(*of_agent: spaces.Space) -> str:
    """Return 12 hex digits that depend on every bound, size and order of the spaces; their texts omit most numbers."""
    digest = hashlib.sha256()
    for space in of_agent:
        for path, leaf in leaves(space):
            kind = type(leaf).__name__, str(getattr(leaf, "dtype", None)), getattr(leaf, "shape", None)
            digest.update(repr((path, *kind)).encode())
            for key in ("low", "high", "nvec", "n", "start"):
                digest.update(np.asarray(getattr(leaf, key, 0)).tobytes())
    return digest.hexdigest()[:12]
