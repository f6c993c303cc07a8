"""Names of the inputs and outputs of a policy's ONNX file, in the two versions of the API that Unity runs.

Version 3 (packages from 2.0 on) has an input for each sensor, `obs_i`, and discrete outputs with an index for each
branch. Version 2 (packages 1.x) shows all sensors of rank 1 together in `vector_observation`, images in
`visual_observation_i`, entities in `obs_i`; its discrete outputs are log-probabilities of all branches side by side, of
which Unity draws. The oldest files of version 2 have one output `action`, continuous or discrete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxrl.types import BehaviorSpec

MASKS, MEMORY_IN, MEMORY_OUT, NOISE = "action_masks", "recurrent_in", "recurrent_out", "epsilon"
LEGACY = 2
"""Version of the API of packages 1.x."""
VECTOR, VISUAL = "vector_observation", "visual_observation_"
TOLERATED = ("prev_action", NOISE, "sequence_length")
"""Inputs that Unity feeds, or passes over, without a warning."""
KINDS = ("continuous", "discrete")


class SensorInput(NamedTuple):
    """Input that shows sensors."""

    name: str
    sensors: tuple[int, ...]  # numbers of those that it shows, one behind the other
    shape: tuple[int, ...]  # of one agent


def sensor_inputs(spec: BehaviorSpec, version: float | None) -> list[SensorInput]:
    """Return the inputs that a model of this version needs for the sensors of a behavior."""
    shapes = [sensor.shape for sensor in spec.observations]
    if version != LEGACY:
        return [SensorInput(f"obs_{i}", (i,), shape) for i, shape in enumerate(shapes)]
    vectors, images, entities = ([i for i, shape in enumerate(shapes) if len(shape) == rank] for rank in (1, 3, 2))
    width = sum(shapes[i][0] for i in vectors)
    return [
        *([SensorInput(VECTOR, tuple(vectors), (width,))] if vectors else []),
        *(SensorInput(f"{VISUAL}{number}", (i,), shapes[i]) for number, i in enumerate(images)),
        *(SensorInput(f"obs_{i}", (i,), shapes[i]) for i in entities),
    ]


def names_sensors(names: list[str], version: float | None) -> bool:
    """Return whether these inputs, of a model of this version, can be the sensors of some agent."""
    if version != LEGACY:
        return bool(names) and set(names) == {f"obs_{i}" for i in range(len(names))}
    images = [name for name in names if name.startswith(VISUAL)]
    return bool(names) and set(images) == {f"{VISUAL}{i}" for i in range(len(images))}


def is_sensor(name: str, version: float | None) -> bool:
    """Return whether an input of a model of this version shows a sensor."""
    return name.startswith("obs_") or (version == LEGACY and (name == VECTOR or name.startswith(VISUAL)))


def separate_actions(outputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Return the outputs of a model with the single `action` of the oldest files under its present name."""
    if any(f"{kind}_actions" in outputs for kind in KINDS) or "action" not in outputs:
        return outputs
    kind = "continuous" if np.any(outputs.get("is_continuous_control", 0)) else "discrete"
    present = {**outputs, f"{kind}_actions": outputs["action"]}
    if "action_output_shape" in outputs:
        present[f"{kind}_action_output_shape"] = outputs["action_output_shape"].astype(np.float32)
    return present
