"""`clip` and `scale`, which do one thing to every number of observations, rewards or continuous actions alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.connectors.interface import Connector, ConnectorError, Obs, State
from jaxrl.connectors.sensors import as_floats, chosen, entities, whole
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.settings.connectors import ClipSettings, ScaleSettings
from jaxrl.types import Action, BehaviorSpec

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
