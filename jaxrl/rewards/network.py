"""Common parts of the networks of signals that learn: a body without memory, and an Adam for each signal."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.learning.adam import descended
from jaxrl.networks.body import NetworkBody
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import BehaviorSpec


def body_of(spec: BehaviorSpec, settings: NetworkSettings) -> NetworkBody:
    """Make encoders and hidden layers as `network_settings` say; a signal has no memory, as in ML-Agents."""
    return NetworkBody(spec, settings.model_copy(update={"memory": None}), conditioned=True)


def one_row(spec: BehaviorSpec) -> tuple[jax.Array, ...]:
    """Make the observations of one agent, all zero, with which networks are initialised."""
    return tuple(jnp.zeros((1, *sensor.shape), sensor.dtype) for sensor in spec.observations)


def stepped(state: dict[str, Any], gradient: Any, rate: float) -> dict[str, Any]:
    """Take one step of Adam on the state's "params" at a constant rate. Return the new state."""
    params, optimizer = descended(state["params"], gradient, state["optimizer"], rate)
    return {**state, "params": params, "optimizer": optimizer}
