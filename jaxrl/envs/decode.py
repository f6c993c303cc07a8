"""Turn protocol messages into specs and batched arrays.

One array per sensor for all agents of a message. A `FloatData` message serializes to one tag byte, the length as a
varint and the packed little-endian floats, so the parts of all agents, joined, are one strided buffer: no number is
ever a Python object (`benchmarks/decode.py` compares).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from jaxrl.envs.images import ImageError, channel_axis, decode_png
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.types import (
    ActionSpec,
    AgentSteps,
    BehaviorSpec,
    DecisionSteps,
    DimensionProperty,
    EndedSteps,
    ObservationSpec,
    ObservationType,
)

_COMPRESSION_NONE = 0
_SPACE_CONTINUOUS = 1


class InvalidMessage(EnvironmentFailure):
    """The environment sent something that no restart mends: a number that is not finite, a wrong shape, garbage."""


class _AgentError(ValueError):
    """Agent number `row` of the message sent something wrong. `decode_steps` adds the names."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


def decode_spec(behavior: str, brain_parameters: Any, agent_info: Any) -> BehaviorSpec:
    """Spec of `behavior` from its `BrainParametersProto` and the `AgentInfoProto` of its first agent.

    Players older than communication version 1.3 fill only the deprecated action fields; those are then read.

    Raises:
        InvalidMessage: numbers that the protocol does not know, or branches that do not match their count.
    """
    try:
        observations = tuple(_decode_observation_spec(proto) for proto in agent_info.observations)
    except ValueError as error:
        raise InvalidMessage(f"behavior {behavior!r}: unknown kind of observation: {error}") from error
    return BehaviorSpec(observations=observations, action=_decode_action_spec(behavior, brain_parameters))


def decode_steps(behavior: str, agent_infos: Iterable[Any], spec: BehaviorSpec) -> AgentSteps:
    """Agents of one behavior in one message, ended ones apart from deciding ones, each in the order of the message.

    Args:
        behavior: name, for error texts.
        agent_infos: `AgentInfoProto`s (the `value` of a `ListAgentInfoProto`).
        spec: what `decode_spec` returned for this behavior.

    Returns:
        Observations float32 [N, *shape], images / 255 and in the axis order of `spec`; rewards float32 [N]; ids int64
        [N]; `truncated` bool [N] from `max_step_reached`; `action_mask` bool [N, M], the wire's mask inverted: True is
        allowed, and all are allowed for an agent that sent no mask.

    Raises:
        InvalidMessage: an observation or reward is not finite, or a shape or mask differs from the spec. The text names
            behavior, sensor and agent.
    """
    ended: list[Any] = []
    deciding: list[Any] = []
    for info in agent_infos:
        (ended if info.done else deciding).append(info)
    infos, n = ended + deciding, len(ended)
    try:
        reward = _decode_rewards("reward", [info.reward for info in infos])
        group_reward = _decode_rewards("group reward", [info.group_reward for info in infos])
        obs = _decode_sensors(infos, spec)
        mask = _decode_masks(infos, spec.action.mask_size)
    except _AgentError as error:
        raise InvalidMessage(f"behavior {behavior!r}, agent {infos[error.row].id}, {error}") from error
    agent_id = np.array([info.id for info in infos], np.int64)
    group_id = np.array([info.group_id for info in infos], np.int64)
    return AgentSteps(
        ended=EndedSteps(
            agent_id=agent_id[:n],
            group_id=group_id[:n],
            reward=reward[:n],
            group_reward=group_reward[:n],
            truncated=np.array([info.max_step_reached for info in ended], np.bool_),
            obs=tuple(sensor[:n] for sensor in obs),
        ),
        deciding=DecisionSteps(
            agent_id=agent_id[n:],
            group_id=group_id[n:],
            reward=reward[n:],
            group_reward=group_reward[n:],
            action_mask=mask[n:],
            obs=tuple(sensor[n:] for sensor in obs),
        ),
    )


def _decode_observation_spec(proto: Any) -> ObservationSpec:
    properties = proto.dimension_properties or [DimensionProperty.UNSPECIFIED] * len(proto.shape)
    return ObservationSpec(
        name=proto.name,
        shape=tuple(proto.shape),
        dimension_property=tuple(DimensionProperty(number) for number in properties),
        observation_type=ObservationType(proto.observation_type),
    )


def _decode_action_spec(behavior: str, brain: Any) -> ActionSpec:
    action = brain.action_spec
    if action.num_continuous_actions == 0 and action.num_discrete_actions == 0:
        sizes = tuple(brain.vector_action_size_deprecated)
        if brain.vector_action_space_type_deprecated == _SPACE_CONTINUOUS:
            return ActionSpec(continuous_size=sum(sizes), discrete_branches=())
        return ActionSpec(continuous_size=0, discrete_branches=sizes)
    branches = tuple(action.discrete_branch_sizes)
    if len(branches) != action.num_discrete_actions:
        raise InvalidMessage(
            f"behavior {behavior!r}: announces {action.num_discrete_actions} discrete branches but sizes {branches}"
        )
    return ActionSpec(continuous_size=action.num_continuous_actions, discrete_branches=branches)


def _decode_rewards(name: str, values: list[float]) -> np.ndarray:
    """Float32 [N]."""
    rewards = np.array(values, np.float32)
    _check_finite(name, rewards)
    return rewards


def _decode_sensors(infos: Sequence[Any], spec: BehaviorSpec) -> tuple[np.ndarray, ...]:
    """One float32 [N, *shape] per sensor."""
    observations = [info.observations for info in infos]
    expected = len(spec.observations)
    counts = list(map(len, observations))
    row = _first_other(counts, expected)
    if row is not None:
        hint = "all agents of a behavior need the same sensors"
        raise _AgentError(row, f"all sensors: expected {expected} observations, received {counts[row]}; {hint}")
    arrays = []
    for index, sensor in enumerate(spec.observations):
        name = f"sensor {index} ({sensor.name!r})"
        array = _decode_sensor(name, sensor, [of_agent[index] for of_agent in observations])
        _check_finite(name, array)
        arrays.append(array)
    return tuple(arrays)


def _decode_sensor(name: str, sensor: ObservationSpec, protos: list[Any]) -> np.ndarray:
    if len(sensor.shape) > 1:
        shape = list(sensor.shape)
        row = _first_other([proto.shape == shape for proto in protos], True)
        if row is not None:
            raise _wrong_shape(row, name, sensor, protos[row])
    if len(sensor.shape) != 3:
        return _decode_floats(name, sensor, protos)
    compressed = [proto.compression_type != _COMPRESSION_NONE for proto in protos]
    if not any(compressed):
        return _decode_floats(name, sensor, protos)
    array = np.empty((len(protos), *sensor.shape), np.float32)
    for row, (proto, is_image) in enumerate(zip(protos, compressed, strict=True)):
        array[row] = _decode_image(row, name, sensor, proto) if is_image else _decode_floats(name, sensor, [proto])[0]
    return array


def _decode_image(row: int, name: str, sensor: ObservationSpec, proto: Any) -> np.ndarray:
    mapping = tuple(proto.compressed_channel_mapping)
    try:
        return decode_png(proto.compressed_data, sensor.shape, channel_axis(sensor), mapping)
    except ImageError as error:
        raise _AgentError(row, f"{name}: {error}") from error


def _decode_floats(name: str, sensor: ObservationSpec, protos: list[Any]) -> np.ndarray:
    """Float32 [N, *shape] from the serialized form of each agent's numbers."""
    payload = 4 * prod(sensor.shape)
    length = _encoded_size(payload)
    parts = [proto.float_data.SerializeToString() for proto in protos]
    row = _first_other(list(map(len, parts)), length)
    if row is not None:
        raise _wrong_shape(row, name, sensor, protos[row])
    rows = np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), length)
    # The copy drops the headers, aligns the floats and makes them writable.
    floats = rows[:, length - payload :].copy().view("<f4").astype(np.float32, copy=False)
    return floats.reshape(len(parts), *sensor.shape)


def _encoded_size(payload: int) -> int:
    """Bytes of a packed field of `payload` bytes: tag, varint of the length, payload; an empty field is left out."""
    if payload == 0:
        return 0
    return 1 + (payload.bit_length() + 6) // 7 + payload


def _decode_masks(infos: Sequence[Any], size: int) -> np.ndarray:
    """Bool [N, M], True: allowed. The wire says True: forbidden. Ended agents need none."""
    if size == 0:
        return np.ones((len(infos), 0), np.bool_)
    none_forbidden = bytes(size)
    rows = [none_forbidden if info.done else bytes(info.action_mask[:]) or none_forbidden for info in infos]
    row = _first_other(list(map(len, rows)), size)
    if row is not None:
        text = f"expected {size} entries (the sum of the discrete branch sizes) or none, received {len(rows[row])}"
        raise _AgentError(row, f"action mask: {text}")
    return (np.frombuffer(b"".join(rows), np.uint8) == 0).reshape(len(rows), size)


def _first_other(values: list[Any], expected: Any) -> int | None:
    """Index of the first value that is not `expected`. Counting first keeps the good case out of Python loops."""
    if values.count(expected) == len(values):
        return None
    return next(row for row, value in enumerate(values) if value != expected)


def _wrong_shape(row: int, name: str, sensor: ObservationSpec, proto: Any) -> _AgentError:
    numbers = "an image" if proto.compression_type != _COMPRESSION_NONE else f"{len(proto.float_data.data)} numbers"
    hint = "all agents of a behavior must send the same shape for the whole run"
    return _AgentError(
        row, f"{name}: expected shape {sensor.shape}, received {tuple(proto.shape)} with {numbers}; {hint}"
    )


def _check_finite(name: str, values: np.ndarray) -> None:
    finite = np.isfinite(values)
    if finite.all():
        return
    position = np.unravel_index(int(np.argmin(finite)), values.shape)
    hint = "mend the environment's code"
    raise _AgentError(int(position[0]), f"{name}: {values[position]} is not a finite number; {hint}")
