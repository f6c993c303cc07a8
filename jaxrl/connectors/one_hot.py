"""`one_hot`: replaces a column of whole numbers (a kind, a direction) by one column for each value."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.connectors.interface import Connector, ConnectorError, Obs, State
from jaxrl.connectors.sensors import chosen, replaced, vector, vectors
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.networks.shapes import as_row
from jaxrl.settings.connectors import OneHotSettings
from jaxrl.types import BehaviorSpec


def make_one_hot(spec: BehaviorSpec, settings: OneHotSettings) -> Connector:
    """Make the connector that replaces column c by 1 - min((x_c - k)², 1) for k = 0 ... values - 1.

    That is 1 for the value of the column, 0 for others, and all 0 for a whole number outside. It is written as a
    product, because every engine that reads ONNX has products. Raises ConnectorError.
    """
    (at,) = chosen(spec, (settings.sensor,), vectors, "a vector")
    sensor, c, values = spec.observations[at], settings.column, np.arange(settings.values, dtype=np.float32)
    if c >= sensor.shape[0]:
        raise ConnectorError(f"column: got {c}, expected 0 to {sensor.shape[0] - 1}: {sensor.name} has no more")

    def observe(state: State, obs: Obs, deciding: jax.Array) -> tuple[State, Obs]:
        x = jnp.asarray(obs[at], jnp.float32)
        distance = x[..., c, None] - as_row(jnp.asarray(values), x)
        hot = 1.0 - jnp.clip(distance * distance, 0.0, 1.0)
        return state, (*obs[:at], jnp.concatenate([x[..., :c], hot, x[..., c + 1 :]], axis=-1), *obs[at + 1 :])

    def onnx(graph: OnnxGraph, shared: None, obs: tuple[str, ...]) -> tuple[str, ...]:
        x, name = obs[at], f"{obs[at]}/one_hot"
        column = graph.columns(x, c, c + 1, f"{name}/column")
        distance = graph.add("Sub", [column, graph.constant(f"{name}/values", values[None])], f"{name}/distance")
        square = graph.add("Mul", [distance, distance], f"{name}/square")
        near = graph.add("Clip", [square], f"{name}/within_one", min=0.0, max=1.0)
        minus = graph.add("Mul", [near, graph.constant(f"{name}/minus_one", -np.ones(1))], f"{name}/negative")
        hot = graph.add("Add", [minus, graph.constant(f"{name}/one", np.ones(1))], f"{name}/hot")
        before = [graph.columns(x, 0, c, f"{name}/before")] if c else []
        after = [graph.columns(x, c + 1, sensor.shape[0], f"{name}/after")] if c + 1 < sensor.shape[0] else []
        return (*obs[:at], graph.concat([*before, hot, *after], name), *obs[at + 1 :])

    size = sensor.shape[0] - 1 + settings.values
    return Connector(replaced(spec, {at: vector(sensor.name, size, sensor)}), observe=observe, onnx=onnx)
