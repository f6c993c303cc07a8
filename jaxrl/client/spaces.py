"""Converts specs of a behavior to Gymnasium's spaces, and their elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.envs.action_checks import whole
from jaxrl.types import Action, ActionSpec, BehaviorSpec, ObservationSpec


class BehaviorSpaces:
    """Spaces of one behavior, made once.

    Observation: a Box for a single sensor, else a Dict by the sensors' names (a repeated name gets its number). Images
    are (channels, height, width): uint8 from 0 to 255 with `uint8_visual` True, float32 from 0 to 1 with False, and
    with None as the environment sends them (PNG: uint8).
    Action: Box [C] from -1 to 1; Discrete for one branch, MultiDiscrete for several; for both kinds a Dict with
    `continuous` and `discrete`.
    """

    def __init__(self, spec: BehaviorSpec, uint8_visual: bool | None = None) -> None:
        self._spec = spec
        self._dtypes = [_dtype(sensor, uint8_visual) for sensor in spec.observations]
        boxes = [_box(sensor, dtype) for sensor, dtype in zip(spec.observations, self._dtypes, strict=True)]
        names = [sensor.name for sensor in spec.observations]
        self.names = [name if names.count(name) == 1 else f"{name}_{index}" for index, name in enumerate(names)]
        single = len(boxes) == 1
        self.observation = boxes[0] if single else spaces.Dict(dict(zip(self.names, boxes, strict=True)))
        self.action = _action_space(spec.action)

    def see(self, obs: tuple[np.ndarray, ...], row: int) -> Any:
        """Copy row `row` of the arrays [N, *shape] of all sensors, as an element of the observation space."""
        parts = [_in_dtype(sensor[row], dtype) for sensor, dtype in zip(obs, self._dtypes, strict=True)]
        return parts[0] if len(parts) == 1 else dict(zip(self.names, parts, strict=True))

    def act(self, action: Any) -> Action:
        """Return an element of the action space as continuous float32 [C] and discrete int32 [D].

        Raises:
            ValueError, TypeError, KeyError, ActionError: it is no element.
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
            discrete=whole(discrete).reshape(len(spec.discrete_branches)),
        )


def _dtype(sensor: ObservationSpec, uint8_visual: bool | None) -> str:
    if len(sensor.shape) != 3 or uint8_visual is None:
        return sensor.dtype
    return "uint8" if uint8_visual else "float32"


def _in_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    """Copy the values; 0 to 255 in bytes stand for 0 to 1 in floats, which are clipped to that range."""
    if values.dtype == dtype:
        return values.copy()
    if dtype == "uint8":
        return np.rint(255 * np.clip(values, 0, 1)).astype(np.uint8)
    return np.divide(values, 255, dtype=np.float32)


def _box(sensor: ObservationSpec, dtype: str) -> spaces.Box:
    if dtype == "uint8":
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
