"""Carries messages between the pool and one worker: a kind, small picklable facts and raw arrays, over one socket.

Pickling the dozen arrays of a result costs several times as much as moving their bytes, so only the table of dtypes and
shapes is pickled and the arrays travel as they lie in memory. Round trip for 48 agents x 40 floats (9 kB), lower
quartile on two cores: 73 us; bare bytes over a pipe 23, pickled records over a pipe 121 to 131, over shared memory 118;
for 1.2 MB: 313, 243, 6712 to 7975, 1337 (`python benchmarks/env_transport.py`). A socket instead of
`multiprocessing.Pipe` is as fast, and a peer that stops within a message runs into a time-out instead of blocking its
reader for ever.
"""

from __future__ import annotations

import pickle
import selectors
import socket
import struct
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from typing import Any, NamedTuple

import numpy as np

from jaxrl.types import Action, BehaviorMessage, DecisionSteps, EnvMessage, StepTiming, Taken, TerminalSteps

_HEADER = struct.Struct("<IQ")  # bytes of the pickled head, bytes of the arrays
_ALIGNMENT = 8
_PADDING = bytes(_ALIGNMENT)
_RECORD_ARRAYS = 5  # arrays of TerminalSteps, and of DecisionSteps, besides the observations
_TAKEN_ARRAYS = 3


class ChannelClosedError(Exception):
    """The other side has closed its end or died."""


class ChannelTimeoutError(Exception):
    """The other side stopped in the middle of a message, or reads none."""


class Message(NamedTuple):
    """Message in either direction; received arrays are writable views into one buffer."""

    kind: str
    facts: Any = None
    arrays: Sequence[np.ndarray] = ()


def pack(message: Message) -> list[Any]:
    """Return buffers that, sent one after the other, are the message; contiguous arrays are not copied.

    Raises:
        TypeError: an array holds Python objects.
    """
    table, body, size = [], [], 0
    for value in message.arrays:
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject:
            raise TypeError(f"an array of {message.kind!r} has dtype {array.dtype}; expected numbers or booleans")
        table.append((array.dtype.str, array.shape))
        if not array.nbytes:
            continue
        padding = -array.nbytes % _ALIGNMENT
        body.append(array)
        if padding:
            body.append(_PADDING[:padding])
        size += array.nbytes + padding
    head = pickle.dumps((message.kind, message.facts, table), protocol=5)
    head += _PADDING[: -len(head) % _ALIGNMENT]
    return [_HEADER.pack(len(head), size), head, *body]


def unpack(content: bytearray, head_size: int) -> Message:
    """Invert `pack`, without its first buffer."""
    kind, facts, table = pickle.loads(content)  # stops where the head ends
    arrays, offset = [], head_size
    for dtype, shape in table:
        array = np.ndarray(shape, dtype, content, offset)
        arrays.append(array)
        offset += array.nbytes + -array.nbytes % _ALIGNMENT
    return Message(kind=kind, facts=facts, arrays=arrays)


def to_bytes(message: Message) -> bytes:
    """Return the message as one piece of bytes."""
    return b"".join(pack(message))


def from_bytes(content: bytes) -> Message:
    """Invert `to_bytes`."""
    head_size, _ = _HEADER.unpack_from(content)
    return unpack(bytearray(memoryview(content)[_HEADER.size :]), head_size)


def through_bytes(message: Message) -> Message:
    """Return the message as the other side would get it, for inline environments."""
    return from_bytes(to_bytes(message))


def encode_result(result: EnvMessage) -> Message:
    """Return a result as a message; the receiver knows its worker and incarnation."""
    arrays: list[np.ndarray] = []
    behaviors = []
    for behavior, steps in result.steps.items():
        infos, taken = dict(steps.infos), steps.taken is not None
        behaviors.append((behavior, len(steps.ended.obs), len(steps.deciding.obs), infos, taken))
        for record in (steps.ended, steps.deciding):
            arrays += record[:_RECORD_ARRAYS]
            arrays += record.obs
        if steps.taken is not None:
            arrays += [steps.taken.agent_id, *steps.taken.action]
    facts = (
        behaviors,
        dict(result.new_specs),
        tuple(result.stats),
        result.seconds,
        dict(result.infos),
        tuple(result.timing),
        result.faults,
        dict(result.identities),
    )
    return Message(kind="result", facts=facts, arrays=arrays)


def decode_result(message: Message, worker: int, incarnation: int = 0) -> EnvMessage:
    """Invert `encode_result`."""
    behaviors, new_specs, stats, seconds, env_infos, timing, faults, identities = message.facts
    steps, first = {}, 0
    for behavior, ended_obs, deciding_obs, infos, has_taken in behaviors:
        ended = message.arrays[first : (first := first + _RECORD_ARRAYS + ended_obs)]
        deciding = message.arrays[first : (first := first + _RECORD_ARRAYS + deciding_obs)]
        taken = message.arrays[first : (first := first + _TAKEN_ARRAYS * has_taken)]
        steps[behavior] = BehaviorMessage(
            ended=TerminalSteps(*ended[:_RECORD_ARRAYS], obs=tuple(ended[_RECORD_ARRAYS:])),
            deciding=DecisionSteps(*deciding[:_RECORD_ARRAYS], obs=tuple(deciding[_RECORD_ARRAYS:])),
            infos=infos,
            taken=Taken(agent_id=taken[0], action=Action(*taken[1:])) if has_taken else None,
        )
    return EnvMessage(
        worker=worker,
        steps=steps,
        new_specs=new_specs,
        stats=stats,
        seconds=seconds,
        infos=env_infos,
        timing=StepTiming(*timing),
        incarnation=incarnation,
        faults=faults,
        identities=identities,
    )


def encode_actions(actions: Mapping[str, Action]) -> Message:
    """Return actions by behavior id as a message."""
    arrays = [array for action in actions.values() for array in action]
    return Message(kind="step", facts=tuple(actions), arrays=arrays)


def decode_actions(message: Message) -> dict[str, Action]:
    """Invert `encode_actions`."""
    pairs = zip(message.arrays[::2], message.arrays[1::2], strict=True)
    return {
        behavior: Action(continuous=continuous, discrete=discrete)
        for behavior, (continuous, discrete) in zip(message.facts, pairs, strict=True)
    }


class Channel:
    """End of a socket that carries whole messages.

    `patience` is the number of seconds that the other side may be silent within a message; None waits for ever, which
    only a worker may do: its parent can take minutes for an update, and the death of the parent ends the wait.
    """

    def __init__(self, end: socket.socket, patience: float | None) -> None:
        self._socket = end
        self._patience = patience
        self._header = bytearray(_HEADER.size)
        # The socket itself does not wait, which would ask the system twice for each piece.
        end.setblocking(patience is None)
        if end.family != getattr(socket, "AF_UNIX", None):
            # Without it a message that is sent in two pieces can wait for a delayed acknowledgement.
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """Return the socket's number, for `multiprocessing.connection.wait`."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send the whole message.

        Raises:
            ChannelClosedError: the other side is gone.
            ChannelTimeoutError: the other side reads nothing for `patience` seconds.
        """
        content = memoryview(b"".join(pack(message)))
        while content:
            try:
                content = content[self._socket.send(content) :]
            except BlockingIOError:
                self._wait(selectors.EVENT_WRITE)
            except OSError as error:
                raise ChannelClosedError from error

    def receive(self) -> Message:
        """Wait for a whole message.

        Raises:
            ChannelClosedError: the other side is gone, perhaps within a message.
            ChannelTimeoutError: nothing came for `patience` seconds.
        """
        return self._receive_from(0)

    def poll(self) -> Message | None:
        """Return the next message if it has begun to arrive (wait for its rest), else None. Raises as `receive`."""
        waits_for: list[Any] = [self]
        if self._patience is None and not connection.wait(waits_for, timeout=0):
            return None
        try:
            count = self._read(memoryview(self._header))
        except BlockingIOError:
            return None
        return self._receive_from(count)

    def close(self) -> None:
        """Close this end: the other side reads an end of file and stops."""
        self._socket.close()

    def _receive_from(self, count: int) -> Message:
        self._fill(memoryview(self._header)[count:])
        head_size, body_size = _HEADER.unpack(self._header)
        content = bytearray(head_size + body_size)
        self._fill(memoryview(content))
        return unpack(content, head_size)

    def _fill(self, target: memoryview) -> None:
        while target:
            try:
                target = target[self._read(target) :]
            except BlockingIOError:
                self._wait(selectors.EVENT_READ)

    def _wait(self, event: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, event)
            if not selector.select(self._patience):
                raise ChannelTimeoutError

    def _read(self, target: memoryview) -> int:
        try:
            count = self._receive_into(target)
        except BlockingIOError:
            raise
        except OSError as error:
            raise ChannelClosedError from error
        if not count:
            raise ChannelClosedError
        return count

    def _receive_into(self, target: memoryview) -> int:
        try:
            return self._socket.recv_into(target)
        except ConnectionResetError:
            # The other side has closed without reading all our data; data that it sent before are read after the reset.
            return self._socket.recv_into(target)
