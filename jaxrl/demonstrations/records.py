"""Records of one `.demo` file, as Unity's Demonstration Recorder and `jaxrl.demonstrations.write` make them.

A file holds messages with their lengths before them: the header at byte 0, the brain's parameters at byte 33, then one
pair of agent and action for each decision and for each end of an episode. The reward of a decision, and whether its
episode ended, stand in the agent's next pair.

Unity's recorder writes a pair before the agent decides. Its action is therefore the one of the decision before: zeros
in the first pair of an episode, the last decision's in the pair that ends it. What jaxrl writes has each action beside
its observation and a mark that says so; recordings from before behaviors had teams are taken as they stand.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from itertools import chain
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.protobuf import messages
from jaxrl.envs.sensors import WireSpec
from jaxrl.envs.unity.decode import decode_spec
from jaxrl.envs.unity.observations import AgentError, decode_sensors
from jaxrl.types import Action, ActionSpec, BehaviorSpec, JaxrlError

BRAIN = 33
"""Byte at which the brain's parameters begin: the zone before is the header's, rewritten as a recording ends."""
VERSIONS = (0, 1)
MARK = "written by jaxrl: each action stands beside its observation"
"""Description of actions in the action spec of the files that jaxrl writes; ML-Agents does not read it."""
TEAM = "?team="
_PAIRS, _BYTES = 512, 64 * 2**20
"""Pairs turned into arrays at once, and bytes of their observations: more of them leave the caches."""
_OLD_AGENT_FIELDS = {1, 2, 3, 4, 5, 6, 12}  # of `AgentInfoProto`, gone since ML-Agents 0.12
_NOT_A_DEMO = "is it a .demo file of Unity's Demonstration Recorder?"


class DemonstrationError(JaxrlError):
    """Demonstrations that cannot be used. The text names the file, and the pair from 0 on."""


class EmptyRecordingError(DemonstrationError):
    """A file in which nothing is decided: recording was stopped as soon as it began."""


class ActionError(DemonstrationError):
    """An action that the agent does not have, or none where it decided."""


class Recorder(StrEnum):
    """Program that wrote a file, in words."""

    UNITY = "recorded by Unity, which writes each action one record late"
    JAXRL = MARK
    OTHER = f"no {TEAM!r} in the behavior's name: recorded before ML-Agents had teams, or by jaxrl 0.7 or older"


class Kind(NamedTuple):
    """Agent that a file was recorded of."""

    behavior: str
    spec: BehaviorSpec
    recorder: Recorder = Recorder.JAXRL


class _Start(NamedTuple):
    """Everything that stands before the first pair."""

    header: bytes
    pairs: int  # that the header counts; 0: the recording was not closed
    wire: WireSpec
    kind: Kind
    at: int  # byte of the first pair


def kind_of(file: Path) -> Kind:
    """Return the agent of a file, read from what stands before its second pair. Raises DemonstrationError."""
    with _opened(file) as data:
        return _begun(file, data).kind


def record_columns(file: Path, *, late: bool = False, checked: bool = True) -> Iterator[list[np.ndarray]]:
    """Yield the pairs of a file, some hundred at a time.

    Columns: observations, continuous and discrete actions, rewards and group rewards of the decision before, whether
    the episode ended, whether by interruption, ids of agents (int32).

    Args:
      file: the file.
      late: whether an action is that of the decision before. The last pair is left out if it holds no action.
      checked: whether actions matter: otherwise those that are missing or wrong are zeros.

    Raises DemonstrationError.
    """
    with _opened(file) as data:
        start = _begun(file, data)
        count = 0
        for pairs, final in _chunks(file, data, start):
            if final and late and checked and not pairs[-1].agent_info.done and not _has_action(pairs[-1]):
                pairs.pop()  # an action that is nowhere
            if pairs:
                yield _arrays(file, start.wire, pairs, count, final, checked)
            count += len(pairs)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Map the bytes of a file. Raises DemonstrationError."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
    except OSError as error:
        raise DemonstrationError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        if size:
            raise
        raise EmptyRecordingError(f"{file}: it is empty; {_NOT_A_DEMO}") from error


def _begun(file: Path, data: Any) -> _Start:
    """Read what stands before the first pair, and the sensors out of that pair. Raises DemonstrationError."""
    kinds = messages()
    head, _ = _framed(file, data, 0, "the header")
    header = _parsed(file, kinds.DemonstrationMetaProto, head, 0, "the header")
    if header.api_version not in VERSIONS:
        raise DemonstrationError(f"{file}: version {header.api_version}, expected 0 or 1; {_NOT_A_DEMO}")
    body, at = _framed(file, data, BRAIN, "the brain's parameters")
    brain = _parsed(file, kinds.BrainParametersProto, body, BRAIN, "the brain's parameters")
    number, count, following = header.number_steps, 0, at
    if not _at_end(data, at, head):
        record, following = _framed(file, data, at, "pair 0")
        if _is_old(record):
            raise DemonstrationError(
                f"{file}: an older format: ML-Agents before 0.12 recorded it, and ML-Agents reads it no more either; "
                "record it again"
            )
        count = 1 if number == 1 or _at_end(data, following, head) else 2
    if number and count < min(number, 2):
        raise _cut_off(file, count, number)
    if count < 2:
        raise EmptyRecordingError(f"{file}: {count} pairs are not one decision: recording stopped as it began")
    pair = _parsed(file, kinds.AgentInfoActionPairProto, record, at, "pair 0")
    try:
        wire = decode_spec(brain.brain_name, brain, pair.agent_info)
    except EnvironmentFailure as error:
        raise DemonstrationError(f"{file}: pair 0: {error}") from error
    recorder = Recorder.UNITY if TEAM in brain.brain_name else Recorder.OTHER
    if MARK in brain.action_spec.action_descriptions:
        recorder = Recorder.JAXRL
    return _Start(head, number, wire, Kind(brain.brain_name, wire.behavior, recorder), at)


def _at_end(data: Any, at: int, header: bytes) -> bool:
    """Return whether no pair follows: Unity's recorder writes the header once more behind the last one."""
    return at == len(data) or (len(data) - at == len(header) and data[at:] == header)


def _is_old(record: bytes) -> bool:
    """Return whether a record is one of ML-Agents before 0.12: an agent alone, or an agent with fields of then."""
    with suppress(DecodeError):
        fields = _fields(record)
        if max(fields, default=0) > 2:
            return True  # a pair has two fields: the agent and its action
        agent = fields.get(1)
        return isinstance(agent, bytes) and not _OLD_AGENT_FIELDS.isdisjoint(_fields(agent))
    return False


def _fields(message: bytes) -> dict[int, Any]:
    """Return the contents of a message of any kind by the numbers of its fields. Raises DecodeError."""
    fields = UnknownFieldSet(Empty.FromString(message))
    return {fields[i].field_number: fields[i].data for i in range(len(fields))}


def _chunks(file: Path, data: Any, start: _Start) -> Iterator[tuple[list[Any], bool]]:
    """Yield the pairs, as many as the header counts, and whether no more follow.

    A header that counts 0, as a recording that was not closed leaves it, stands for all pairs that are there.
    """
    kind, pairs, count, at, number = messages().AgentInfoActionPairProto, [], 0, start.at, start.pairs
    end, together = len(data), _pairs_at_once(start.kind.spec)
    if not number and _at_end(data, end - len(start.header), start.header):
        end -= len(start.header)
    while at < end and (not number or count < number):
        if len(pairs) == together:
            yield pairs, False
            pairs = []
        begin, stop = at + 2, end + 1
        if begin <= end and data[at] > 0x7F >= data[at + 1]:  # two bytes of length, as of most: a call saved for each
            stop = begin + (data[at] & 0x7F | data[at + 1] << 7)
        pair = None
        if stop <= end:
            with suppress(DecodeError):  # which `_parsed` explains
                pair, at = kind.FromString(data[begin:stop]), stop
        if pair is None:
            (record, following), what = _framed(file, data, at, f"pair {count}"), f"pair {count}"
            pair, at = _parsed(file, kind, record, at, what), following
        pairs.append(pair)
        count += 1
    if count < number:
        raise _cut_off(file, count, number)
    yield pairs, True


def _pairs_at_once(spec: BehaviorSpec) -> int:
    """Return how many pairs become arrays at once: a few of large pictures, at least one."""
    size = sum(prod(sensor.shape) * np.dtype(sensor.dtype).itemsize for sensor in spec.observations)
    return max(min(_PAIRS, _BYTES // max(size, 1)), 1)


def _arrays(file: Path, wire: WireSpec, pairs: list[Any], first: int, final: bool, checked: bool) -> list[np.ndarray]:
    """Return the columns of `record_columns`; `first` is the number of the first pair, `final`: no more follow."""
    infos = [pair.agent_info for pair in pairs]
    try:
        obs = decode_sensors(infos, wire.sensors)
    except AgentError as error:
        raise DemonstrationError(f"{file}: pair {first + error.row}: {error}") from error
    reward, done = _column(infos, "reward", np.float32), _column(infos, "done", bool)
    if not np.isfinite(reward).all():
        raise DemonstrationError(f"{file}: pair {first + int(np.argmin(np.isfinite(reward)))}: its reward is no number")
    free = np.ones(len(pairs), bool) if not checked else done.copy()  # where an action may be missing
    free[-1:] |= final
    return [
        *obs,
        *_actions(file, wire.action, pairs, free, first, checked),
        reward,
        _column(infos, "group_reward", np.float32),
        done,
        _column(infos, "max_step_reached", bool),
        _column(infos, "id", np.int32),
    ]


def _column(infos: list[Any], name: str, dtype: Any) -> np.ndarray:
    return np.fromiter(map(attrgetter(name), infos), dtype, len(infos))


def _has_action(pair: Any) -> bool:
    action = pair.action_info
    return bool(action.continuous_actions or action.discrete_actions or action.vector_actions_deprecated)


def _actions(file: Path, spec: ActionSpec, pairs: list[Any], free: np.ndarray, first: int, checked: bool) -> Action:
    """Return the fields that players of today fill, else the one that those before hybrid actions did."""
    sizes = spec.continuous_size, len(spec.discrete_branches)
    infos = [pair.action_info for pair in pairs]
    numbers, choices = [x.continuous_actions for x in infos], [x.discrete_actions for x in infos]
    if all(len(x) == sizes[0] for x in numbers) and all(len(x) == sizes[1] for x in choices):
        action = Action(
            np.fromiter(chain.from_iterable(numbers), np.float32).reshape(len(pairs), sizes[0]),
            np.fromiter(chain.from_iterable(choices), np.int32).reshape(len(pairs), sizes[1]),
        )
    else:
        action = _mixed_actions(file, sizes, infos, free, first)
    infinite = ~np.isfinite(action.continuous)
    outside = (action.discrete < 0) | (action.discrete >= np.array(spec.discrete_branches))
    wrong = infinite.any(-1) | outside.any(-1)
    if wrong.any() and checked:
        raise ActionError(f"{file}: pair {first + int(wrong.argmax())}: {_words_of(spec, action, infinite, outside)}")
    action.continuous[wrong], action.discrete[wrong] = 0.0, 0
    return action


def _words_of(spec: ActionSpec, action: Action, infinite: np.ndarray, outside: np.ndarray) -> str:
    """Describe the first wrong action."""
    row = int((infinite.any(-1) | outside.any(-1)).argmax())
    if infinite[row].any():
        i = int(infinite[row].argmax())
        return f"continuous action {i} is {action.continuous[row, i]}, expected a finite number"
    branch = int(outside[row].argmax())
    size = spec.discrete_branches[branch]
    return (
        f"action {action.discrete[row, branch]} of discrete branch {branch}, which has {size} choices: expected 0 to "
        f"{size - 1}"
    )


def _mixed_actions(file: Path, sizes: tuple[int, int], infos: list[Any], free: np.ndarray, first: int) -> Action:
    """Return the actions of pairs that differ: old ones, and those without an action, which become zeros."""
    action = Action(np.zeros((len(infos), sizes[0]), np.float32), np.zeros((len(infos), sizes[1]), np.int32))
    for row, info in enumerate(infos):
        parts = list(info.continuous_actions), list(info.discrete_actions)
        if not parts[0] and not parts[1]:
            old = list(info.vector_actions_deprecated)
            parts = (old, []) if sizes[0] else ([], [int(x) if abs(x) < 1 << 31 else -1 for x in old])
        for column, part, size in zip(action, parts, sizes, strict=True):
            if len(part) == size:
                column[row] = part
            elif not free[row]:
                raise ActionError(f"{file}: pair {first + row}: an action of {len(part)} numbers, not {size}")
    return action


def _framed(file: Path, data: Any, at: int, what: str) -> tuple[bytes, int]:
    """Return the message at this byte, before which its length stands in groups of seven bits, and the next byte."""
    length, start = 0, at
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise DemonstrationError(f"{file}: it is cut off in the length of {what}, at byte {start}; {_NOT_A_DEMO}")
        length |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            break
    if at + length > len(data):
        text = f"{what} would have {length} bytes, of which {len(data) - at} are there"
        raise DemonstrationError(f"{file}: it is cut off at byte {start}: {text}; {_NOT_A_DEMO}")
    return data[at : at + length], at + length


def _parsed(file: Path, kind: Any, message: bytes, start: int, what: str) -> Any:
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise DemonstrationError(f"{file}: {what} at byte {start} is no message; {_NOT_A_DEMO}") from error


def _cut_off(file: Path, count: int, number: int) -> DemonstrationError:
    return DemonstrationError(f"{file}: it ends after {count} of {number} pairs: it was cut off")
