"""`flatten`: images, tables and other observations with several axes as vectors."""

from __future__ import annotations

import math

import jax

from jaxrl.connectors.interface import Connector, Obs, State
from jaxrl.connectors.sensors import as_floats, chosen, replaced, vector, vectors
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.settings.connectors import FlattenSettings
from jaxrl.types import BehaviorSpec


def make_flatten(spec: BehaviorSpec, settings: FlattenSettings) -> Connector:
    """Make the connector [..., *shape] → [..., product of shape], the last axis fastest. Raises ConnectorError."""
    at = chosen(spec, settings.sensors, lambda sensor: not vectors(sensor), "an image or a table")
    sizes = {i: math.prod(spec.observations[i].shape) for i in at}

    def observe(state: State, obs: Obs, deciding: jax.Array) -> tuple[State, Obs]:
        shown = list(obs)
        for i, size in sizes.items():
            shown[i] = as_floats(spec.observations[i], obs[i]).reshape(*deciding.shape, size)
        return state, tuple(shown)

    def onnx(graph: OnnxGraph, shared: None, obs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(graph.add("Flatten", [x], f"{x}/flatten", axis=1) if i in sizes else x for i, x in enumerate(obs))

    sensors = {i: vector(spec.observations[i].name, size, spec.observations[i]) for i, size in sizes.items()}
    return Connector(replaced(spec, sensors), observe=observe, onnx=onnx)
