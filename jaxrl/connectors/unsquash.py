"""`unsquash`: scales continuous actions from [-1, 1] to the environment's range."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxrl.connectors.interface import Connector, ConnectorError, State
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.networks.shapes import as_row
from jaxrl.settings.connectors import UnsquashSettings
from jaxrl.types import Action, BehaviorSpec


def make_unsquash(spec: BehaviorSpec, settings: UnsquashSettings) -> Connector:
    """Make the connector a → low + (a + 1) / 2 · (high - low), dimension by dimension. Raises ConnectorError."""
    size = spec.action.continuous_size
    if not size:
        raise ConnectorError("type: the behavior has no continuous actions: remove this connector")
    low, high = _numbers("low", settings.low, size), _numbers("high", settings.high, size)
    scale, middle = (high - low) / 2, (high + low) / 2

    def act(state: State, action: Action, sent: Action) -> tuple[State, Action]:
        x = sent.continuous
        return state, sent._replace(continuous=x * as_row(jnp.asarray(scale), x) + as_row(jnp.asarray(middle), x))

    def undo(sent: Action) -> Action:
        x = jnp.asarray(sent.continuous, jnp.float32)
        return sent._replace(continuous=(x - as_row(jnp.asarray(middle), x)) / as_row(jnp.asarray(scale), x))

    def onnx(graph: OnnxGraph, x: str) -> str:
        name = f"{x}/unsquash"
        scaled = graph.add("Mul", [x, graph.constant(f"{name}/scale", scale)], f"{name}/scaled")
        return graph.add("Add", [scaled, graph.constant(f"{name}/middle", middle)], name)

    return Connector(spec, act=act, undo=undo, onnx_sent=onnx)


def _numbers(key: str, value: float | tuple[float, ...], size: int) -> np.ndarray:
    """Return one number for each continuous action, float32 [C]. Raises ConnectorError for another count."""
    if isinstance(value, tuple) and len(value) != size:
        raise ConnectorError(f"{key}: got {len(value)} numbers, expected {size}, one for each continuous action")
    return np.broadcast_to(np.asarray(value, np.float32), (size,))
