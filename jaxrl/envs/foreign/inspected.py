"""Wraps a copy of a foreign environment, whose faults it notes in the infos: for `jaxrl check-env`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.envs.foreign.area import Area, AreaOutcome
from jaxrl.envs.foreign.behaviors import described, identity_of
from jaxrl.envs.foreign.lives import COMMON
from jaxrl.envs.foreign.observations import leaves, part_at
from jaxrl.envs.foreign.options import Place
from jaxrl.envs.foreign.rendering import DrawingOptions
from jaxrl.envs.foreign.simulator import make_environment, open_area
from jaxrl.envs.workers.handles import EnvFactory
from jaxrl.types import Identity

NOTES = "jaxrl_notes"
"""Key of an area's infos that holds its new notes."""
ORDER = "jaxrl_order"
"""Key of an area's infos that holds the names of all living agents, in their order, after a reset."""


def inspected_factory(
    address: str, env_args: Sequence[str] | None, areas: int, timeout: float, workers: int | None = None
) -> EnvFactory:
    """Return a function worker → HostEnv whose copies are inspected, and told their place among `workers`."""
    opened = partial(_open, address, tuple(env_args or ()))
    return partial(make_environment, opened, address, areas=areas, seed=0, timeout=timeout, workers=workers)


def _open(address: str, env_args: Sequence[str], drawing: DrawingOptions, **place: Place) -> Area:
    return InspectedArea(open_area(address, env_args, drawing, **place))


class InspectedArea:
    """Passes everything on to `area`, and adds notes to its outcomes; each note comes once."""

    def __init__(self, area: Area) -> None:
        self.teams, self.sides, self.frames_per_second = area.teams, area.sides, area.frames_per_second
        self.spaces, self.behavior, self.side = area.spaces, area.behavior, area.side
        self.render, self.close, self._area = area.render, area.close, area
        self._living: Collection[Any] = ()
        self._ended: set[Any] = set()  # agents, in this episode of the copy
        self._identities: dict[Any, Identity] = {}
        self._changed: set[Any] = set()  # agents with changed spaces
        self._told: set[str] = set()

    @property
    def announced(self) -> Collection[Any]:
        """Agents that may come."""
        return self._area.announced

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> AreaOutcome:
        """Begin a new episode."""
        outcome = self._area.reset(seed, options)
        self._living, self._ended = (), set()
        notes = self._noted([*self._of_agents(outcome), *self._of_observations(outcome)])
        return _with(outcome, {NOTES: notes, ORDER: [str(agent) for agent in outcome.living]})

    def step(self, actions: Mapping[Any, Any]) -> AreaOutcome:
        """Step the area."""
        outcome = self._area.step(actions)
        notes = [*self._of_endings(outcome), *self._of_agents(outcome), *self._of_observations(outcome)]
        return _with(outcome, {NOTES: self._noted(notes)})

    def _noted(self, notes: Sequence[str]) -> list[str]:
        new = [note for note in dict.fromkeys(notes) if note not in self._told]
        self._told |= set(new)
        return new

    def _of_agents(self, outcome: AreaOutcome) -> Iterator[str]:
        """Check whether new agents were announced and have their earlier spaces."""
        announced = self._area.announced
        for agent in outcome.living:
            if agent in self._living:
                continue
            identity = identity_of(described(self._area, agent))
            earlier = self._identities.setdefault(agent, identity)
            if earlier != identity and agent not in self._changed:
                self._changed.add(agent)
                yield (
                    f"the spaces of agent {agent!r} have changed from {earlier.spaces} to {identity.spaces}: it is of "
                    "another behavior from then on"
                )
            if agent in self._ended:
                yield (
                    f"agent {agent!r} has come again in the episode in which it had ended: this is another life of it. "
                    "If none is meant, leave agents that have ended out of agents and observations"
                )
            if announced and agent not in announced:
                yield f"agent {agent!r} has come, but possible_agents do not name it"
        self._living = outcome.living

    def _of_endings(self, outcome: AreaOutcome) -> Iterator[str]:
        ended = [agent for agent in self._living if agent not in outcome.living]
        self._ended |= set(ended)
        for agent in ended:
            if not outcome.terminated.get(agent) and not outcome.truncated.get(agent):
                counts = "terminated" if outcome.over else "truncated"
                yield f"agent {agent!r} is gone without terminated or truncated: it counts as {counts}"
        for agent, reward in outcome.reward.items():
            if agent not in self._living and agent not in outcome.living and np.any(reward):
                yield f"agent {agent!r} is rewarded, but was not there before the step: the reward is dropped"

    def _of_observations(self, outcome: AreaOutcome) -> Iterator[str]:
        for agent, obs in outcome.obs.items():
            if agent in self._living or agent in outcome.living:
                for path, space in leaves(self._area.spaces(agent)[0]):
                    text = _outside(space, obs, path)
                    if text:
                        place = "/".join(map(str, path))
                        yield f"agent {agent!r}, observation{' ' if place else ''}{place}: {text}"


def _outside(space: spaces.Space, obs: Any, path: Any) -> str:
    """Describe how a part of an observation lies outside of its bounds; unreadable ones are reported elsewhere."""
    if not isinstance(space, spaces.Box):
        return ""
    try:
        part = np.asarray(part_at(obs, path), np.float64)
        low, high = part < space.low, part > space.high
    except (LookupError, TypeError, ValueError):
        return ""
    if not low.any() and not high.any():
        return ""
    side = "below" if low.any() else "above"
    return f"is {side} the bounds of {space}: give the space the bounds that are true"


def _with(outcome: AreaOutcome, notes: Mapping[str, Any]) -> AreaOutcome:
    common = {**outcome.infos.get(COMMON, {}), **{key: note for key, note in notes.items() if note}}
    return outcome._replace(infos={**outcome.infos, COMMON: common})
