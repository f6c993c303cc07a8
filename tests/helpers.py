"""Small builders that many tests share: settings, specs and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.settings import BehaviorSettings
from jaxrl.settings.behavior import TYPES
from jaxrl.types import (
    NO_GROUP,
    ActionSpec,
    BehaviorMessage,
    BehaviorSpec,
    DecisionSteps,
    ObservationSpec,
    TerminalSteps,
)


def settings_of(trainer: str, overrides: Mapping[str, Any]) -> BehaviorSettings:
    """Settings as a file would give them; `hyperparameters__beta=0` reaches a nested key."""
    written: dict[str, Any] = {"trainer_type": trainer}
    for key, value in overrides.items():
        *path, last = key.split("__")
        section = written
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    return BehaviorSettings.model_validate(written, context={TYPES: HYPERPARAMETER_TYPES})


def poca_settings(**overrides: Any) -> BehaviorSettings:
    """MA-POCA with its defaults but for the overrides."""
    return settings_of("poca", overrides)


def ppo_settings(**overrides: Any) -> BehaviorSettings:
    """PPO with its defaults but for the overrides."""
    return settings_of("ppo", overrides)


def make_spec(*shapes: tuple[int, ...], continuous: int = 0, branches: tuple[int, ...] = ()) -> BehaviorSpec:
    """One sensor per shape."""
    sensors = tuple(ObservationSpec(name=f"sensor_{i}", shape=shape) for i, shape in enumerate(shapes))
    return BehaviorSpec(observations=sensors, action=ActionSpec(continuous, branches))


def terminal_steps(
    spec: BehaviorSpec,
    agents: Sequence[int] = (),
    *,
    groups: Sequence[int] | None = None,
    reward: Sequence[float] | None = None,
    group_reward: Sequence[float] | None = None,
    truncated: Sequence[bool] | None = None,
    obs: Sequence[Any] | None = None,
) -> TerminalSteps:
    """Ended part of a message; what is left out is zero (observations: the agent's id in every number)."""
    n = len(agents)
    return TerminalSteps(
        agent_id=np.asarray(agents, np.int64),
        group_id=np.full(n, NO_GROUP, np.int64) if groups is None else np.asarray(groups, np.int64),
        reward=np.zeros(n, np.float32) if reward is None else np.asarray(reward, np.float32),
        group_reward=np.zeros(n, np.float32) if group_reward is None else np.asarray(group_reward, np.float32),
        truncated=np.zeros(n, bool) if truncated is None else np.asarray(truncated, bool),
        obs=_observations(spec, agents, obs),
    )


def decision_steps(
    spec: BehaviorSpec,
    agents: Sequence[int] = (),
    *,
    groups: Sequence[int] | None = None,
    reward: Sequence[float] | None = None,
    group_reward: Sequence[float] | None = None,
    action_mask: Any | None = None,
    obs: Sequence[Any] | None = None,
) -> DecisionSteps:
    """Deciding part of a message; what is left out is zero (masks: everything allowed)."""
    n, m = len(agents), spec.action.mask_size
    return DecisionSteps(
        agent_id=np.asarray(agents, np.int64),
        group_id=np.full(n, NO_GROUP, np.int64) if groups is None else np.asarray(groups, np.int64),
        reward=np.zeros(n, np.float32) if reward is None else np.asarray(reward, np.float32),
        group_reward=np.zeros(n, np.float32) if group_reward is None else np.asarray(group_reward, np.float32),
        action_mask=np.ones((n, m), bool) if action_mask is None else np.asarray(action_mask, bool).reshape(n, m),
        obs=_observations(spec, agents, obs),
    )


def message(
    spec: BehaviorSpec, ended: TerminalSteps | None = None, deciding: DecisionSteps | None = None
) -> BehaviorMessage:
    """One behavior's part of one message."""
    return BehaviorMessage(
        ended=terminal_steps(spec) if ended is None else ended,
        deciding=decision_steps(spec) if deciding is None else deciding,
    )


def _observations(spec: BehaviorSpec, agents: Sequence[int], obs: Sequence[Any] | None) -> tuple[np.ndarray, ...]:
    if obs is not None:
        return tuple(np.asarray(x, np.float32) for x in obs)
    ids = np.asarray(agents, np.float32)
    return tuple(
        np.broadcast_to(ids.reshape(-1, *[1] * len(s.shape)), (len(agents), *s.shape)).copy() for s in spec.observations
    )
