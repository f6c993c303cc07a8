"""`clip`: observations, rewards or continuous actions within a range."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp

from jaxrl.connectors.elementwise import of_observations, of_rewards
from jaxrl.connectors.interface import Connector, ConnectorError, State
from jaxrl.connectors.sensors import chosen
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.settings.connectors import ClipSettings
from jaxrl.types import Action, BehaviorSpec


def make_clip(spec: BehaviorSpec, settings: ClipSettings) -> Connector:
    """min(max(x, low), high); NaN stays NaN. Raises ConnectorError."""
    clip = partial(jnp.clip, min=settings.low, max=settings.high)

    def onnx(graph: OnnxGraph, x: str) -> str:
        return graph.add("Clip", [x], f"{x}/clip", min=settings.low, max=settings.high)

    if settings.of == "rewards":
        return of_rewards(spec, clip)
    if settings.of == "observations":
        at = chosen(spec, settings.sensors, lambda sensor: True, "a sensor")
        return of_observations(spec, at, clip, onnx)
    if not spec.action.continuous_size:
        raise ConnectorError("of: the behavior has no continuous actions: remove this connector")

    def act(state: State, action: Action, sent: Action) -> tuple[State, Action]:
        return state, sent._replace(continuous=clip(sent.continuous))

    return Connector(spec, act=act, onnx_sent=onnx)
