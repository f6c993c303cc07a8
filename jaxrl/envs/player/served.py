"""What a player serves: an environment of one behavior, or a scene of several, as functions from numpy to numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from jaxrl.envs.player.teams import AreasOutcome, Simulation
from jaxrl.types import Action, BehaviorSpec


class ServedEnvironment(NamedTuple):
    """What a player serves: one behavior, E areas with one team, or several, of up to `members` each."""

    name: str  # behavior name; on the wire `<name>?team=0`, `?team=1` ...
    spec: BehaviorSpec
    members: int  # of one team; A = teams * members
    parameters: Mapping[str, float]  # environment parameters with their usual values
    open: Callable[[int, int], Simulation]  # areas E and seed (0 .. 2**32 - 1)
    teams: int = 1  # in one area


class ServedBehavior(NamedTuple):
    """One behavior of a scene."""

    name: str
    spec: BehaviorSpec
    members: int
    teams: int = 1


class SceneSimulation(Protocol):
    """As `Simulation`, with an outcome and actions for each behavior; the statistics are those of the first outcome."""

    def reset(self, parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        """Begin a new episode in every area."""
        ...

    def step(self, actions: tuple[Action, ...], parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        """One step of every area."""
        ...


class ServedScene(NamedTuple):
    """What a player serves that has several behaviors in each of its E areas."""

    name: str
    parts: tuple[ServedBehavior, ...]
    parameters: Mapping[str, float]
    open: Callable[[int, int], SceneSimulation]


def as_scene(environment: ServedEnvironment | ServedScene) -> ServedScene:
    """An environment of one behavior as a scene that has no other; a scene as it is."""
    if isinstance(environment, ServedScene):
        return environment
    part = ServedBehavior(environment.name, environment.spec, environment.members, environment.teams)
    return ServedScene(
        environment.name, (part,), environment.parameters, lambda areas, seed: _Alone(environment.open(areas, seed))
    )


class _Alone:
    """The simulation of one behavior as one of several."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def reset(self, parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        return (self._simulation.reset(parameters),)

    def step(self, actions: tuple[Action, ...], parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        return (self._simulation.step(actions[0], parameters),)
