"""`mask`: hides sensors, or columns of vectors, from the policy and its critics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.connectors.interface import Connector, ConnectorError, Obs, State
from jaxrl.connectors.sensors import chosen, replaced, vector, vectors
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.settings.connectors import MaskSettings
from jaxrl.types import BehaviorSpec


def make_mask(spec: BehaviorSpec, settings: MaskSettings) -> Connector:
    """Make the connector that removes sensors, or the same columns of some. Raises ConnectorError if none is left."""
    if settings.columns is None:
        return _without_sensors(spec, settings)
    return _without_columns(spec, settings, tuple(sorted(set(settings.columns))))


def _without_sensors(spec: BehaviorSpec, settings: MaskSettings) -> Connector:
    hidden = chosen(spec, settings.sensors, lambda sensor: True, "a sensor")
    visible = [i for i in range(len(spec.observations)) if i not in hidden]
    if not visible:
        raise ConnectorError("sensors: all are hidden: leave the policy at least one")
    return Connector(
        spec._replace(observations=tuple(spec.observations[i] for i in visible)),
        observe=lambda state, obs, deciding: (state, tuple(obs[i] for i in visible)),
        onnx=lambda graph, shared, obs: tuple(obs[i] for i in visible),
    )


def _without_columns(spec: BehaviorSpec, settings: MaskSettings, columns: tuple[int, ...]) -> Connector:
    kept: dict[int, list[int]] = {}
    for i in chosen(spec, settings.sensors, vectors, "a vector"):
        sensor = spec.observations[i]
        if columns[-1] >= sensor.shape[0]:
            last = sensor.shape[0] - 1
            raise ConnectorError(f"columns: got {columns[-1]}, expected 0 to {last}: {sensor.name} has no more")
        kept[i] = [c for c in range(sensor.shape[0]) if c not in columns]
        if not kept[i]:
            raise ConnectorError(f"columns: all of {sensor.name} are hidden: leave columns out to hide the sensor")

    def observe(state: State, obs: Obs, deciding: jax.Array) -> tuple[State, Obs]:
        return state, tuple(jnp.take(x, np.array(kept[i]), axis=-1) if i in kept else x for i, x in enumerate(obs))

    def onnx(graph: OnnxGraph, shared: None, obs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_nodes(graph, x, kept[i]) if i in kept else x for i, x in enumerate(obs))

    sensors = {i: vector(spec.observations[i].name, len(k), spec.observations[i]) for i, k in kept.items()}
    return Connector(replaced(spec, sensors), observe=observe, onnx=onnx)


def _nodes(graph: OnnxGraph, x: str, kept: list[int]) -> str:
    """Add nodes that put the `kept` columns of x side by side: a slice for each run of neighbours."""
    name = f"{x}/mask"
    starts = [c for c in kept if c - 1 not in kept]
    ends = [c + 1 for c in kept if c + 1 not in kept]
    parts = [graph.columns(x, start, end, f"{name}/{start}_{end}") for start, end in zip(starts, ends, strict=True)]
    return graph.concat(parts, name)
