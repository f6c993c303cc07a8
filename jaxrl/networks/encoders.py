"""Encoders: from one observation of an agent to one vector.

An encoder is one class with its ONNX builder beside it, and one line of the registry `jaxrl.networks.ENCODERS`, under
the name that `kind_of` gives. The class is constructed with its observation and the network settings, and called with
the observation. An encoder of several observations at once (entities, together with the encodings of all others) is a
`JointEncoder`, one line of `jaxrl.networks.JOINT_ENCODERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import DimensionProperty, JaxrlError, ObservationSpec, ObservationType

UINT8_RANGE = 255.0


class UnsupportedObservationError(JaxrlError):
    """An observation that no encoder in the registry reads."""


class EncoderInput(NamedTuple):
    """Inputs of the ONNX builder of an encoder."""

    observation: ObservationSpec
    settings: NetworkSettings
    path: str  # path of the encoder's parameters
    x: str  # tensor of the observation, already normalised, [batch, *shape]


class Encoder(NamedTuple):
    """An encoder of one observation, one line of the registry."""

    module: Callable[..., nn.Module]  # (observation, settings, name=...) → module: [..., *shape] → [..., E]
    onnx: Callable[[OnnxGraph, EncoderInput], str]  # adds its nodes to a graph and returns its output, [batch, E]
    size: Callable[[ObservationSpec, NetworkSettings], int]  # E
    problem: Callable[[ObservationSpec, NetworkSettings], str]  # why it cannot read the observation; "" if it can


class JointEncoderInput(NamedTuple):
    """Inputs of the ONNX builder of a joint encoder."""

    observations: tuple[ObservationSpec, ...]  # observations of its kind, in the order of the spec
    settings: NetworkSettings
    path: str
    xs: tuple[str, ...]  # tensors of these observations, [batch, *shape]
    own: str | None  # tensor of the other observations' encodings, [batch, E]; None if there is no other


class JointEncoder(NamedTuple):
    """An encoder of all observations of its kind together, one line of the registry."""

    module: Callable[..., nn.Module]  # (observations, settings, name=...) → module: (xs, own) → [..., E]
    onnx: Callable[[OnnxGraph, JointEncoderInput], str]
    size: int
    problem: Callable[[ObservationSpec, NetworkSettings], str]


def kind_of(observation: ObservationSpec) -> str:
    """Return the name of an observation's encoder: `vector`, `visual`, `entities` or `rank<n>`, also for goals."""
    if len(observation.shape) == 2 and DimensionProperty.VARIABLE_SIZE in observation.dimension_property[:1]:
        return "entities"
    return {1: "vector", 3: "visual"}.get(len(observation.shape), f"rank{len(observation.shape)}")


def is_goal(observation: ObservationSpec) -> bool:
    """Return whether the environment marks the observation as the agent's goal."""
    return observation.observation_type == ObservationType.GOAL_SIGNAL


def as_float(x: jax.Array, dtype: str = "float32") -> jax.Array:
    """Convert numbers for networks to `dtype`: uint8 0..255 becomes 0..1, other values stay.

    `dtype` is a network's `compute_dtype`. Encoders and hidden layers compute in the dtype of their input, to which
    their parameters are converted, and `NetworkBody` returns float32.
    """
    if x.dtype == jnp.uint8:
        return (x.astype(jnp.float32) / UINT8_RANGE).astype(dtype)
    return x.astype(dtype)


class VectorEncoder(nn.Module):
    """Encoder of vectors, which are their own encoding: [..., F] -> [..., F]."""

    observation: ObservationSpec
    settings: NetworkSettings

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return as_float(x, self.settings.compute_dtype)


def no_problem(observation: ObservationSpec, settings: NetworkSettings) -> str:
    """Return no problem, for encoders that read every observation of their kind."""
    return ""
