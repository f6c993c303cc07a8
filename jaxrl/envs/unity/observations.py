"""Arrays of observations: one per sensor, for all agents of one behavior in one message.

A `FloatData` message serializes to one tag byte, the length as a varint and the packed little-endian floats, so the
parts of all agents, joined, are one strided buffer: no number is ever a Python object (`benchmarks/decode.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from jaxrl.envs.unity.images import ImageError, channel_axis, decode_png
from jaxrl.types import BehaviorSpec, ObservationSpec

_COMPRESSION_NONE = 0
_LARGE = 8192  # bytes of one observation


class AgentError(ValueError):
    """Agent number `row` of the message sent something wrong; the reader adds the names of agent and behavior."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


class NotFiniteError(AgentError):
    """It sent a number that is not finite."""


def decode_sensors(infos: Sequence[Any], spec: BehaviorSpec) -> tuple[np.ndarray, ...]:
    """One float32 [N, *shape] per sensor of `spec`, N being the number of `AgentInfoProto`s; images are 0 to 1.

    Raises:
        AgentError: a missing sensor, a wrong shape, a broken image, or a number that is not finite.
    """
    observations = [info.observations for info in infos]
    expected = len(spec.observations)
    counts = list(map(len, observations))
    row = first_other(counts, expected)
    if row is not None:
        hint = "all agents of a behavior need the same sensors"
        raise AgentError(row, f"all sensors: expected {expected} observations, received {counts[row]}; {hint}")
    arrays = []
    for index, sensor in enumerate(spec.observations):
        name = f"sensor {index} ({sensor.name!r})"
        array = _decode_sensor(name, sensor, [of_agent[index] for of_agent in observations])
        check_finite(name, array)
        arrays.append(array)
    return tuple(arrays)


def _decode_sensor(name: str, sensor: ObservationSpec, protos: list[Any]) -> np.ndarray:
    if len(sensor.shape) > 1:
        shape = list(sensor.shape)
        row = first_other([proto.shape == shape for proto in protos], True)
        if row is not None:
            raise _wrong_shape(row, name, sensor, protos[row])
    if len(sensor.shape) != 3:
        return _decode_floats(name, sensor, protos)
    compressed = [proto.compression_type != _COMPRESSION_NONE for proto in protos]
    if not any(compressed):
        return _decode_floats(name, sensor, protos)
    array = np.empty((len(protos), *sensor.shape), np.float32)
    for row, (proto, is_image) in enumerate(zip(protos, compressed, strict=True)):
        if is_image:
            array[row] = _decode_image(row, name, sensor, proto)
        else:
            array[row] = _decode_floats(name, sensor, [proto], first_row=row)[0]
    return array


def _decode_image(row: int, name: str, sensor: ObservationSpec, proto: Any) -> np.ndarray:
    mapping = tuple(proto.compressed_channel_mapping)
    try:
        return decode_png(proto.compressed_data, sensor.shape, channel_axis(sensor), mapping)
    except ImageError as error:
        raise AgentError(row, f"{name}: {error}") from error


def _decode_floats(name: str, sensor: ObservationSpec, protos: list[Any], first_row: int = 0) -> np.ndarray:
    """Float32 [N, *shape] from the serialized form of each agent's numbers; `first_row` counts in error texts."""
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


def _copy_row_by_row(name: str, sensor: ObservationSpec, protos: list[Any], first_row: int) -> np.ndarray:
    """As `_decode_floats`, without the two copies of the whole message, whose fresh memory costs more than the loop."""
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
    """Bytes of a packed field of `payload` bytes: tag, varint of the length, payload; an empty field is left out."""
    if payload == 0:
        return 0
    return 1 + (payload.bit_length() + 6) // 7 + payload


def first_other(values: list[Any], expected: Any) -> int | None:
    """Index of the first value that is not `expected`, or None. Counting keeps the good case out of Python loops."""
    if values.count(expected) == len(values):
        return None
    return next(row for row, value in enumerate(values) if value != expected)


def check_finite(name: str, values: np.ndarray) -> None:
    """Raise `NotFiniteError` if a number in `values` [N, ...] is NaN or infinite."""
    finite = np.isfinite(values)
    if finite.all():
        return
    position = np.unravel_index(int(np.argmin(finite)), values.shape)
    hint = "mend the environment's code"
    raise NotFiniteError(int(position[0]), f"{name}: {values[position]} is not a finite number; {hint}")


def _wrong_shape(row: int, name: str, sensor: ObservationSpec, proto: Any) -> AgentError:
    numbers = "an image" if proto.compression_type != _COMPRESSION_NONE else f"{len(proto.float_data.data)} numbers"
    hint = "all agents of a behavior must send the same shape for the whole run"
    return AgentError(
        row, f"{name}: expected shape {sensor.shape}, received {tuple(proto.shape)} with {numbers}; {hint}"
    )
