"""Reads the observations of a policy of ML-Agents from its ONNX file: their shapes, and which of them are goals.

The file says no more about a sensor than its number and shape. The rank tells what it is: 1 numbers, 2 entities, 3 an
image. A goal is what feeds the network that makes the weights of the last hidden layer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from jaxrl.artifacts.files import ArtifactError
from jaxrl.envs.sensors import IMAGE_PROPERTIES
from jaxrl.types import DimensionProperty, ObservationSpec, ObservationType

_INPUT = re.compile(r"obs_(\d+)")
_HYPER_NETWORK = re.compile(r".*\.hypernet\.0\.weight")
_AXES = {
    1: (DimensionProperty.NONE,),
    2: (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE),
    3: IMAGE_PROPERTIES,
}
"""Properties of the axes of an observation, by its rank: ML-Agents has no others."""


def observations_of(path: Path) -> tuple[ObservationSpec, ...]:
    """Return the sensors of a policy that ML-Agents exported, called obs_0, obs_1 ... as its inputs.

    Raises ArtifactError where the file is no such model.
    """
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except (OSError, DecodeError) as error:
        raise ArtifactError(f"{path}: cannot be read as an ONNX model ({error})") from error
    shapes = {
        int(match[1]): tuple(axis.dim_value for axis in node.type.tensor_type.shape.dim[1:])  # without the batch
        for node in graph.input
        if (match := _INPUT.fullmatch(node.name))
    }
    if sorted(shapes) != list(range(len(shapes))) or not shapes:
        names = ", ".join(node.name for node in graph.input) or "none"
        raise ArtifactError(
            f"{path}: its inputs are {names}, expected obs_0, obs_1 ... as ML-Agents 0.27 and later name them; give "
            "the environment (--env) instead"
        )
    goals = _goals(path, graph)
    return tuple(sensor_of(path, f"obs_{i}", shapes[i], goal=i in goals) for i in range(len(shapes)))


def sensor_of(path: Path, name: str, shape: tuple[Any, ...], *, goal: bool = False) -> ObservationSpec:
    """Return the sensor that an input of this shape shows. Raises ArtifactError."""
    if len(shape) not in _AXES or not all(isinstance(size, int) and size > 0 for size in shape):
        raise ArtifactError(f"{path}: {name} has the shape {shape}, expected 1 to 3 known sizes")
    kind = ObservationType.GOAL_SIGNAL if goal else ObservationType.DEFAULT
    return ObservationSpec(name, shape, _AXES[len(shape)], kind)


def _goals(path: Path, graph: onnx.GraphProto) -> set[int]:
    """Return numbers of the observations that reach the hyper network; none where there is no such network."""
    weights = {name for tensor in graph.initializer if _HYPER_NETWORK.fullmatch(name := tensor.name)}
    if not weights:
        return set()
    makers = {output: node for node in graph.node for output in node.output}
    pending = [name for node in graph.node if weights & set(node.input) for name in node.input]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending += makers[name].input if name in makers else ()
    goals = {int(match[1]) for match in map(_INPUT.fullmatch, seen) if match}
    if not goals:
        raise ArtifactError(f"{path}: does not show which observation is the goal; give the environment (--env)")
    return goals
