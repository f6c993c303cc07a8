"""Decode compressed camera observations: one or more PNGs, one after the other, for one sensor of one agent."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from jaxrl.types import DimensionProperty, ObservationSpec

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER_BYTES = 33  # signature, and IHDR with its length, type and CRC
_MOVES = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE


class ImageError(ValueError):
    """The bytes are no image, or not the image that the sensor announced."""


def channel_axis(sensor: ObservationSpec) -> int:
    """Axis of the channels: 0 in (C, H, W) of Unity packages 3 and later, 2 in (H, W, C) of earlier ones.

    Height and width are marked as translationally equivariant. Packages that mark nothing are older than both.

    Raises:
        ImageError: the properties fit neither order.
    """
    moves = [number == _MOVES for number in sensor.dimension_property]
    if moves == [False, True, True]:
        return 0
    if moves == [True, True, False] or not any(sensor.dimension_property):
        return 2
    names = [number.name for number in sensor.dimension_property]
    raise ImageError(f"cannot tell the channel axis of shape {sensor.shape} from the dimension properties {names}")


def decode_png(data: bytes, shape: tuple[int, ...], axis: int, mapping: tuple[int, ...] = ()) -> np.ndarray:
    """Image of one agent.

    Without a mapping the channels of all PNGs are joined and those beyond the sensor's are dropped; a sensor of one
    channel is the mean of the first PNG's channels. With a mapping, sensor channel c is the mean of all image channels
    that the mapping sends to c; -1 drops an image channel.

    Args:
        data: PNG files, one after the other.
        shape: of the sensor, in its axis order.
        axis: of the channels in `shape`, 0 or 2.
        mapping: sensor channel of each image channel, or empty.

    Returns:
        float32 `shape`, values 0 to 1 (bytes / 255).

    Raises:
        ImageError: broken data, or another size or number of channels than expected.
    """
    height_width = tuple(size for number, size in enumerate(shape) if number != axis)
    images = []
    for part in _split(data):
        _check_size(part, height_width, shape)
        images.append(_open(part))
    channels = _map(images, mapping) if mapping else _take(images, shape[axis])
    if channels.shape[2] != shape[axis]:
        raise ImageError(f"{channels.shape[2]} image channels, expected {shape[axis]} from shape {shape}")
    return np.moveaxis(channels, 2, axis)


def _split(data: bytes) -> list[bytes]:
    """Cut after each IEND chunk. A chunk is its length (4 bytes, big-endian), its type (4), the data and a CRC (4)."""
    parts = []
    start = 0
    while start < len(data):
        if not data.startswith(_SIGNATURE, start):
            raise ImageError(f"no PNG at byte {start} of {len(data)} of the compressed observation")
        end = _end_of_png(data, start + len(_SIGNATURE))
        parts.append(data[start:end])
        start = end
    if not parts:
        raise ImageError("the compressed observation is empty")
    return parts


def _end_of_png(data: bytes, position: int) -> int:
    while position + 12 <= len(data):
        kind = data[position + 4 : position + 8]
        position += 12 + int.from_bytes(data[position : position + 4], "big")
        if kind == b"IEND":
            return position
    raise ImageError(f"the PNG is cut off after {len(data)} bytes")


def _open(part: bytes) -> np.ndarray:
    """Uint8 [height, width, channels] of one PNG file."""
    try:
        with Image.open(io.BytesIO(part), formats=["PNG"]) as image:
            pixels = np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:
        raise ImageError(f"broken PNG: {error}") from error
    if pixels.dtype != np.uint8:
        raise ImageError(f"PNG with {pixels.dtype} pixels, expected 8 bits per channel")
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _check_size(part: bytes, height_width: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Before a picture is unpacked, which may need any amount of memory.

    The first chunk of a PNG is IHDR: its data begin with width and height, 4 bytes each, big-endian.
    """
    if len(part) < _HEADER_BYTES or part[12:16] != b"IHDR":
        raise ImageError("broken PNG: it does not begin with its header")
    found = int.from_bytes(part[20:24], "big"), int.from_bytes(part[16:20], "big")
    if found != height_width:
        raise ImageError(f"PNG of (height, width) {found}, expected {height_width} from shape {shape}")


def _take(images: list[np.ndarray], count: int) -> np.ndarray:
    """Float32 [height, width, channels]: the first `count` channels, or grey if one is wanted."""
    if count == 1:
        return _scale(images[0]).mean(axis=2, keepdims=True)
    return _scale(np.concatenate(images, axis=2)[..., :count])


def _map(images: list[np.ndarray], mapping: tuple[int, ...]) -> np.ndarray:
    """Float32 [height, width, channels]: mean of the image channels that go to each sensor channel."""
    pixels = _scale(np.concatenate(images, axis=2))
    if len(mapping) != pixels.shape[2]:
        raise ImageError(f"channel mapping {mapping} for {pixels.shape[2]} image channels: lengths must be equal")
    wanted = {number for number in mapping if number > -1}
    if wanted != set(range(len(wanted))):
        raise ImageError(f"channel mapping {mapping} must use each of 0 .. {max(wanted, default=0)} and -1 to drop")
    sources = np.array(mapping)
    return np.stack([pixels[..., sources == number].mean(axis=2) for number in sorted(wanted)], axis=2)


def _scale(pixels: np.ndarray) -> np.ndarray:
    return np.divide(pixels, np.float32(255), dtype=np.float32)
