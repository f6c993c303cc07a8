"""Encoders: from one observation of an agent to one vector.

An encoder is one class here with its ONNX builder beside it, and one line of the registry `jaxrl.networks.ENCODERS`,
under the name that `kind_of` gives. The class is constructed with its observation and the network settings, and called
with the observation and the encodings that it may look at:
  - first pass: encoders that see their observation alone; `encodings` is empty;
  - second pass: encoders with `sees_encodings`; `encodings` are those of the first pass, in the order of the spec (the
    agent itself, against which entities are looked at).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax

from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.networks.settings import NetworkShape
from jaxrl.types import DimensionProperty, JaxrlError, ObservationSpec, ObservationType


class UnsupportedObservationError(JaxrlError):
    """An observation that no encoder in the registry reads."""


class EncoderInput(NamedTuple):
    """What the ONNX builder of an encoder reads."""

    observation: ObservationSpec
    settings: NetworkShape
    path: str  # of the encoder's parameters
    x: str  # tensor of the observation, already normalised, [batch, *shape]
    encodings: tuple[str, ...]  # tensors of the first pass, empty in the first pass itself


class Encoder(NamedTuple):
    """One line of the registry."""

    module: Callable[..., nn.Module]  # (observation, settings, name=...) → module: (x, encodings) → [..., E]
    onnx: Callable[[OnnxGraph, EncoderInput], str]  # adds the same to a graph and names its output, [batch, E]
    sees_encodings: bool = False


def kind_of(observation: ObservationSpec) -> str:
    """Name of the encoder that an observation needs: `vector`, `entities`, `visual`, `goal` or `rank<n>`."""
    if observation.observation_type == ObservationType.GOAL_SIGNAL:
        return "goal"
    if len(observation.shape) == 2 and DimensionProperty.VARIABLE_SIZE in observation.dimension_property[:1]:
        return "entities"
    return {1: "vector", 3: "visual"}.get(len(observation.shape), f"rank{len(observation.shape)}")


class VectorEncoder(nn.Module):
    """A vector observation is its own encoding: [..., F] -> [..., F], float32."""

    observation: ObservationSpec
    settings: NetworkShape

    @nn.compact
    def __call__(self, x: jax.Array, encodings: tuple[jax.Array, ...]) -> jax.Array:
        return x


def vector_onnx(graph: OnnxGraph, given: EncoderInput) -> str:
    """`VectorEncoder`: no node."""
    return given.x
