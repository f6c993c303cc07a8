"""What the networks of signals that learn have in common: a body without memory, and an Adam of their own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.learning.adam import descended
from jaxrl.networks.body import NetworkBody
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import BehaviorSpec


def body_of(spec: BehaviorSpec, settings: NetworkSettings) -> NetworkBody:
    """Encoders and hidden layers as `network_settings` say; a signal remembers nothing, as in ML-Agents."""
    return NetworkBody(spec, settings.model_copy(update={"memory": None}), conditioned=True)


def one_row(spec: BehaviorSpec) -> tuple[jax.Array, ...]:
    """Observations of one agent, all zero: what networks are initialised with."""
    return tuple(jnp.zeros((1, *sensor.shape), sensor.dtype) for sensor in spec.observations)


def stepped(state: dict[str, Any], gradient: Any, rate: float) -> dict[str, Any]:
    """The state after one step of Adam on its "params", at a rate that no schedule changes."""
    params, optimizer = descended(state["params"], gradient, state["optimizer"], rate)
    return {**state, "params": params, "optimizer": optimizer}
