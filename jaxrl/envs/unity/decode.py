"""Turns protocol messages into specs and batched arrays.

Observations, the bulk of a message, are decoded in `observations.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxrl.envs.interface import BadDataError, EnvironmentFailure
from jaxrl.envs.sensors import SensorError, WireSpec, announced
from jaxrl.envs.spec_limits import SpecError, check_spec
from jaxrl.envs.unity.observations import AgentError, check_finite, decode_sensors, first_other
from jaxrl.types import ActionSpec, BehaviorMessage, ended_and_deciding

_SPACE_CONTINUOUS = 1


class InvalidMessage(EnvironmentFailure):
    """Invalid data from the environment: garbage, or an absurd specification."""


class InvalidData(InvalidMessage, BadDataError):
    """Invalid data from an agent. The text names behavior, agent and sensor."""


def decode_spec(behavior: str, brain_parameters: Any, agent_info: Any, unmarked_last: bool = True) -> WireSpec:
    """Return the wire spec of `behavior` from its `BrainParametersProto` and its first agent's `AgentInfoProto`.

    Players older than communication version 1.3 fill only the deprecated action fields; those are then read.
    `unmarked_last` concerns images without marks, see `jaxrl.envs.sensors`.

    Raises:
        InvalidMessage: numbers that the protocol does not know, a PNG without the axes of an image, branches that do
            not match their count, or absurd sizes (`spec_limits`).
    """
    try:
        sensors = tuple(announced(proto, unmarked_last) for proto in agent_info.observations)
    except SensorError as error:
        raise InvalidMessage(f"behavior {behavior!r}: {error}") from error
    except ValueError as error:
        raise InvalidMessage(f"behavior {behavior!r}: unknown kind of observation: {error}") from error
    spec = WireSpec(sensors, _decode_action_spec(behavior, brain_parameters))
    try:
        check_spec(behavior, spec.behavior)
    except SpecError as error:
        raise InvalidMessage(str(error)) from error
    return spec


def decode_steps(behavior: str, agent_infos: Iterable[Any], spec: WireSpec) -> BehaviorMessage:
    """Return the agents of one behavior in one message, ended and deciding ones, each in the order of the message.

    Args:
        behavior: name, for error texts.
        agent_infos: `AgentInfoProto`s (the `value` of a `ListAgentInfoProto`).
        spec: what `decode_spec` returned for this behavior.

    Returns:
        Observations [N, *shape] of the sensors' dtypes, images [N, C, H, W] for any order in messages; rewards
        float32 [N]; ids int64 [N]; `truncated` bool [N] from `max_step_reached`; `action_mask` bool [N, M], the wire's
        mask inverted: True is allowed, and all are allowed for an agent that sent no mask.

    Raises:
        InvalidData: a shape or mask differs from the spec, an image is broken, an observation or reward is not finite,
            or an agent ends or asks twice. The text names behavior, agent and sensor.
    """
    ended: list[Any] = []
    deciding: list[Any] = []
    for info in agent_infos:
        (ended if info.done else deciding).append(info)
    infos, n = ended + deciding, len(ended)
    try:
        _check_ids(infos, n)
        reward = _decode_rewards("reward", [info.reward for info in infos])
        group_reward = _decode_rewards("group reward", [info.group_reward for info in infos])
        obs = decode_sensors(infos, spec.sensors)
        mask = _decode_masks(infos, spec.action.mask_size)
    except AgentError as error:
        raise InvalidData(f"behavior {behavior!r}, agent {infos[error.row].id}, {error}") from error
    agent_id = np.array([info.id for info in infos], np.int64)
    group_id = np.array([info.group_id for info in infos], np.int64)
    truncated = np.array([info.max_step_reached for info in ended], np.bool_)
    numbers = agent_id, group_id, reward, group_reward
    return BehaviorMessage(*ended_and_deciding(n, numbers, obs, truncated=truncated, action_mask=mask[n:]))


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


def _check_ids(infos: Sequence[Any], ended: int) -> None:
    """Check that no agent has two rows. One that ends may ask as well: that is its next episode."""
    for first, last, does in (0, ended, "ends"), (ended, len(infos), "asks"):
        ids = [info.id for info in infos[first:last]]
        if len(set(ids)) < len(ids):
            row = next(i for i, agent in enumerate(ids) if agent in ids[:i])
            raise AgentError(
                first + row,
                f"{does} twice in one message: an id is one agent's alone; the usual cause is an exception in another "
                "agent's CollectObservations, after which Unity sends what was there before: see the player's log",
            )


def _decode_rewards(name: str, values: list[float]) -> np.ndarray:
    """Return finite rewards, float32 [N]."""
    rewards = np.array(values, np.float32)
    check_finite(name, rewards)
    return rewards


def _decode_masks(infos: Sequence[Any], size: int) -> np.ndarray:
    """Return masks, bool [N, M], True: allowed. On the wire True is forbidden. Ended agents need none."""
    if size == 0:
        return np.ones((len(infos), 0), np.bool_)
    none_forbidden = bytes(size)
    rows = [none_forbidden if info.done else bytes(info.action_mask[:]) or none_forbidden for info in infos]
    row = first_other(list(map(len, rows)), size)
    if row is not None:
        text = f"expected {size} entries (the sum of the discrete branch sizes) or none, received {len(rows[row])}"
        raise AgentError(row, f"action mask: {text}")
    return (np.frombuffer(b"".join(rows), np.uint8) == 0).reshape(len(rows), size)
