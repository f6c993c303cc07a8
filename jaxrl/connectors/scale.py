"""`scale`: observations or rewards times a factor."""

from __future__ import annotations

import jax
import numpy as np

from jaxrl.connectors.elementwise import of_observations, of_rewards, sensors_of
from jaxrl.connectors.interface import Connector
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.settings.connectors import ScaleSettings
from jaxrl.types import BehaviorSpec


def make_scale(spec: BehaviorSpec, settings: ScaleSettings) -> Connector:
    """factor · x. Raises ConnectorError."""

    def scale(x: jax.Array) -> jax.Array:
        return x * settings.factor

    def onnx(graph: OnnxGraph, x: str) -> str:
        name = f"{x}/scale"
        return graph.add("Mul", [x, graph.constant(f"{name}/factor", np.array([settings.factor]))], name)

    if settings.of == "rewards":
        return of_rewards(spec, scale)
    return of_observations(spec, sensors_of(spec, settings.sensors), scale, onnx)
