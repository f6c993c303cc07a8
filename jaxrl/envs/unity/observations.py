"""Decodes observations to arrays: one per sensor, for all agents of one behavior in one message.

A `FloatData` message serializes to one tag byte, the length as a varint and the packed little-endian floats, so the
parts of all agents, joined, are one strided buffer: no number is ever a Python object (`benchmarks/decode.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from jaxrl.envs.sensors import WireSensor, is_compressed
from jaxrl.envs.unity.images import ImageError, decode_alike, decode_png
from jaxrl.types import DimensionProperty

_LARGE = 8192  # bytes of one observation
_BRIGHTEST = np.float32(255)
_WHOLE = 1e-3  # of 1 / 255: largest distance of a number from a whole one; rounding to float32 moves it by 2e-5


class AgentError(ValueError):
    """Invalid data of agent number `row` of the message; the reader adds the names of agent and behavior."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


def decode_sensors(infos: Sequence[Any], sensors: tuple[WireSensor, ...]) -> tuple[np.ndarray, ...]:
    """Return one [N, *shape] per sensor, of the sensor's dtype, for N `AgentInfoProto`s; images are [N, C, H, W].

    Raises:
        AgentError: a missing sensor, a wrong shape, a broken image, or a number that is not finite.
    """
    observations = [info.observations for info in infos]
    expected = len(sensors)
    counts = list(map(len, observations))
    row = first_other(counts, expected)
    if row is not None:
        hint = "all agents of a behavior need the same sensors"
        raise AgentError(row, f"all sensors: expected {expected} observations, received {counts[row]}; {hint}")
    return tuple(
        _decode_sensor(f"sensor {index} ({sensor.spec.name!r})", sensor, [of_agent[index] for of_agent in observations])
        for index, sensor in enumerate(sensors)
    )


def _decode_sensor(name: str, sensor: WireSensor, protos: list[Any]) -> np.ndarray:
    if len(sensor.shape) > 1:
        shape = list(sensor.shape)
        row = first_other([proto.shape == shape for proto in protos], True)
        if row is not None:
            raise _wrong_shape(row, name, sensor, protos[row])
    if not sensor.is_image:
        return _finite_floats(name, sensor, protos)
    compressed = [is_compressed(proto) for proto in protos]
    if not any(compressed) and sensor.spec.dtype == "float32":
        return _channels_first(sensor, _finite_floats(name, sensor, protos))
    array = np.empty((len(protos), *sensor.spec.shape), sensor.spec.dtype)
    if array.dtype == np.uint8 and all(compressed) and _decode_alike(protos, array):
        return array
    for row, (proto, is_png) in enumerate(zip(protos, compressed, strict=True)):
        if is_png:
            _decode_image(row, name, proto, array[row])
        else:
            floats = _finite_floats(name, sensor, [proto], row)
            array[row] = _in_dtype(row, name, sensor, _channels_first(sensor, floats)[0])
    return array


def _decode_alike(protos: list[Any], images: np.ndarray) -> bool:
    """Decode all images at once if they are alike; return False if nothing was decoded."""
    if not protos:
        return False
    mapping = protos[0].compressed_channel_mapping
    alike = all(proto.compressed_channel_mapping == mapping for proto in protos)
    return alike and decode_alike([proto.compressed_data for proto in protos], images, tuple(mapping))


def _decode_image(row: int, name: str, proto: Any, image: np.ndarray) -> None:
    """Write into `image` [C, H, W], which is uint8, or float32 if the behavior's first agent sent floats."""
    pixels = image if image.dtype == np.uint8 else np.empty(image.shape, np.uint8)
    try:
        decode_png(proto.compressed_data, pixels, tuple(proto.compressed_channel_mapping))
    except ImageError as error:
        raise AgentError(row, f"{name}: {error}") from error
    if pixels is not image:
        np.divide(pixels, _BRIGHTEST, out=image)


def _in_dtype(row: int, name: str, sensor: WireSensor, floats: np.ndarray) -> np.ndarray:
    """Return floats of an agent whose sensor came as PNG from the first agent: exact as whole 255ths, or refused."""
    if sensor.spec.dtype == "float32":
        return floats
    scaled = floats * _BRIGHTEST
    whole = np.rint(scaled)
    if np.abs(scaled - whole).max(initial=0) > _WHOLE or whole.min(initial=0) < 0 or whole.max(initial=0) > _BRIGHTEST:
        raise AgentError(
            row,
            f"{name}: sends numbers that are no 255ths, and the behavior's first agent sent PNG; "
            "choose the same compression for all agents and the whole run",
        )
    return whole


def _channels_first(sensor: WireSensor, images: np.ndarray) -> np.ndarray:
    """Return images as [N, C, H, W]."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)) if sensor.channels_last else images


def _finite_floats(name: str, sensor: WireSensor, protos: list[Any], first_row: int = 0) -> np.ndarray:
    """Return float32 [N, *shape on the wire]; `first_row` counts in error texts."""
    array = _decode_floats(name, sensor, protos, first_row)
    check_finite(name, array, first_row)
    return array


def _decode_floats(name: str, sensor: WireSensor, protos: list[Any], first_row: int) -> np.ndarray:
    """Return float32 [N, *shape on the wire] from the serialized form of each agent's numbers."""
    payload = 4 * prod(sensor.shape)
    length = _encoded_size(payload)
    if payload >= _LARGE:
        return _copy_row_by_row(name, sensor, protos, first_row)
    parts = [proto.float_data.SerializeToString() for proto in protos]
    row = first_other(list(map(len, parts)), length)
    if row is not None:
        raise _wrong_shape(first_row + row, name, sensor, protos[row])
    rows = np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), length)
    # The copy drops the headers, aligns the floats and makes them writable.
    floats = rows[:, length - payload :].copy().view("<f4").astype(np.float32, copy=False)
    return floats.reshape(len(parts), *sensor.shape)


def _copy_row_by_row(name: str, sensor: WireSensor, protos: list[Any], first_row: int) -> np.ndarray:
    """Decode as `_decode_floats`, without two copies of the message, whose new memory costs more than the loop."""
    payload = 4 * prod(sensor.shape)
    length = _encoded_size(payload)
    array = np.empty((len(protos), payload // 4), np.float32)
    for row, proto in enumerate(protos):
        part = proto.float_data.SerializeToString()
        if len(part) != length:
            raise _wrong_shape(first_row + row, name, sensor, proto)
        array[row] = np.frombuffer(part, "<f4", offset=length - payload)
    return array.reshape(len(protos), *sensor.shape)


def _encoded_size(payload: int) -> int:
    """Return bytes of a packed field of `payload` bytes: tag, varint of the length, payload; 0 for an empty field."""
    if payload == 0:
        return 0
    return 1 + (payload.bit_length() + 6) // 7 + payload


def first_other(values: list[Any], expected: Any) -> int | None:
    """Return the index of the first value that is not `expected`, or None. Counting avoids a loop in the good case."""
    if values.count(expected) == len(values):
        return None
    return next(row for row, value in enumerate(values) if value != expected)


def check_finite(name: str, values: np.ndarray, first_row: int = 0) -> None:
    """Raise `AgentError` if a number in `values` [N, ...] is NaN or infinite; its row counts from `first_row`."""
    finite = np.isfinite(values)
    if finite.all():
        return
    position = np.unravel_index(int(np.argmin(finite)), values.shape)
    hint = "mend the environment's code"
    raise AgentError(first_row + int(position[0]), f"{name}: {values[position]} is not a finite number; {hint}")


def _wrong_shape(row: int, name: str, sensor: WireSensor, proto: Any) -> AgentError:
    shape = tuple(proto.shape)
    numbers = "an image" if is_compressed(proto) else f"{len(proto.float_data.data)} numbers"
    hint = "all agents of a behavior must send the same shape for the whole run"
    if sensor.is_image and len(shape) == len(sensor.shape):
        hint = "a camera or grid must keep its size, and all agents of a behavior have the same, for the whole run"
    elif DimensionProperty.VARIABLE_SIZE in sensor.spec.dimension_property and shape[1:] == sensor.shape[1:]:
        hint = f"at most {sensor.shape[0]} entities fit: append fewer, or raise the sensor's maximum before the run"
    return AgentError(row, f"{name}: expected shape {sensor.shape}, received {shape} with {numbers}; {hint}")
