"""Connectors that do one thing to every number alone: what `clip` and `scale` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from jaxrl.connectors.interface import Connector, Obs, State
from jaxrl.connectors.sensors import as_floats, chosen, whole
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.types import BehaviorSpec

OneTensor = Callable[[OnnxGraph, str], str]


def sensors_of(spec: BehaviorSpec, names: Sequence[str] | None) -> tuple[int, ...]:
    """Indices of the sensors called `names`, or of all but images in bytes, which would take four times the memory.

    Raises ConnectorError where there is none.
    """
    if names is None:
        return chosen(spec, None, lambda sensor: not whole(sensor), "a sensor of floats (name an image to change it)")
    return chosen(spec, names, lambda sensor: True, "a sensor")


def of_observations(
    spec: BehaviorSpec, at: tuple[int, ...], change: Callable[[jax.Array], jax.Array], onnx: OneTensor
) -> Connector:
    """`change` of the sensors `at`, whose numbers are float32 afterwards; `onnx` adds the same to a graph.

    Images in bytes count as 0 to 1.
    """
    sensors = (s._replace(dtype="float32") if i in at else s for i, s in enumerate(spec.observations))

    def observe(state: State, obs: Obs, deciding: jax.Array) -> tuple[State, Obs]:
        pairs = enumerate(zip(spec.observations, obs, strict=True))
        return state, tuple(change(as_floats(sensor, x)) if i in at else x for i, (sensor, x) in pairs)

    def nodes(graph: OnnxGraph, shared: None, obs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(onnx(graph, x) if i in at else x for i, x in enumerate(obs))

    return Connector(spec._replace(observations=tuple(sensors)), observe=observe, onnx=nodes)


def of_rewards(spec: BehaviorSpec, change: Callable[[jax.Array], jax.Array]) -> Connector:
    """`change` of own and group reward, each alone."""
    return Connector(spec, reward=lambda state, reward, arrived: (state, change(reward)))
