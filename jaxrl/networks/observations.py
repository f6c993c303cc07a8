"""All observations of one agent as one vector: encodings concatenated in the order of the spec, as in ML-Agents.

Encoders that read all observations of their kind together (`JointEncoder`) come after the others, and read their
encodings.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.networks import ENCODERS, JOINT_ENCODERS
from jaxrl.networks.encoders import EncoderInput, JointEncoderInput, UnsupportedObservationError, is_goal, kind_of
from jaxrl.networks.normalizer import States, normalize_onnx
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import BehaviorSpec, ObservationSpec


class ObservationEncoder(nn.Module):
    """Concatenated encodings of all observations of an agent.

    Takes a tuple of [..., *shape], already normalised, and returns [..., E] of `compute_dtype`. Raises
    `UnsupportedObservationError` for an observation without an encoder and ValueError for arrays that do not fit the
    spec.
    """

    spec: BehaviorSpec
    settings: NetworkSettings

    @nn.compact
    def __call__(self, obs: tuple[jax.Array, ...]) -> jax.Array:
        check_observations(self.spec, self.settings)
        _check_arrays(self.spec, obs)
        sensors = self.spec.observations
        alone, joint = _alone(self.spec), _joint(self.spec)
        modules = {
            i: ENCODERS[kind_of(sensors[i])].module(sensors[i], self.settings, name=f"observation_{i}") for i in alone
        }
        encodings = tuple(module(obs[i]) for i, module in modules.items())
        encoding = jnp.concatenate(encodings, axis=-1) if encodings else None
        others = tuple(
            JOINT_ENCODERS[kind].module(tuple(sensors[i] for i in of_kind), self.settings, name=kind)(
                tuple(obs[i] for i in of_kind), encoding
            )
            for kind, of_kind in joint.items()
        )
        return jnp.concatenate(encodings + others, axis=-1)


def observations_onnx(
    graph: OnnxGraph,
    path: str,
    spec: BehaviorSpec,
    settings: NetworkSettings,
    states: States,
    given: tuple[str, ...] | None = None,
) -> str:
    """Add inputs `obs_<i>` [batch, *shape], the normaliser, and `ObservationEncoder`: [batch, E].

    `given`: tensors of the observations, in place of the inputs.

    Raises `UnsupportedObservationError` for an observation without an encoder.
    """
    check_observations(spec, settings)
    sensors, shown = spec.observations, []
    for i, (observation, state) in enumerate(zip(sensors, states, strict=True)):
        x = graph.input(f"obs_{i}", *observation.shape) if given is None else given[i]
        shown.append(x if state is None else normalize_onnx(graph, x, state))
    parts = []
    for i in _alone(spec):
        inputs = EncoderInput(sensors[i], settings, f"{path}/observation_{i}", shown[i])
        parts.append(ENCODERS[kind_of(sensors[i])].onnx(graph, inputs))
    joint = _joint(spec)
    encoding = graph.concat(list(parts), "encoding/own" if joint else "encoding") if parts else None
    if not joint:
        assert encoding is not None
        return encoding
    for kind, of_kind in joint.items():
        observations, xs = tuple(sensors[i] for i in of_kind), tuple(shown[i] for i in of_kind)
        inputs = JointEncoderInput(observations, settings, f"{path}/{kind}", xs, encoding)
        parts.append(JOINT_ENCODERS[kind].onnx(graph, inputs))
    return graph.concat(parts, "encoding")


def check_observations(spec: BehaviorSpec, settings: NetworkSettings, behavior: str = "") -> None:
    """Raise `UnsupportedObservationError` naming the first observation that no registered encoder reads.

    `behavior`: name of their behavior, if known.
    """
    whose = f"behavior '{behavior}': " if behavior else ""
    if not spec.observations:
        raise UnsupportedObservationError(f"{whose}there is no observation at all: add a sensor to its agents")
    for i, observation in enumerate(spec.observations):
        problem = _problem(observation, settings)
        if problem:
            raise UnsupportedObservationError(
                f"{whose}observation {i} ('{observation.name}', shape {observation.shape}) {problem}"
            )


def encoding_size(spec: BehaviorSpec, settings: NetworkSettings) -> int:
    """Return E, the width of `ObservationEncoder`'s output."""
    return sum(width for _, width in encoding_parts(spec, settings))


def encoding_parts(spec: BehaviorSpec, settings: NetworkSettings) -> list[tuple[int | str, int]]:
    """Return the parts of `ObservationEncoder`'s output in order: index and width of each observation that is encoded
    alone, then name and width of each kind that is encoded together."""
    check_observations(spec, settings)
    parts: list[tuple[int | str, int]] = [(i, _size(spec.observations[i], settings)) for i in _alone(spec)]
    return parts + [(kind, JOINT_ENCODERS[kind].size) for kind in _joint(spec)]


def goal_columns(spec: BehaviorSpec, settings: NetworkSettings) -> tuple[tuple[int, int], ...]:
    """Return the goals' columns in `ObservationEncoder`'s output: the first and the one behind the last, by goal."""
    check_observations(spec, settings)
    alone = _alone(spec)
    edges = accumulate((_size(spec.observations[i], settings) for i in alone), initial=0)
    return tuple(at for i, at in zip(alone, pairwise(edges), strict=True) if is_goal(spec.observations[i]))


def _alone(spec: BehaviorSpec) -> list[int]:
    """Return the indices of the observations that are encoded one by one, in the order of the spec."""
    return [i for i, observation in enumerate(spec.observations) if kind_of(observation) in ENCODERS]


def _joint(spec: BehaviorSpec) -> dict[str, list[int]]:
    """Return by kind the indices of the observations that are encoded together, in the order of the spec."""
    indices = {kind: [i for i, o in enumerate(spec.observations) if kind_of(o) == kind] for kind in JOINT_ENCODERS}
    return {kind: of_kind for kind, of_kind in indices.items() if of_kind}


def _size(observation: ObservationSpec, settings: NetworkSettings) -> int:
    return ENCODERS[kind_of(observation)].size(observation, settings)


def _problem(observation: ObservationSpec, settings: NetworkSettings) -> str:
    """Return why the observation cannot be read, as the rest of a sentence; "" if it can."""
    kind = kind_of(observation)
    if kind in ENCODERS:
        return ENCODERS[kind].problem(observation, settings)
    if kind in JOINT_ENCODERS:
        return JOINT_ENCODERS[kind].problem(observation, settings)
    supported: Iterable[str] = (*ENCODERS, *JOINT_ENCODERS)
    return (
        f"is of kind '{kind}', which is not supported (supported: {', '.join(supported)}): remove the sensor or "
        "replace it by a vector observation"
    )


def _check_arrays(spec: BehaviorSpec, obs: tuple[jax.Array, ...]) -> None:
    if len(obs) != len(spec.observations):
        raise ValueError(f"got {len(obs)} observations, the behavior spec has {len(spec.observations)}")
    for i, (observation, x) in enumerate(zip(spec.observations, obs, strict=True)):
        if x.shape[x.ndim - len(observation.shape) :] != observation.shape:
            raise ValueError(
                f"observation {i} ('{observation.name}') is {x.shape}, expected [..., {observation.shape}]"
            )
