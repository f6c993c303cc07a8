"""Pictures as a Unity player sends them: PNG files, one for each three channels, one after the other."""

from __future__ import annotations

import struct
import zlib

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")  # width, height, bits of a channel, kind of colour, three methods
_BITS = 8
_KINDS = {1: 0, 3: 2}  # of colour by number of channels: grey, and red with green and blue
_STORED = 0  # of zlib's levels: they travel within a machine, where packing costs more than it saves
_CHANNELS = 3  # of one file; 1 if there is one in all


def channel_mapping(channels: int) -> list[int]:
    """Sensor channel of each channel of all files, -1 for those that fill the last one; empty: as they come."""
    if channels in (1, _CHANNELS):
        return []
    return [*range(channels), *[-1] * (-channels % _CHANNELS)]


def encode_png(images: np.ndarray) -> list[bytes]:
    """The files of each of N agents, joined. `images`: uint8 [N, H, W, C], any C."""
    count, height, width, channels = images.shape
    missing = 0 if channels == 1 else -channels % _CHANNELS
    if missing:
        images = np.concatenate([images, np.zeros((count, height, width, missing), np.uint8)], axis=3)
    step = 1 if channels == 1 else _CHANNELS
    parts = [_files(images[..., first : first + step]) for first in range(0, images.shape[3], step)]
    return parts[0] if len(parts) == 1 else [b"".join(files) for files in zip(*parts, strict=True)]


def _files(images: np.ndarray) -> list[bytes]:
    """One file for each of N agents, uint8 [N, H, W, C] with C = 1 or 3. Each line begins with the filter 0: none."""
    count, height, width, channels = images.shape
    header = _HEADER.pack(width, height, _BITS, _KINDS[channels], 0, 0, 0)
    before, after = _SIGNATURE + _chunk(b"IHDR", header), _chunk(b"IEND", b"")
    lines = np.zeros((count, height, 1 + width * channels), np.uint8)
    lines[:, :, 1:] = images.reshape(count, height, width * channels)
    return [before + _chunk(b"IDAT", zlib.compress(picture.tobytes(), _STORED)) + after for picture in lines]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return b"".join((struct.pack(">I", len(data)), kind, data, struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))))
