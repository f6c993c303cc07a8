"""`clip` and `scale`, which change every number of observations, rewards or continuous actions by itself."""

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
    """Return indices of the sensors `names`; by default all but byte images, which would need four times the memory.

    Raises ConnectorError if there is none.
    """
    if names is None:
        return chosen(spec, None, lambda sensor: not whole(sensor), "a sensor of floats (name an image to change it)")
    return chosen(spec, names, lambda sensor: True, "a sensor")


def of_observations(
    spec: BehaviorSpec, at: tuple[int, ...], change: Callable[[jax.Array], jax.Array], onnx: OneTensor
) -> Connector:
    """Make the connector that applies `change` to the sensors `at`; `onnx` adds the same nodes to a graph.

    Their numbers become float32; byte images are scaled to 0 to 1 before.
    """
    sensors = (s._replace(dtype="float32") if i in at else s for i, s in enumerate(spec.observations))

    def observe(state: State, obs: Obs, deciding: jax.Array) -> tuple[State, Obs]:
        pairs = enumerate(zip(spec.observations, obs, strict=True))
        return state, tuple(change(as_floats(sensor, x)) if i in at else x for i, (sensor, x) in pairs)

    def nodes(graph: OnnxGraph, shared: None, obs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(onnx(graph, x) if i in at else x for i, x in enumerate(obs))

    return Connector(spec._replace(observations=tuple(sensors)), observe=observe, onnx=nodes)


def of_rewards(spec: BehaviorSpec, change: Callable[[jax.Array], jax.Array]) -> Connector:
    """Make the connector that applies `change` to own and group reward separately."""
    return Connector(spec, reward=lambda state, reward, arrived: (state, change(reward)))


def make_clip(spec: BehaviorSpec, settings: ClipSettings) -> Connector:
    """Make the connector x → min(max(x, low), high); NaN stays NaN. Raises ConnectorError."""
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
    """Raise ConnectorError if clipping changes 0: absent entities are rows of zeros."""
    for i in at:
        if entities(spec.observations[i]) and not settings.low <= 0 <= settings.high:
            raise ConnectorError(
                f"sensors: {spec.observations[i].name} shows entities, of which absent ones are 0, and would become "
                f"present within {settings.low:g} and {settings.high:g}: leave it out or take a range that holds 0"
            )


def make_scale(spec: BehaviorSpec, settings: ScaleSettings) -> Connector:
    """Make the connector x → factor · x. Raises ConnectorError."""

    def scale(x: jax.Array) -> jax.Array:
        return x * settings.factor

    def onnx(graph: OnnxGraph, x: str) -> str:
        name = f"{x}/scale"
        return graph.add("Mul", [x, graph.constant(f"{name}/factor", np.array([settings.factor]))], name)

    if settings.of == "rewards":
        return of_rewards(spec, scale)
    return of_observations(spec, sensors_of(spec, settings.sensors), scale, onnx)
