"""What actor and all critics have in common: from observations to the features that heads read.

    observations → encoders → hidden layers → memory

Memory is a carry that goes in and comes out; without memory it is `()`.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
from jax.nn.initializers import Initializer

from jaxrl.networks.initializers import fan_in_normal
from jaxrl.networks.normalizer import States
from jaxrl.networks.observations import ObservationEncoder, observations_onnx
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.networks.settings import NetworkShape
from jaxrl.networks.shapes import on_rows
from jaxrl.types import BehaviorSpec

Carry = Any
"""What a memory holds between two states of an agent, arrays [..., m]; `()` without memory."""


class NetworkBody(nn.Module):
    """Encoders, hidden layers and memory of one network: (obs, carry) -> (features [..., h], carry).

    Whoever owns it calls `nn.share_scope(self, body)` in its `setup`: the parameters are the owner's, `encoder/...` and
    `body/layer_<i>/...`. A critic of a whole team puts something of its own between `encode` and `hidden`.
    """

    spec: BehaviorSpec
    settings: NetworkShape
    kernel_init: Initializer = fan_in_normal(1.0)

    def setup(self) -> None:
        self.encoder = ObservationEncoder(self.spec, self.settings)
        self.body = MLP(self.settings.hidden_units, self.settings.num_layers, self.kernel_init)

    def __call__(self, obs: tuple[jax.Array, ...], carry: Carry) -> tuple[jax.Array, Carry]:
        return self.hidden(self.encode(obs), carry)

    def encode(self, obs: tuple[jax.Array, ...]) -> jax.Array:
        """The encoders alone: a tuple of [..., *shape] -> [..., E]."""
        return self.encoder(obs)

    def hidden(self, x: jax.Array, carry: Carry) -> tuple[jax.Array, Carry]:
        """All that comes after the encoders: [..., E] -> [..., h]."""
        return self.body(x), carry


class MLP(nn.Module):
    """`layers` times linear to `units` and swish: [..., E] -> [..., h]."""

    units: int
    layers: int
    kernel_init: Initializer

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i in range(self.layers):
            x = nn.swish(on_rows(nn.Dense(self.units, kernel_init=self.kernel_init, name=f"layer_{i}"), x))
        return x


def body_onnx(
    graph: OnnxGraph,
    spec: BehaviorSpec,
    settings: NetworkShape,
    states: States,
    given: tuple[str, ...] | None = None,
) -> str:
    """`NetworkBody` with its inputs (or the tensors `given`) and the normaliser before it: the features, [batch, h]."""
    encoding = observations_onnx(graph, "encoder", spec, settings, states, given)
    return mlp_onnx(graph, encoding, "body", settings.num_layers)


def mlp_onnx(graph: OnnxGraph, x: str, path: str, layers: int) -> str:
    """`MLP` with its parameters at a path, on the tensor x [batch, E]."""
    for i in range(layers):
        x = graph.dense(x, f"{path}/layer_{i}")
        x = graph.add("Mul", [x, graph.add("Sigmoid", [x], f"{x}/sigmoid")], f"{x}/swish")
    return x
