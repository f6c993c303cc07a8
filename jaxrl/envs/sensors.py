"""Describes sensors in messages and in the rest of jaxrl, where images are (channels, height, width).

Unity packages from 3.0 on send images so; earlier ones send (height, width, channels). The dimension properties mark
height and width as translationally equivariant. Where a sensor marks nothing, the package's version decides.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

_COMPRESSION_NONE = 0
_MOVES, _FIXED = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE, DimensionProperty.NONE
IMAGE_PROPERTIES = (_FIXED, _MOVES, _MOVES)
IMAGE_PROPERTIES_LAST = (_MOVES, _MOVES, _FIXED)
_CHANNELS_FIRST_SINCE, _DIGITS = 3, 9  # version of the package; largest number of digits of a major version
_CHANNELS_FIRST = [False, True, True]
_CHANNELS_LAST = [True, True, False]


class SensorError(ValueError):
    """A sensor whose announcement cannot be read; the reader adds the behavior."""


class WireSensor(NamedTuple):
    """Sensor of a behavior: its spec, and its form in messages."""

    spec: ObservationSpec  # after decoding
    shape: tuple[int, ...]  # in messages
    channels_last: bool = False  # images in messages are (H, W, C)
    is_image: bool = False


class WireSpec(NamedTuple):
    """Behavior: sensors in the order of the messages."""

    sensors: tuple[WireSensor, ...]
    action: ActionSpec

    @property
    def behavior(self) -> BehaviorSpec:
        """Spec after decoding."""
        return BehaviorSpec(tuple(sensor.spec for sensor in self.sensors), self.action)


def is_compressed(observation: Any) -> bool:
    """Return whether an `ObservationProto` holds PNGs."""
    return observation.compression_type != _COMPRESSION_NONE


def unmarked_last(package_version: str) -> bool:
    """Return whether unmarked images are (H, W, C): in packages before 3.0, and if the version is unreadable."""
    major = package_version.partition(".")[0]
    return not (major.isdecimal() and len(major) < _DIGITS and int(major) >= _CHANNELS_FIRST_SINCE)


def announced(observation: Any, unmarked_last: bool = True) -> WireSensor:
    """Return the sensor of an `ObservationProto`, the behavior's first: one that comes as PNG is uint8 for the run.

    Raises:
        SensorError: as `wire_sensor`.
        ValueError: an unknown dimension property or type.
    """
    properties = observation.dimension_properties or [DimensionProperty.UNSPECIFIED] * len(observation.shape)
    spec = ObservationSpec(
        name=observation.name,
        shape=tuple(observation.shape),
        dimension_property=tuple(DimensionProperty(number) for number in properties),
        observation_type=ObservationType(observation.observation_type),
        dtype="uint8" if is_compressed(observation) else "float32",
    )
    return wire_sensor(spec, unmarked_last)


def wire_sensor(sensor: ObservationSpec, unmarked_last: bool = True) -> WireSensor:
    """Return a sensor as it is after decoding, from its shape and properties in messages.

    `unmarked_last`: an image that marks no axis is (H, W, C).

    Raises:
        SensorError: it is compressed, and its sides do not show its channels.
    """
    moves = [number == _MOVES for number in sensor.dimension_property]
    marked = any(sensor.dimension_property)
    is_image = len(sensor.shape) == 3 and (not marked or moves in (_CHANNELS_FIRST, _CHANNELS_LAST))
    if not is_image:
        if sensor.dtype == "uint8":
            names = [number.name for number in sensor.dimension_property]
            raise SensorError(
                f"sensor {sensor.name!r} sends PNG, but its shape {sensor.shape} with the dimension properties {names} "
                "does not tell height, width and channels; give it those of a camera"
            )
        return WireSensor(sensor, sensor.shape)
    last = moves == _CHANNELS_LAST if marked else unmarked_last
    shape = (sensor.shape[2], *sensor.shape[:2]) if last else sensor.shape
    spec = sensor._replace(shape=shape, dimension_property=IMAGE_PROPERTIES)
    return WireSensor(spec, sensor.shape, channels_last=last, is_image=True)
