"""`frame_stack`: an agent's newest observations side by side."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.connectors.interface import Connector, Obs, State
from jaxrl.connectors.sensors import chosen, entities, replaced
from jaxrl.settings.connectors import FrameStackSettings
from jaxrl.types import BehaviorSpec, DimensionProperty, ObservationSpec


def make_frame_stack(spec: BehaviorSpec, settings: FrameStackSettings) -> Connector:
    """Make the connector [..., F] → [..., frames · F], the oldest first; images are stacked along their channels.

    Frames before the first observation are zeros. Only observations of decisions are stacked. Raises ConnectorError.
    """
    at = chosen(spec, settings.sensors, lambda sensor: not entities(sensor), "a sensor with a fixed number of entries")
    axes = {i: _axis(spec.observations[i]) for i in at}

    def observe(state: State, obs: Obs, deciding: jax.Array) -> tuple[State, Obs]:
        slot, shown = dict(state.slot), list(obs)
        for i, axis in axes.items():
            along = deciding.ndim + axis
            shown[i] = jnp.concatenate([state.slot[str(i)], obs[i]], axis=along)
            older = obs[i].shape[along]
            slot[str(i)] = jax.lax.slice_in_dim(shown[i], older, None, axis=along)
        return State(slot, state.shared), tuple(shown)

    slot = {str(i): np.zeros(_times(spec.observations[i], settings.frames - 1).shape, spec.observations[i].dtype)
            for i in at}  # fmt: skip
    sensors = {i: _times(spec.observations[i], settings.frames) for i in at}
    return Connector(replaced(spec, sensors), slot=slot, observe=observe)


def _axis(sensor: ObservationSpec) -> int:
    """Return the axis along which frames are stacked: the channels of an image, otherwise the first."""
    moving = [p == DimensionProperty.TRANSLATIONAL_EQUIVARIANCE for p in sensor.dimension_property]
    return moving.index(False) if False in moving else 0


def _times(sensor: ObservationSpec, frames: int) -> ObservationSpec:
    """Return the spec of the sensor with `frames` stacked frames."""
    axis, shape = _axis(sensor), list(sensor.shape)
    shape[axis] *= frames
    return sensor._replace(shape=tuple(shape))
