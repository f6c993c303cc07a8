"""Decodes compressed camera observations: one or more PNGs, one after the other, for one sensor of one agent.

Pictures stay whole numbers of one byte, 0 to 255 for 0 to 1, and become (channels, height, width) here.
"""

from __future__ import annotations

import io
import struct
import zlib
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from PIL import Image

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER_BYTES = 33  # signature, and IHDR with its length, type and CRC
_HEADER = struct.Struct(">IIBBBBB")  # width, height, bits of a channel, kind of colour, three methods
_BLOCK = 0xFFFF  # largest number of bytes of a stored block
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by kind of colour
_MODES = ("L", "LA", "RGB", "RGBA")  # 8 bits for each of 1, 2, 3, 4 channels


class ImageError(ValueError):
    """The bytes are no image, or not the image that the sensor announced."""


class _Plan(NamedTuple):
    """Targets of the channels of all images of one observation."""

    sources: tuple[tuple[int, ...], ...]  # for each sensor channel: the image channels whose mean it is
    straight: bool  # sensor channel c is image channel c, for all c


def decode_png(data: bytes, image: np.ndarray, mapping: tuple[int, ...] = ()) -> None:
    """Write the picture of one agent into `image`, uint8 [C, H, W].

    Without a mapping the channels of all PNGs are joined and surplus ones are dropped; a sensor of one channel is the
    mean of the first PNG's channels. With a mapping, sensor channel c is the mean of all image channels that the
    mapping sends to c; -1 drops an image channel. A mean is rounded to the nearest whole number (a half goes up): at
    most 0.5 / 255 from ML-Agents' mean, for a quarter of the memory and of the transfers.

    Args:
        data: PNG files, one after the other.
        image: target of the picture; its shape is the sensor's.
        mapping: sensor channel of each image channel, or empty.

    Raises:
        ImageError: broken data, or another size or number of channels than expected.
    """
    parts = _split(data)
    for part in parts:
        _check_size(part, image.shape)
    if len(parts) == 1:
        pixels = _pixels(parts[0])
        plan = _plan(mapping, pixels.shape[2], pixels.shape[2], len(image))
    else:
        pictures = [_pixels(part) for part in parts]
        pixels = np.concatenate(pictures, axis=2)
        plan = _plan(mapping, pixels.shape[2], pictures[0].shape[2], len(image))
    planes = pixels.transpose(2, 0, 1)
    if plan.straight:
        image[...] = planes[: len(image)]
        return
    for channel, sources in zip(image, plan.sources, strict=True):
        channel[...] = planes[sources[0]] if len(sources) == 1 else _mean(planes[list(sources)])


def decode_alike(files: list[bytes], images: np.ndarray, mapping: tuple[int, ...] = ()) -> bool:
    """Write the pictures of N agents into `images`, uint8 [N, C, H, W], all at once, as jaxrl's players send them.

    The files must be stored, not packed, and differ in their pixels alone. Return False, without a reason, if anything
    is different: `decode_png` then finds the fault, picture by picture.
    """
    places = _stored_places(files[0], images.shape[2:])
    if not places or any(len(file) != len(files[0]) for file in files):
        return False
    channels = [place.channels for place in places]
    try:
        straight = _plan(mapping, sum(channels), channels[0], images.shape[1]).straight
    except ImageError:
        return False
    rows = np.frombuffer(b"".join(files), np.uint8).reshape(len(files), -1)
    pictures = []
    for place in places:
        around = rows[:, place.begin : place.start], rows[:, place.end + 8 : place.over]
        lines = rows[:, place.start : place.end].reshape(len(rows), images.shape[2], -1)
        if any((part != part[:1]).any() for part in around) or lines[:, :, 0].any():
            return False
        sums = [zlib.crc32(memoryview(file)[place.begin + 37 : place.end + 4]) for file in files]
        checksums = rows[:, place.end + 4 : place.end + 8].copy().view(">u4")[:, 0]
        if sums != checksums.tolist():
            return False
        pictures.append(lines[:, :, 1:].reshape(*lines.shape[:2], -1, place.channels))
    if straight:
        pixels = pictures[0] if len(pictures) == 1 else np.concatenate(pictures, axis=3)
        images[...] = pixels.transpose(0, 3, 1, 2)[:, : images.shape[1]]
    return straight


class _Place(NamedTuple):
    """Place of a stored picture in its file, in bytes."""

    begin: int
    start: int  # of the lines
    end: int
    over: int  # of the whole PNG
    channels: int


def _stored_places(file: bytes, size: tuple[int, ...]) -> list[_Place]:
    """Return the places of one sensor's PNGs, if each is a stored block of lines, `size`: height and width; else []."""
    places, begin = [], 0
    while begin < len(file):
        if len(file) < begin + 48 or not file.startswith(_SIGNATURE, begin):
            return []
        width, height, bits, kind, _, _, interlace = _HEADER.unpack_from(file, begin + 16)
        channels = _CHANNELS.get(kind, 0)
        length, start = height * (1 + width * channels), begin + 48
        stored = struct.pack("<BHH", 1, length, length ^ _BLOCK) if length <= _BLOCK else b""
        chunk_head = int.from_bytes(file[begin + 33 : begin + 37], "big"), file[begin + 37 : begin + 41]
        end = start + length
        plain = bits == 8 and not interlace and (height, width) == size and chunk_head == (length + 11, b"IDAT")
        if not channels or not plain or file[begin + 43 : start] != stored or file[end + 12 : end + 16] != b"IEND":
            return []
        places.append(_Place(begin, start, end, end + 20, channels))
        begin = end + 20
    return places


def _mean(planes: np.ndarray) -> np.ndarray:
    """Return uint8 [H, W]: the mean of uint8 [K, H, W] to the nearest whole number."""
    count = np.uint32(len(planes))
    return ((2 * planes.sum(axis=0, dtype=np.uint32) + count) // (2 * count)).astype(np.uint8)


@lru_cache(maxsize=256)
def _plan(mapping: tuple[int, ...], channels: int, of_first: int, wanted: int) -> _Plan:
    """Plan for `channels` in all images, `of_first` in the first one, `wanted` by the sensor."""
    if mapping:
        count, sources = _mapped(mapping, channels)
    elif wanted == 1:
        count, sources = 1, (tuple(range(of_first)),)
    else:
        count = min(channels, wanted)
        sources = tuple((channel,) for channel in range(count))
    if count != wanted:
        raise ImageError(f"{count} image channels, expected {wanted}")
    return _Plan(sources, straight=sources == tuple((channel,) for channel in range(wanted)))


def _mapped(mapping: tuple[int, ...], channels: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Return the number of sensor channels that the mapping fills, and the image channels of each."""
    if len(mapping) != channels:
        raise ImageError(f"channel mapping {mapping} for {channels} image channels: lengths must be equal")
    targets = {number for number in mapping if number > -1}
    if targets != set(range(len(targets))):
        raise ImageError(f"channel mapping {mapping} must use each of 0 .. {max(targets, default=0)} and -1 to drop")
    by_target = (tuple(i for i, target in enumerate(mapping) if target == wanted) for wanted in range(len(targets)))
    return len(targets), tuple(by_target)


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
    """Return the end of a PNG. Raises ImageError for a second header, whose size is unchecked: readers use the last."""
    begin = position
    while position + 12 <= len(data):
        kind = data[position + 4 : position + 8]
        if kind == b"IHDR" and position > begin:
            raise ImageError("broken PNG: it has two headers")
        position += 12 + int.from_bytes(data[position : position + 4], "big")
        if kind == b"IEND":
            return position
    raise ImageError(f"the PNG is cut off after {len(data)} bytes")


def _pixels(part: bytes) -> np.ndarray:
    """Return one PNG file as uint8 [height, width, channels]; a plain one in a third of Pillow's time.

    Plain: 8 bits a channel, no palette, lines one after the other in one IDAT chunk, none of them filtered, as jaxrl's
    players write them; a line begins with the number of its filter, 0 for none. Raises ImageError.
    """
    width, height, bits, kind, _, _, interlace = _HEADER.unpack_from(part, 16)
    channels, end = _CHANNELS.get(kind), 41 + int.from_bytes(part[33:37], "big")
    one_chunk = part[37:41] == b"IDAT" and part[end + 8 : end + 12] == b"IEND"
    if channels is None or bits != 8 or interlace or not one_chunk:
        return _open(part)
    line, unpack = 1 + width * channels, zlib.decompressobj()
    try:
        if unpack.decompress(part[41:end], 1) != b"\0":
            return _open(part)
        content = b"\0" + unpack.decompress(unpack.unconsumed_tail, line * height)
    except zlib.error as error:
        raise ImageError(f"broken PNG: {error}") from error
    if zlib.crc32(part[37:end]) != int.from_bytes(part[end : end + 4], "big"):
        raise ImageError("broken PNG: its data are not those of its checksum")
    if not unpack.eof or len(content) != line * height:
        raise ImageError(f"broken PNG: its data are not {height} lines of {line} bytes")
    lines = np.frombuffer(content, np.uint8).reshape(height, line)
    return _open(part) if lines[:, 0].any() else lines[:, 1:].reshape(height, width, channels)


def _open(part: bytes) -> np.ndarray:
    """Return any PNG file as `_pixels` does. Raises ImageError."""
    try:
        with Image.open(io.BytesIO(part), formats=["PNG"]) as image:
            pixels, mode = np.asarray(image), image.mode
    except (OSError, SyntaxError, ValueError) as error:
        raise ImageError(f"broken PNG: {error}") from error
    if mode not in _MODES:
        raise ImageError(f"PNG of kind {mode}, expected 8 bits for each of 1 to 4 channels, without a palette")
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _check_size(part: bytes, shape: tuple[int, ...]) -> None:
    """Check the size of a picture before it is unpacked, which may need any amount of memory. `shape`: [C, H, W].

    The first chunk of a PNG is IHDR: its data begin with width and height, 4 bytes each, big-endian.
    """
    if len(part) < _HEADER_BYTES or part[12:16] != b"IHDR":
        raise ImageError("broken PNG: it does not begin with its header")
    size = int.from_bytes(part[20:24], "big"), int.from_bytes(part[16:20], "big")
    if size != shape[1:]:
        raise ImageError(f"PNG of (height, width) {size}, expected {shape[1:]}; a camera keeps its size for a run")
