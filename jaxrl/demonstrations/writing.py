"""Writes `.demo` files for jaxrl and ML-Agents: each action stands beside its observation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from jaxrl import unfinished
from jaxrl.demonstrations.records import BRAIN, MARK, DemonstrationError
from jaxrl.envs.player.messages import channel_mapping, encode_png, varint
from jaxrl.envs.protobuf import messages
from jaxrl.envs.sensors import IMAGE_PROPERTIES
from jaxrl.types import BehaviorSpec

_NAME = 10
"""Letters of the file's name in the header: with its largest numbers they fill its 33 bytes."""

_LEVEL = 1  # of compression: most of what it can save, in the least time


class Pair(NamedTuple):
    """Observations of one agent, its reward for the decision before, and its decision."""

    obs: Sequence[np.ndarray]  # one per sensor, [*shape]; images uint8, which become PNG, or float32 from 0 to 1
    continuous: Sequence[float] = ()  # as the environment has it; nothing where the episode ended
    discrete: Sequence[int] = ()
    reward: float = 0.0
    group_reward: float = 0.0
    done: bool = False  # the episode ended: the next pair is the first of another
    interrupted: bool = False  # by a limit of time, not by what happened
    agent: int = 0  # pairs of another agent do not follow those of this one


def write(path: str | Path, behavior: str, spec: BehaviorSpec, pairs: Iterable[Pair]) -> int:
    """Write these pairs to a file, whose folder is made. Return the number of pairs.

    The write is atomic: until it is complete, and after an error, a former file stays.

    Raises DemonstrationError: arrays or actions that are not those of the spec, or a place that cannot be written to.
    """
    path = Path(path)
    try:
        with unfinished.writing(path) as file:
            return _write(path, file, behavior, spec, pairs)
    except OSError as error:
        raise DemonstrationError(f"{path}: cannot be written: {error.strerror}") from error


def _write(path: Path, file: IO[bytes], behavior: str, spec: BehaviorSpec, pairs: Iterable[Pair]) -> int:
    kinds = messages()
    brain = kinds.BrainParametersProto(brain_name=behavior, is_training=True)
    brain.action_spec.num_continuous_actions = spec.action.continuous_size
    brain.action_spec.num_discrete_actions = len(spec.action.discrete_branches)
    brain.action_spec.discrete_branch_sizes.extend(spec.action.discrete_branches)
    brain.action_spec.action_descriptions.append(MARK)
    steps, episodes, total = 0, 0, 0.0
    file.write(bytes(BRAIN))
    file.write(_delimited(brain))
    for pair in pairs:
        file.write(_delimited(_message(path, kinds, spec, pair, steps)))
        steps, episodes, total = steps + 1, episodes + pair.done, total + pair.reward
    file.seek(0)
    header = kinds.DemonstrationMetaProto(
        api_version=1,
        demonstration_name=re.sub(r"[^A-Za-z0-9_]", "", path.stem)[:_NAME],
        number_steps=steps,
        number_episodes=episodes,
        mean_reward=total / max(episodes, 1),
    )
    file.write(_delimited(header))
    return steps


def _message(path: Path, kinds: Any, spec: BehaviorSpec, pair: Pair, number: int) -> Any:
    message = kinds.AgentInfoActionPairProto()
    info, sizes = message.agent_info, (spec.action.continuous_size, len(spec.action.discrete_branches))
    info.reward, info.group_reward = pair.reward, pair.group_reward
    info.done, info.max_step_reached, info.id = pair.done, pair.interrupted, pair.agent
    numbers = list(pair.continuous), list(pair.discrete)
    if pair.done and not any(numbers):
        numbers = [0.0] * sizes[0], [0] * sizes[1]
    if tuple(map(len, numbers)) != sizes:
        raise DemonstrationError(f"{path}: pair {number}: an action of {tuple(map(len, numbers))} numbers, not {sizes}")
    message.action_info.continuous_actions.extend(map(float, numbers[0]))
    message.action_info.discrete_actions.extend(map(int, numbers[1]))
    for sensor, x in zip(spec.observations, pair.obs, strict=True):
        if np.shape(x) != sensor.shape:
            raise DemonstrationError(f"{path}: pair {number}: {sensor.name!r} has {np.shape(x)}, not {sensor.shape}")
        observation = info.observations.add(
            name=sensor.name,
            shape=sensor.shape,
            observation_type=int(sensor.observation_type),
            dimension_properties=[int(kind) for kind in sensor.dimension_property],
        )
        x = np.asarray(x)
        if x.dtype == np.uint8 and x.ndim == 3:
            observation.dimension_properties[:] = map(int, IMAGE_PROPERTIES)
            observation.compression_type = kinds.PNG
            observation.compressed_channel_mapping.extend(channel_mapping(len(x)))
            observation.compressed_data = encode_png(x.transpose(1, 2, 0)[None], _LEVEL)[0]
        else:
            observation.float_data.data.extend(x.astype(np.float32).reshape(-1))
    return message


def _delimited(message: Any) -> bytes:
    """Encode a message with its length before it."""
    data = message.SerializeToString()
    return varint(len(data)) + data
