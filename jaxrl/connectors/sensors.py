"""Which sensors a connector changes, and specs with other sensors."""

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
    """Whether an observation of this sensor is a vector."""
    return len(sensor.shape) == 1


def entities(sensor: ObservationSpec) -> bool:
    """Whether it shows entities, of which those that are absent are all 0."""
    return DimensionProperty.VARIABLE_SIZE in sensor.dimension_property


def whole(sensor: ObservationSpec) -> bool:
    """Whether its numbers are whole, as those of images in bytes."""
    return np.issubdtype(np.dtype(sensor.dtype), np.integer)


def as_floats(sensor: ObservationSpec, x: jax.Array) -> jax.Array:
    """Float32, images in bytes as 0 to 1, which an ONNX file gets from Unity."""
    floats = jnp.asarray(x, jnp.float32)
    return floats / _BRIGHTEST if whole(sensor) else floats


def chosen(spec: BehaviorSpec, names: Sequence[str] | None, fits: Kind, what: str) -> tuple[int, ...]:
    """Indices of the sensors called `names`, or, where that is None, of all that fit.

    Raises ConnectorError where a name is that of no sensor, one of these does not fit (`what` says what would, such as
    "a vector"), or none is left.
    """
    if names is None:
        found = tuple(i for i, sensor in enumerate(spec.observations) if fits(sensor))
        if not found:
            raise ConnectorError(f"sensors: none of {_listed(spec)} is {what}: remove this connector")
        return found
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
    """The spec with other sensors at some places."""
    return spec._replace(observations=tuple(sensors.get(i, sensor) for i, sensor in enumerate(spec.observations)))


def vector(name: str, size: int, like: ObservationSpec | None = None) -> ObservationSpec:
    """A vector of float32 numbers, of the type (such as a goal) of the sensor that it is made of."""
    return ObservationSpec(name, (size,)) if like is None else ObservationSpec(name, (size,), (), like.observation_type)


def with_sensor(spec: BehaviorSpec, sensor: ObservationSpec) -> BehaviorSpec:
    """The spec with one sensor more, the last. Raises ConnectorError where another has its name."""
    if any(sensor.name == other.name for other in spec.observations):
        raise ConnectorError(f"type: there is a sensor called {sensor.name} already: keep one of the two")
    return spec._replace(observations=(*spec.observations, sensor))
