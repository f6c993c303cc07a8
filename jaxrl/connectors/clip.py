"""`clip`: observations, rewards or continuous actions within a range."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp

from jaxrl.connectors.elementwise import of_observations, of_rewards, sensors_of
from jaxrl.connectors.interface import Connector, ConnectorError, State
from jaxrl.connectors.sensors import entities
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
        at = sensors_of(spec, settings.sensors)
        _check_entities(spec, at, settings)
        return of_observations(spec, at, clip, onnx)
    if not spec.action.continuous_size:
        raise ConnectorError("of: the behavior has no continuous actions: remove this connector")

    def act(state: State, action: Action, sent: Action) -> tuple[State, Action]:
        return state, sent._replace(continuous=clip(sent.continuous))

    return Connector(spec, act=act, onnx_sent=onnx)


def _check_entities(spec: BehaviorSpec, at: tuple[int, ...], settings: ClipSettings) -> None:
    """Absent entities are rows of zeros, and have to stay so."""
    for i in at:
        if entities(spec.observations[i]) and not settings.low <= 0 <= settings.high:
            raise ConnectorError(
                f"sensors: {spec.observations[i].name} shows entities, of which absent ones are 0, and would become "
                f"present within {settings.low:g} and {settings.high:g}: leave it out or take a range that holds 0"
            )
