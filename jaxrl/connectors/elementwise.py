"""Connectors that do one thing to every number alone: what `clip` and `scale` share."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.connectors.interface import Connector, Obs, State
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.types import BehaviorSpec

OneTensor = Callable[[OnnxGraph, str], str]


def of_observations(
    spec: BehaviorSpec, at: tuple[int, ...], change: Callable[[jax.Array], jax.Array], onnx: OneTensor
) -> Connector:
    """`change` of the sensors `at`, whose numbers are float32 afterwards; `onnx` adds the same to a graph."""
    sensors = (s._replace(dtype="float32") if i in at else s for i, s in enumerate(spec.observations))

    def observe(state: State, obs: Obs, deciding: jax.Array) -> tuple[State, Obs]:
        return state, tuple(change(jnp.asarray(x, jnp.float32)) if i in at else x for i, x in enumerate(obs))

    def nodes(graph: OnnxGraph, shared: None, obs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(onnx(graph, x) if i in at else x for i, x in enumerate(obs))

    return Connector(spec._replace(observations=tuple(sensors)), observe=observe, onnx=nodes)


def of_rewards(spec: BehaviorSpec, change: Callable[[jax.Array], jax.Array]) -> Connector:
    """`change` of own and group reward, each alone."""
    return Connector(spec, reward=lambda state, reward, arrived: (state, change(reward)))
