"""Serves the player's side channels: reads environment parameters and engine configuration, writes statistics.

Frame: channel id (16 bytes, little-endian form of the UUID), int32 length, payload; several one after the other.
Numbers are little-endian, a string is int32 length + ASCII.
"""

from __future__ import annotations

import logging
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxrl.envs.parameters import Draw, drawing
from jaxrl.types import EnvironmentStat, JaxrlError, ParameterValue, SamplerSpec

PARAMETERS = uuid.UUID("534c891e-810f-11ea-a9d0-822485860400")
ENGINE = uuid.UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
STATS = uuid.UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")
TRAINING_ANALYTICS = uuid.UUID("b664a4a9-d86f-5a5f-95cb-e8353a7e8356")
_ENGINE_FORMATS = {
    0: ("resolution", "<ii"),
    1: ("quality level", "<i"),
    2: ("time scale", "<f"),
    3: ("target frame rate", "<i"),
    4: ("capture frame rate", "<i"),
}
_UNIFORM, _GAUSSIAN, _MULTIRANGE = 0, 1, 2
_logger = logging.getLogger(__name__)


class PlayerChannels:
    """Settings from the trainer so far. `engine`: the engine configuration, which has no effect without graphics."""

    def __init__(self, usual: Mapping[str, float]) -> None:
        """Begin with `usual`: every environment parameter that the environment knows, with its default value."""
        self._usual = dict(usual)
        self._draw: dict[str, Draw] = {name: drawing(value) for name, value in usual.items()}
        self._next: dict[str, np.ndarray] = {}  # float32 [E], of each area's next episode
        self._warned: set[object] = set()
        self.engine: dict[str, tuple[float, ...]] = {}

    def receive(self, data: bytes) -> None:
        """Read all frames of one message. Unknown channels and parameters are reported once and ignored.

        Raises:
            JaxrlError: a frame is cut off or a payload cannot be read.
        """
        for channel, payload in frames(data, JaxrlError):
            try:
                self._take(channel, payload)
            except (struct.error, UnicodeDecodeError, ValueError) as error:
                raise JaxrlError(f"side channel {channel}: cannot read {len(payload)} bytes: {error}") from error

    def draw(self, areas: int) -> dict[str, np.ndarray]:
        """Return one value of each parameter for each area, float32 [E]; constant, or drawn by its sampler.

        They are those of the area's next episode. They stay until `begun` reports its beginning, or another sampler or
        number is set: the n-th draw is that of the n-th episode; areas that begin together draw in their order.
        """
        self._next |= {name: draw(areas) for name, draw in self._draw.items() if name not in self._next}
        return {name: values.copy() for name, values in self._next.items()}

    def begun(self, over: np.ndarray) -> None:
        """Draw anew for areas (bool [E]) that have begun an episode with their last values."""
        count = int(np.count_nonzero(over))
        for name, values in self._next.items() if count else ():
            values[over] = self._draw[name](count)

    def _take(self, channel: uuid.UUID, payload: bytes) -> None:
        if channel == PARAMETERS:
            self._set_parameter(payload)
        elif channel == ENGINE:
            kind = struct.unpack_from("<i", payload)[0]
            if kind not in _ENGINE_FORMATS:
                raise ValueError(f"unknown kind {kind}, expected one of {sorted(_ENGINE_FORMATS)}")
            name, layout = _ENGINE_FORMATS[kind]
            self.engine[name] = struct.unpack_from(layout, payload, 4)
        elif channel != TRAINING_ANALYTICS:  # telemetry for the engine's maker, ignored
            self._warn_once(channel, "data of unknown side channel %s is ignored")

    def _set_parameter(self, payload: bytes) -> None:
        (length,) = struct.unpack_from("<i", payload)
        if not 0 <= length <= len(payload) - 8:
            raise ValueError(f"name of {length} bytes")
        name = payload[4 : 4 + length].decode("ascii")
        draw = drawing(_read_value(payload, 4 + length))
        if name in self._usual:
            self._draw[name] = draw
            self._next.pop(name, None)
        else:
            self._warn_once(name, f"environment parameter %r is ignored; this environment knows {sorted(self._usual)}")

    def _warn_once(self, what: object, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _logger.warning(text, what)


def pack_stats(stats: Sequence[EnvironmentStat]) -> bytes:
    """Return frames of the statistics channel: name, value (float32), aggregation (int32), in the given order."""
    frames = []
    for stat in stats:
        name = stat.name.encode("ascii")
        payload = struct.pack(f"<i{len(name)}sfi", len(name), name, stat.value, stat.aggregation)
        frames.append(STATS.bytes_le + struct.pack("<i", len(payload)) + payload)
    return b"".join(frames)


def frames(data: bytes, cut: type[JaxrlError]) -> Iterator[tuple[uuid.UUID, bytes]]:
    """Yield channel and payload of each frame of one message. Raises `cut` where a frame is cut off."""
    offset = 0
    while offset < len(data):
        start = offset + 20
        length = struct.unpack_from("<i", data, offset + 16)[0] if start <= len(data) else -1
        if length < 0 or start + length > len(data):
            raise cut(f"side-channel data of {len(data)} bytes is cut off in the frame at byte {offset}")
        yield uuid.UUID(bytes_le=data[offset : offset + 16]), data[start : start + length]
        offset = start + length


def _read_value(payload: bytes, offset: int) -> ParameterValue:
    """Read a number (int32 0, float32) or a sampler (int32 1, int32 seed, int32 kind, float32 values)."""
    (is_sampler,) = struct.unpack_from("<i", payload, offset)
    if is_sampler not in (0, 1):
        raise ValueError(f"unknown data type {is_sampler}, expected 0 (number) or 1 (sampler)")
    if not is_sampler:
        return float(struct.unpack_from("<f", payload, offset + 4)[0])
    seed, kind = struct.unpack_from("<ii", payload, offset + 4)
    if kind == _MULTIRANGE:
        (count,) = struct.unpack_from("<i", payload, offset + 12)
        return SamplerSpec("multirangeuniform", struct.unpack_from(f"<{count}f", payload, offset + 16), seed)
    values = struct.unpack_from("<ff", payload, offset + 12)
    if kind == _UNIFORM:
        return SamplerSpec("uniform", values, seed)
    if kind == _GAUSSIAN:
        return SamplerSpec("gaussian", values, seed)
    raise ValueError(f"unknown sampler {kind}, expected 0 (uniform), 1 (gaussian) or 2 (multirange)")
