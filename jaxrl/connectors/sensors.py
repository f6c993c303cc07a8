"""Select the sensors that a connector changes, and make specs with other sensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.connectors.interface import ConnectorError
from jaxrl.types import BehaviorSpec, DimensionProperty, ObservationSpec

Kind = Callable[[ObservationSpec], bool]
_BRIGHTEST = 255.0


def vectors(sensor: ObservationSpec) -> bool:
    """Return whether an observation of this sensor is a vector."""
    return len(sensor.shape) == 1


def entities(sensor: ObservationSpec) -> bool:
    """Return whether the sensor shows entities, of which absent ones are all 0."""
    return DimensionProperty.VARIABLE_SIZE in sensor.dimension_property


def whole(sensor: ObservationSpec) -> bool:
    """Return whether the sensor's numbers are integers, as in byte images."""
    return np.issubdtype(np.dtype(sensor.dtype), np.integer)


def as_floats(sensor: ObservationSpec, x: jax.Array) -> jax.Array:
    """Convert observations to float32, byte images to 0 to 1 as Unity gives them to an ONNX file."""
    floats = jnp.asarray(x, jnp.float32)
    return floats / _BRIGHTEST if whole(sensor) else floats


def chosen(spec: BehaviorSpec, names: Sequence[str] | None, fits: Kind, what: str) -> tuple[int, ...]:
    """Return the indices of the sensors called `names`, or of all that fit if that is None.

    Raises ConnectorError for a name of no sensor, for a sensor that does not fit (`what` says what would, such as "a
    vector"), and if no sensor fits.
    """
    if names is None:
        indices = tuple(i for i, sensor in enumerate(spec.observations) if fits(sensor))
        if not indices:
            raise ConnectorError(f"sensors: none of {_listed(spec)} is {what}: remove this connector")
        return indices
    return tuple(_index(spec, name, fits, what) for name in names)


def _index(spec: BehaviorSpec, name: str, fits: Kind, what: str) -> int:
    for i, sensor in enumerate(spec.observations):
        if sensor.name == name:
            if not fits(sensor):
                raise ConnectorError(f"sensors: {name} is of shape {list(sensor.shape)}, expected {what}")
            return i
    raise ConnectorError(f"sensors: got {name}, expected one of {_listed(spec)}")


def _listed(spec: BehaviorSpec) -> str:
    return ", ".join(sensor.name for sensor in spec.observations) or "no sensor"


def replaced(spec: BehaviorSpec, sensors: dict[int, ObservationSpec]) -> BehaviorSpec:
    """Return the spec with other sensors at the indices in `sensors`."""
    return spec._replace(observations=tuple(sensors.get(i, sensor) for i, sensor in enumerate(spec.observations)))


def vector(name: str, size: int, like: ObservationSpec | None = None) -> ObservationSpec:
    """Make the spec of a vector of float32 numbers, with the type (such as a goal) of the sensor `like`."""
    return ObservationSpec(name, (size,)) if like is None else ObservationSpec(name, (size,), (), like.observation_type)


def with_sensor(spec: BehaviorSpec, sensor: ObservationSpec) -> BehaviorSpec:
    """Return the spec with the sensor as the last one. Raises ConnectorError if another has its name."""
    if any(sensor.name == other.name for other in spec.observations):
        raise ConnectorError(f"type: there is a sensor called {sensor.name} already: keep one of the two")
    return spec._replace(observations=(*spec.observations, sensor))
