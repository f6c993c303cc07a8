"""All observations of one agent as one vector: encodings concatenated in the order of the spec, as in ML-Agents.

Encoders that see the other encodings come in a second pass (see `encoders`), their encodings after the others.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.networks import ENCODERS
from jaxrl.networks.encoders import Encoder, EncoderInput, UnsupportedObservationError, kind_of
from jaxrl.networks.normalizer import States, normalize_onnx
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.networks.settings import NetworkShape
from jaxrl.types import BehaviorSpec


class ObservationEncoder(nn.Module):
    """Concatenated encodings of all observations of an agent.

    Takes a tuple of [..., *shape], already normalised; gives [..., E], float32. Raises `UnsupportedObservationError`
    for an observation without an encoder and ValueError for arrays that do not fit the spec.
    """

    spec: BehaviorSpec
    settings: NetworkShape

    @nn.compact
    def __call__(self, obs: tuple[jax.Array, ...]) -> jax.Array:
        first_pass, second_pass = _passes(self.spec)
        _check_arrays(self.spec, obs)

        def encode(i: int, encoder: Encoder, encodings: tuple[jax.Array, ...]) -> jax.Array:
            module = encoder.module(self.spec.observations[i], self.settings, name=f"observation_{i}")
            return module(obs[i], encodings)

        first = tuple(encode(i, encoder, ()) for i, encoder in first_pass)
        second = tuple(encode(i, encoder, first) for i, encoder in second_pass)
        return jnp.concatenate(first + second, axis=-1)


def observations_onnx(
    graph: OnnxGraph,
    path: str,
    spec: BehaviorSpec,
    settings: NetworkShape,
    states: States,
    given: tuple[str, ...] | None = None,
) -> str:
    """Inputs `obs_<i>` [batch, *shape], the normaliser, and `ObservationEncoder`: [batch, E].

    `given`: tensors of the observations, where something else has made them of the inputs.

    Raises `UnsupportedObservationError` for an observation without an encoder.
    """
    first_pass, second_pass = _passes(spec)
    shown = []
    for i, (observation, state) in enumerate(zip(spec.observations, states, strict=True)):
        x = graph.input(f"obs_{i}", *observation.shape) if given is None else given[i]
        shown.append(x if state is None else normalize_onnx(graph, x, state))

    def encode(i: int, encoder: Encoder, encodings: tuple[str, ...]) -> str:
        place = f"{path}/observation_{i}"
        return encoder.onnx(graph, EncoderInput(spec.observations[i], settings, place, shown[i], encodings))

    first = tuple(encode(i, encoder, ()) for i, encoder in first_pass)
    second = tuple(encode(i, encoder, first) for i, encoder in second_pass)
    return graph.concat([*first, *second], "encoding")


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


def _passes(spec: BehaviorSpec) -> tuple[list[tuple[int, Encoder]], list[tuple[int, Encoder]]]:
    """Index and encoder of the observations of the first and of the second pass, each in the order of the spec."""
    check_observations(spec)
    encoders = [(i, ENCODERS[kind_of(observation)]) for i, observation in enumerate(spec.observations)]
    return [e for e in encoders if not e[1].sees_encodings], [e for e in encoders if e[1].sees_encodings]


def _check_arrays(spec: BehaviorSpec, obs: tuple[jax.Array, ...]) -> None:
    if len(obs) != len(spec.observations):
        raise ValueError(f"got {len(obs)} observations, the behavior spec has {len(spec.observations)}")
    for i, (observation, x) in enumerate(zip(spec.observations, obs, strict=True)):
        if x.shape[x.ndim - len(observation.shape) :] != observation.shape:
            raise ValueError(
                f"observation {i} ('{observation.name}') is {x.shape}, expected [..., {observation.shape}]"
            )
