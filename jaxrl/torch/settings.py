"""Finds contradictions between settings and an ML-Agents checkpoint: each key, its value, and the right one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import numpy as np

from jaxrl.settings import BehaviorSettings
from jaxrl.torch.checkpoint import TorchCheckpoint, shares_critic
from jaxrl.torch.weights import HEAD_PREFIX, TorchImportError, Weights
from jaxrl.types import ActionSpec

_BODY = re.compile(r"network_body\._body_endoder\.(?:seq_layers|layers)\.(\d+)\..*")
_FIRST_FILTERS = re.compile(
    r"network_body\.observation_encoder\.processors\.\d+\.(?:conv_layers|sequential)\.0\.weight"
)
_IMAGE = re.compile(r"network_body\.observation_encoder\.processors\.\d+\.dense\..*")
_NORMALIZER = ".normalizer.running_mean"
_ENCODERS = {(16, 8): "simple", (32, 8): "nature_cnn", (35, 3): "match3", (16, 3): "resnet"}
"""Image encoders by number and side of their first filters."""


def contradictions(checkpoint: TorchCheckpoint, settings: BehaviorSettings) -> list[str]:
    """Return one text, key first, for each setting with which the checkpoint's networks cannot have been made."""
    pairs = list(_compared(checkpoint, settings))
    texts = [f"{key}: got {json.dumps(given)}, but the checkpoint has {json.dumps(has)}: write {json.dumps(has)}"
             for key, given, has in pairs if given != has]  # fmt: skip
    heads = checkpoint.critic or checkpoint.policy
    missing = [name for name in settings.reward_signals if f"{HEAD_PREFIX}{name}.weight" not in heads]
    return texts + [f"reward_signals.{name}: the checkpoint has no value head of it: remove it" for name in missing]


def action_of(policy: Weights) -> ActionSpec:
    """Return the actions that a checkpoint notes among the actor's weights. Raises TorchImportError if it does not."""
    names = ("continuous_act_size_vector", "discrete_act_size_vector")
    missing = [name for name in names if name not in policy]
    if missing:
        raise TorchImportError(f"Policy: has no {missing[0]}, so that its actions are unknown: give the environment "
                               "(--env)")  # fmt: skip
    continuous, branches = (np.asarray(policy[name]).reshape(-1) for name in names)
    return ActionSpec(int(continuous[0]), tuple(int(size) for size in branches))


def _compared(checkpoint: TorchCheckpoint, settings: BehaviorSettings) -> Iterator[tuple[str, object, object]]:
    """Yield key, value in the settings, and value in the checkpoint, where the checkpoint shows one."""
    network, policy = settings.network_settings, checkpoint.policy
    yield "trainer_type", settings.trainer_type, checkpoint.trainer_type
    layers = {int(match[1]) for name in policy if (match := _BODY.fullmatch(name))}
    if layers:
        width = next(x.shape[0] for name, x in policy.items() if _BODY.fullmatch(name) and name.endswith(".0.bias"))
        yield "network_settings.hidden_units", network.hidden_units, width
        yield "network_settings.num_layers", network.num_layers, len(layers)
    if "memory_size_vector" in policy:
        size = int(np.asarray(policy["memory_size_vector"]).reshape(-1)[0]) or None
        value = network.memory.memory_size if network.memory else None
        yield "network_settings.memory" if None in (size, value) else "network_settings.memory.memory_size", value, size
    yield from _observed(checkpoint, settings)
    if settings.trainer_type == checkpoint.trainer_type == "ppo":
        value = getattr(settings.hyperparameters, "shared_critic", False)
        yield "hyperparameters.shared_critic", value, shares_critic(policy)


def _observed(checkpoint: TorchCheckpoint, settings: BehaviorSettings) -> Iterator[tuple[str, object, object]]:
    """Yield likewise the settings that depend on the kinds of observations."""
    network, policy = settings.network_settings, checkpoint.policy
    if any(name.endswith(_NORMALIZER) for name in policy):
        yield "network_settings.normalize", network.normalize, True
    kinds = {_ENCODERS.get((x.shape[0], x.shape[-1])) for name, x in policy.items() if _FIRST_FILTERS.fullmatch(name)}
    if not kinds and any(_IMAGE.fullmatch(name) for name in policy):
        kinds = {"fully_connected"}
    if len(kinds) == 1 and None not in kinds:
        yield "network_settings.vis_encode_type", network.vis_encode_type, kinds.pop()
    if any(".hypernet." in name for name in policy):  # goals make the weights of the last hidden layer
        yield "network_settings.goal_conditioning_type", network.goal_conditioning_type, "hyper"
