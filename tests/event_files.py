"""Reading TensorBoard's event files back."""

from __future__ import annotations

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] made at import
from tensorboardX.record_writer import masked_crc32c


def read_events(path: Path) -> list[Event]:
    """Every event of a file: [length u64][crc u32][event][crc u32], both checksums compared."""
    data, events = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        header, body, tail = struct.unpack("<I", data[8:12])[0], data[12 : 12 + size], data[12 + size : 16 + size]
        assert header == masked_crc32c(data[:8]) and struct.unpack("<I", tail)[0] == masked_crc32c(body)
        events.append(Event.FromString(body))
        data = data[16 + size :]
    return events
