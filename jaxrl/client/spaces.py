"""Specs of a behavior as Gymnasium's spaces, and what goes through them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.types import Action, ActionSpec, BehaviorSpec, ObservationSpec


class BehaviorSpaces:
    """Spaces of one behavior, made once.

    Observation: a Box for a single sensor, else a Dict of them by the sensors' names (a name that is there twice gets
    its number). Action: Box [C] from -1 to 1; Discrete for one branch, MultiDiscrete for several; for both kinds a Dict
    with `continuous` and `discrete`.
    """

    def __init__(self, spec: BehaviorSpec) -> None:
        self._spec = spec
        boxes = [_box(sensor) for sensor in spec.observations]
        self._names = _distinct([sensor.name for sensor in spec.observations])
        single = len(boxes) == 1
        self.observation = boxes[0] if single else spaces.Dict(dict(zip(self._names, boxes, strict=True)))
        self.action = _action_space(spec.action)

    def see(self, obs: tuple[np.ndarray, ...], row: int) -> Any:
        """Copies of row `row` of the arrays [N, *shape] of all sensors, as an element of the observation space."""
        parts = [sensor[row].copy() for sensor in obs]
        return parts[0] if len(parts) == 1 else dict(zip(self._names, parts, strict=True))

    def act(self, action: Any) -> Action:
        """An element of the action space as continuous float32 [C] and discrete int32 [D].

        Raises:
            ValueError, TypeError, KeyError: it is none.
        """
        spec = self._spec.action
        continuous: Any = np.zeros(0, np.float32)
        discrete: Any = np.zeros(0, np.int32)
        if spec.continuous_size and spec.discrete_branches:
            continuous, discrete = action["continuous"], action["discrete"]
        elif spec.continuous_size:
            continuous = action
        else:
            discrete = action
        return Action(
            continuous=np.asarray(continuous, np.float32).reshape(spec.continuous_size),
            discrete=np.asarray(discrete, np.int32).reshape(len(spec.discrete_branches)),
        )


def _box(sensor: ObservationSpec) -> spaces.Box:
    if sensor.dtype == "uint8":
        return spaces.Box(0, 255, sensor.shape, np.uint8)
    low, high = (0.0, 1.0) if len(sensor.shape) == 3 else (-np.inf, np.inf)
    return spaces.Box(low, high, sensor.shape, np.float32)


def _action_space(spec: ActionSpec) -> spaces.Space:
    continuous = spaces.Box(-1.0, 1.0, (spec.continuous_size,), np.float32)
    branches = spec.discrete_branches
    discrete = spaces.Discrete(branches[0]) if len(branches) == 1 else spaces.MultiDiscrete(list(branches))
    if spec.continuous_size and branches:
        return spaces.Dict({"continuous": continuous, "discrete": discrete})
    return continuous if spec.continuous_size else discrete


def _distinct(names: list[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name}_{index}" for index, name in enumerate(names)]
