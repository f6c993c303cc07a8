"""All observations of one agent as one vector: encodings concatenated in the order of the spec, as in ML-Agents."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.networks import ENCODERS
from jaxrl.networks.encoders import UnsupportedObservationError, kind_of
from jaxrl.types import BehaviorSpec


class ObservationEncoder(nn.Module):
    """Concatenated encodings of all observations of an agent.

    Takes a tuple of [..., *shape], already normalised; gives [..., E], float32. Raises `UnsupportedObservationError`
    for an observation without an encoder and ValueError for arrays that do not fit the spec.
    """

    spec: BehaviorSpec

    @nn.compact
    def __call__(self, obs: tuple[jax.Array, ...]) -> jax.Array:
        check_observations(self.spec)
        if len(obs) != len(self.spec.observations):
            raise ValueError(f"got {len(obs)} observations, the behavior spec has {len(self.spec.observations)}")
        encodings = []
        for i, (observation, x) in enumerate(zip(self.spec.observations, obs, strict=True)):
            if x.shape[x.ndim - len(observation.shape) :] != observation.shape:
                raise ValueError(
                    f"observation {i} ('{observation.name}') is {x.shape}, expected [..., {observation.shape}]"
                )
            encodings.append(ENCODERS[kind_of(observation)](observation, name=f"observation_{i}")(x))
        return jnp.concatenate(encodings, axis=-1)


def check_observations(spec: BehaviorSpec, behavior: str = "") -> None:
    """Raise `UnsupportedObservationError` naming the first observation that no registered encoder reads.

    `behavior`: whose they are, where that is known.
    """
    whose = f"behavior '{behavior}': " if behavior else ""
    if not spec.observations:
        raise UnsupportedObservationError(f"{whose}there is no observation at all: add a sensor to its agents")
    for i, observation in enumerate(spec.observations):
        kind = kind_of(observation)
        if kind not in ENCODERS:
            raise UnsupportedObservationError(
                f"{whose}observation {i} ('{observation.name}', shape {observation.shape}) is of kind '{kind}', which "
                f"is not supported (supported: {', '.join(ENCODERS)}): remove the sensor or replace it by a vector "
                "observation"
            )


def encoding_size(spec: BehaviorSpec) -> int:
    """E, the width of `ObservationEncoder`'s output for vector observations."""
    check_observations(spec)
    return sum(observation.shape[0] for observation in spec.observations)
