"""Writes and reads protocol messages as a Unity player does. One message holds all agents, by behavior; a behavior on
the wire is a name with a team, as in `SoccerTwos?team=1`.

Masks and observations are laid out in numpy as they lie in a message and merged into each agent's entry: one call per
agent, where filling the fields takes four. Fields of equal length for all agents are one table; pictures, which differ
in length, stand between such tables.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from itertools import chain, groupby
from typing import Any

import numpy as np

from jaxrl.envs.protobuf import messages, new_message
from jaxrl.envs.sensors import IMAGE_PROPERTIES, IMAGE_PROPERTIES_LAST, SensorError, WireSensor, wire_sensor
from jaxrl.types import Action, BehaviorMessage, BehaviorSpec, JaxrlError, ObservationSpec

COMMUNICATION_VERSION = "1.5.0"
PACKAGE_VERSION = "3.0.0"
Column = np.ndarray | list[bytes]
"""Column of N agents: uint8 [N, L], or bytes of any length for each."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")  # width, height, bits of a channel, kind of colour, three methods
_BITS = 8
_KINDS = {1: 0, 3: 2}  # kind of colour by number of channels: grey, and red with green and blue
_STORED = 0  # level of zlib: they travel within a machine, where packing costs more than it saves
_CHANNELS = 3  # in one file; 1 if there is one in all


class PlayerMessages:
    """Writes and reads the messages of one behavior and its teams."""

    def __init__(self, name: str, spec: BehaviorSpec, teams: int = 1, first_team: int = 0) -> None:
        """Take a `name` without team, as in `DungeonEscape`. Raises JaxrlError for a sensor that no player can send."""
        self._name = name
        self._behavior_ids = tuple(f"{name}?team={team}" for team in range(first_team, first_team + teams))
        self._introduced: set[str] = set()
        self._spec = spec
        self._mask = _number("AgentInfoProto", "action_mask")
        self._obs = ObservationWriter(spec)

    def handshake(self) -> Any:
        """Return the first message: sender, protocol and capabilities. Specs follow with the first agents."""
        message = new_message()
        output = message.unity_output.rl_initialization_output
        output.name = self._name
        output.communication_version = COMMUNICATION_VERSION
        output.package_version = PACKAGE_VERSION
        for field in output.capabilities.DESCRIPTOR.fields:
            setattr(output.capabilities, field.name, True)
        return message

    def output(self, steps: Sequence[BehaviorMessage], side_channel: bytes) -> Any:
        """Return a message with each team's agents that ended, then those that ask for a decision; the first message of
        a team also holds its spec.
        """
        message = new_message()
        message.unity_output.rl_output.side_channel = side_channel
        self.add(message, steps)
        return message

    def add(self, message: Any, steps: Sequence[BehaviorMessage]) -> None:
        """Add the agents of this behavior, by team, to a message that may hold those of others; as `output`."""
        rl_output = message.unity_output.rl_output
        for behavior_id, of_team in zip(self._behavior_ids, steps, strict=True):
            ended, deciding = len(of_team.ended.agent_id), len(of_team.deciding.agent_id)
            if not ended + deciding:
                continue
            if behavior_id not in self._introduced:
                self._introduced.add(behavior_id)
                self._add_spec(message.unity_output.rl_initialization_output, behavior_id)
            infos = rl_output.agentInfos[behavior_id].value
            if ended:
                self._add_ended(infos, of_team)
            if deciding:
                self._add_deciding(infos, of_team)

    def read_actions(self, rl_input: Any, counts: Sequence[int]) -> tuple[Action, ...]:
        """Return by team the actions of the `counts` agents that asked, in their order.

        Raises:
            JaxrlError: another number of agents, or of values per agent, or a number outside its branch.
        """
        pairs = zip(self._behavior_ids, counts, strict=True)
        return tuple(self._read_team(behavior_id, rl_input, count) for behavior_id, count in pairs)

    def _read_team(self, behavior_id: str, rl_input: Any, count: int) -> Action:
        actions = rl_input.agent_actions[behavior_id].value
        if len(actions) != count:
            raise JaxrlError(
                f"behavior {behavior_id}: {count} agents asked for a decision, {len(actions)} actions came"
            )
        branches, size = self._spec.action.discrete_branches, self._spec.action.continuous_size
        continuous = _table(behavior_id, "continuous", [row.continuous_actions for row in actions], size, np.float32)
        chosen = _table(behavior_id, "discrete", [row.discrete_actions for row in actions], len(branches), np.int32)
        if ((chosen < 0) | (chosen >= np.array(branches, np.int32))).any():
            raise JaxrlError(
                f"behavior {behavior_id}: discrete actions {chosen.tolist()} leave the branches {branches}"
            )
        return Action(continuous=continuous, discrete=chosen)

    def _add_spec(self, output: Any, behavior_id: str) -> None:
        brain = output.brain_parameters.add(brain_name=behavior_id, is_training=True)
        action = self._spec.action
        brain.action_spec.num_continuous_actions = action.continuous_size
        brain.action_spec.num_discrete_actions = len(action.discrete_branches)
        brain.action_spec.discrete_branch_sizes.extend(action.discrete_branches)

    def _add_ended(self, infos: Any, steps: BehaviorMessage) -> None:
        ended = steps.ended
        nothing = np.zeros((len(ended.agent_id), 0), np.uint8)
        rows = zip(*(column.tolist() for column in ended[:5]), self._obs.write(nothing, ended.obs), strict=True)
        for agent_id, group_id, reward, group_reward, truncated, obs in rows:
            infos.add(
                id=agent_id,
                group_id=group_id,
                reward=reward,
                group_reward=group_reward,
                done=True,
                max_step_reached=truncated,
            ).MergeFromString(obs)

    def _add_deciding(self, infos: Any, steps: BehaviorMessage) -> None:
        deciding = steps.deciding
        forbidden = ~deciding.action_mask  # on the wire True means: not allowed
        mask = byte_column(field_head(self._mask, forbidden.shape[1]), forbidden)
        rows = zip(*(column.tolist() for column in deciding[:4]), self._obs.write(mask, deciding.obs), strict=True)
        for agent_id, group_id, reward, group_reward, rest in rows:
            infos.add(id=agent_id, group_id=group_id, reward=reward, group_reward=group_reward).MergeFromString(rest)


def _table(behavior_id: str, kind: str, rows: list[Any], width: int, dtype: type) -> np.ndarray:
    """Return rows of the message as an array [N, width]."""
    lengths = list(map(len, rows))
    if lengths.count(width) != len(rows):
        wrong = next(length for length in lengths if length != width)
        raise JaxrlError(f"behavior {behavior_id}: {wrong} {kind} actions, expected {width} per agent")
    return np.fromiter(chain.from_iterable(rows), dtype, width * len(rows)).reshape(len(rows), width)


class ObservationWriter:
    """Writes the observations of one behavior. Raises JaxrlError for bytes that are no image."""

    def __init__(self, spec: BehaviorSpec) -> None:
        wires = [_announced(sensor) for sensor in spec.observations]
        self._columns = tuple(_pictures(wire) if wire.spec.dtype == "uint8" else _floats(wire) for wire in wires)

    def write(self, first: np.ndarray, obs: tuple[np.ndarray, ...]) -> list[bytes]:
        """Return serialized fields of N agents: uint8 `first` [N, L], then one observation [N, *shape] per sensor.

        Raises JaxrlError for an array that is not of its sensor's dtype.
        """
        columns: list[Column] = [first, *(column(x) for column, x in zip(self._columns, obs, strict=True))]
        parts = [
            _bytes_by_agent(list(run), fixed) for fixed, run in groupby(columns, lambda c: isinstance(c, np.ndarray))
        ]
        return parts[0] if len(parts) == 1 else [b"".join(row) for row in zip(*parts, strict=True)]


def byte_column(head: bytes, rows: np.ndarray) -> np.ndarray:
    """Return uint8 [N, L]: `head`, then the memory of each of the rows [N, width]."""
    count = len(rows)
    content = rows.view(np.uint8).reshape(count, rows.shape[1] * rows.itemsize)
    return np.hstack([np.broadcast_to(np.frombuffer(head, np.uint8), (count, len(head))), content])


def field_head(field: int, length: int) -> bytes:
    """Return the head of a field of `length` bytes: its number with wire type 2, and the length."""
    return varint(field << 3 | 2) + varint(length)


def _announced(sensor: ObservationSpec) -> WireSensor:
    """Return the sensor in messages. Without marks a trainer would take the first axis for the height; here it is C."""
    if len(sensor.shape) == 3 and not any(sensor.dimension_property):
        sensor = sensor._replace(dimension_property=IMAGE_PROPERTIES)
    try:
        return wire_sensor(sensor)
    except SensorError as error:
        raise JaxrlError(f"{error}; or declare it float32") from error


def _floats(wire: WireSensor) -> Callable[[np.ndarray], Column]:
    observation, size = _described(wire), 4 * math.prod(wire.shape)
    inner = field_head(messages().ObservationProto.FloatData.DESCRIPTOR.fields_by_name["data"].number, size)
    number, outer = _number("ObservationProto", "float_data"), _number("AgentInfoProto", "observations")
    inner = observation.SerializeToString() + field_head(number, len(inner) + size) + inner
    before = field_head(outer, len(inner) + size) + inner  # all but the floats, which come last

    def write(x: np.ndarray) -> Column:
        return byte_column(before, np.ascontiguousarray(x, "<f4").reshape(len(x), size // 4))

    return write


def _pictures(wire: WireSensor) -> Callable[[np.ndarray], Column]:
    observation, name = _described(wire), wire.spec.name
    observation.compression_type = messages().PNG
    observation.compressed_channel_mapping.extend(channel_mapping(wire.spec.shape[0]))
    number, outer = _number("ObservationProto", "compressed_data"), _number("AgentInfoProto", "observations")
    rest = observation.SerializeToString()

    def write(x: np.ndarray) -> Column:
        if x.dtype != np.uint8:
            raise JaxrlError(f"sensor {name!r} is declared uint8, the environment gives {x.dtype}; give it uint8")
        images = x if wire.channels_last else x.transpose(0, 2, 3, 1)
        contents = (rest + field_head(number, len(files)) + files for files in encode_png(images))
        return [field_head(outer, len(content)) + content for content in contents]

    return write


def _described(wire: WireSensor) -> Any:
    """Return an `ObservationProto` without its data."""
    observation = messages().ObservationProto(name=wire.spec.name)
    observation.shape.extend(wire.shape)
    properties = IMAGE_PROPERTIES_LAST if wire.channels_last else wire.spec.dimension_property
    observation.dimension_properties.extend(int(value) for value in properties)
    observation.observation_type = int(wire.spec.observation_type)
    return observation


def _number(message: str, field: str) -> int:
    return getattr(messages(), message).DESCRIPTOR.fields_by_name[field].number


def _bytes_by_agent(columns: list[Column], fixed: bool) -> list[bytes]:
    """Return the bytes of each agent, from columns that are all arrays, or all lists."""
    if not fixed:
        return [b"".join(row) for row in zip(*columns, strict=True)]
    table = np.hstack(columns)
    content, size = table.tobytes(), table.shape[1]
    return [content[row * size : (row + 1) * size] for row in range(len(table))]


def varint(number: int) -> bytes:
    """Return a whole number in groups of seven bits, the lowest first."""
    groups = []
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def channel_mapping(channels: int) -> list[int]:
    """Return the sensor channel of each channel of all files, -1 for those that fill the last one; empty: in order."""
    if channels in (1, _CHANNELS):
        return []
    return [*range(channels), *[-1] * (-channels % _CHANNELS)]


def encode_png(images: np.ndarray, level: int = _STORED) -> list[bytes]:
    """Return the joined files of each of N agents. `images`: uint8 [N, H, W, C], any C; `level`: of zlib."""
    count, height, width, channels = images.shape
    missing = 0 if channels == 1 else -channels % _CHANNELS
    if missing:
        images = np.concatenate([images, np.zeros((count, height, width, missing), np.uint8)], axis=3)
    step = 1 if channels == 1 else _CHANNELS
    parts = [_files(images[..., first : first + step], level) for first in range(0, images.shape[3], step)]
    return parts[0] if len(parts) == 1 else [b"".join(files) for files in zip(*parts, strict=True)]


def _files(images: np.ndarray, level: int) -> list[bytes]:
    """Return one file for each of N agents, uint8 [N, H, W, C] with C = 1 or 3. Lines begin with filter 0: none."""
    count, height, width, channels = images.shape
    header = _HEADER.pack(width, height, _BITS, _KINDS[channels], 0, 0, 0)
    before, after = _SIGNATURE + _chunk(b"IHDR", header), _chunk(b"IEND", b"")
    lines = np.zeros((count, height, 1 + width * channels), np.uint8)
    lines[:, :, 1:] = images.reshape(count, height, width * channels)
    return [before + _chunk(b"IDAT", zlib.compress(picture.tobytes(), level)) + after for picture in lines]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return b"".join((struct.pack(">I", len(data)), kind, data, struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))))
