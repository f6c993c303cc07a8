"""The common body of actor and critics: from observations to the features that heads read.

    observations → encoders → hidden layers → memory

Memory is a carry, of which the new value is returned, or `Sequences` along which it is computed; `()` without memory.
"""

from __future__ import annotations

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from jaxrl.networks.goal import Columns, ConditionedMLP, conditioned_mlp_onnx
from jaxrl.networks.initializers import fan_in_normal
from jaxrl.networks.linear import Linear, on_columns
from jaxrl.networks.memory import Carry, Memory, Sequences
from jaxrl.networks.normalizer import States
from jaxrl.networks.observations import ObservationEncoder, goal_columns, observations_onnx
from jaxrl.networks.onnx_graph import ExportError, OnnxGraph
from jaxrl.networks.own import own_module, own_output
from jaxrl.networks.shapes import on_rows
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import BehaviorSpec


class NetworkBody(nn.Module):
    """Encoders, hidden layers and memory of one network: (obs, memory) -> (features, carry).

    The module that owns it calls `nn.share_scope(self, body)` in its `setup`: the parameters are the owner's,
    `encoder/...` and `body/layer_<i>/...`. A critic of a whole team adds layers between `encode` and `hidden`.

    `conditioned`: goals choose the weights of the last layer if the settings say so; without it a goal is an ordinary
    observation. It is only for networks whose hidden layers read the encoding itself.
    """

    spec: BehaviorSpec
    settings: NetworkSettings
    kernel_init: Initializer = fan_in_normal(1.0)
    conditioned: bool = False

    def setup(self) -> None:
        self.encoder = ObservationEncoder(self.spec, self.settings)
        size = self.settings.hidden_units, self.settings.num_layers, self.kernel_init
        goals = conditioning_goals(self.spec, self.settings) if self.conditioned else ()
        if self.settings.body_type is not None:
            self.body = OwnBody(self.settings.body_type, *size[:2])
        else:
            self.body = ConditionedMLP(*size, goals) if goals else MLP(*size)
        if self.settings.memory is not None:
            self.memory = Memory(self.settings.memory)

    def __call__(self, obs: tuple[jax.Array, ...], memory: Carry | Sequences) -> tuple[jax.Array, Carry]:
        return self.remember(self.body(self.encode(obs)), memory)

    def encode(self, obs: tuple[jax.Array, ...]) -> jax.Array:
        """Apply the encoders: a tuple of [..., *shape] -> [..., E]."""
        return self.encoder(obs)

    def hidden(self, x: jax.Array) -> jax.Array:
        """Apply the hidden layers: [..., E] -> [..., h]."""
        return self.body(x)

    def remember(self, x: jax.Array, memory: Carry | Sequences) -> tuple[jax.Array, Carry]:
        """Apply the memory: [..., h] -> features for heads, float32, and the new carry; x itself without memory.

        Raises AssertionError for a network with memory without a carry, and the other way round.
        """
        has_memory = not (isinstance(memory, tuple) and not memory)
        chex.assert_equal(has_memory, self.settings.memory is not None)
        x = x.astype(jnp.float32)
        return self.memory(x, memory) if has_memory else (x, ())


def conditioning_goals(spec: BehaviorSpec, settings: NetworkSettings) -> Columns:
    """Return the columns of the encoding that choose the weights of the last layer; () without goals."""
    return goal_columns(spec, settings) if settings.goal_conditioning_type == "hyper" else ()


class OwnBody(nn.Module):
    """A user's own hidden layers, [..., E] -> [..., h], with all leading axes as one and goals as ordinary inputs."""

    address: str
    units: int
    layers: int

    def setup(self) -> None:
        self.module = own_module("body_type", self.address, units=self.units, layers=self.layers)
        nn.share_scope(self, self.module)

    def __call__(self, x: jax.Array) -> jax.Array:
        return on_rows(partial(own_output, "body_type", self.address, self.module, self.units), x)


class MLP(nn.Module):
    """Hidden layers, `layers` times linear to `units` and swish: [..., E] -> [..., h]."""

    units: int
    layers: int
    kernel_init: Initializer

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return on_columns(self._columns, x)

    def _columns(self, x: jax.Array) -> jax.Array:
        for i in range(self.layers):
            x = nn.swish(Linear(self.units, self.kernel_init, name=f"layer_{i}")(x))
        return x


def body_onnx(
    graph: OnnxGraph,
    spec: BehaviorSpec,
    settings: NetworkSettings,
    states: States,
    given: tuple[str, ...] | None = None,
) -> str:
    """Add `NetworkBody` with its inputs (or the tensors `given`) and the normaliser. Return features, [batch, h]."""
    if settings.body_type is not None:
        raise ExportError(f"a file cannot hold the hidden layers {settings.body_type}")
    encoding = observations_onnx(graph, "encoder", spec, settings, states, given)
    goals = conditioning_goals(spec, settings)
    if goals:
        return conditioned_mlp_onnx(graph, encoding, "body", settings.hidden_units, settings.num_layers, goals)
    for i in range(settings.num_layers):
        encoding = graph.swish(graph.dense(encoding, f"body/layer_{i}"))
    return encoding
