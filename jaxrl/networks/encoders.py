"""Encoders: from one observation of an agent to one vector.

An encoder is one class here and one line of the registry `jaxrl.networks.ENCODERS`, under the name that `kind_of`
gives.
"""

from __future__ import annotations

import flax.linen as nn
import jax

from jaxrl.types import DimensionProperty, JaxrlError, ObservationSpec, ObservationType


class UnsupportedObservationError(JaxrlError):
    """An observation that no encoder in the registry reads."""


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

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return x
