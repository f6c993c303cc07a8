"""Checks that every environment of the host loop makes before it takes actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl.types import Action, BehaviorSpec, JaxrlError


class ActionError(JaxrlError):
    """Actions that do not fit the agents that asked, or are not finite. Nothing was sent."""


def check_actions(
    actions: Mapping[str, Action], asked: Mapping[str, np.ndarray], specs: Mapping[str, BehaviorSpec]
) -> None:
    """Raise ActionError unless there is one fitting, finite action for each agent that asked, by behavior."""
    for behavior, agents in asked.items():
        if behavior in actions:
            _check_action(behavior, actions[behavior], agents, specs[behavior])
        elif len(agents):
            raise ActionError(f"behavior {behavior!r}: {len(agents)} agents asked for actions and got none")
    for behavior in actions.keys() - asked.keys():
        if len(actions[behavior].continuous) or len(actions[behavior].discrete):
            raise ActionError(f"behavior {behavior!r}: no agent of it asked for actions; asked: {sorted(asked)}")


def whole(discrete: Any) -> np.ndarray:
    """Return discrete actions as int32. Raises ActionError for fractions, which would be lost."""
    numbers = np.asarray(discrete)
    result = numbers.astype(np.int32)
    if (result != numbers).any():
        raise ActionError(f"discrete actions: got {numbers[result != numbers].tolist()}, expected whole numbers")
    return result


def _check_action(behavior: str, action: Action, agents: np.ndarray, spec: BehaviorSpec) -> None:
    branches = spec.action.discrete_branches
    expected = (len(agents), spec.action.continuous_size), (len(agents), len(branches))
    given: Any = action.continuous.shape, action.discrete.shape
    if given != expected:
        raise ActionError(
            f"behavior {behavior!r}: expected actions of shapes {expected} (continuous, discrete), given {given}"
        )
    wrong = ~np.isfinite(action.continuous).all(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ActionError(
            f"behavior {behavior!r}, agent {agents[row]}: continuous action {action.continuous[row].tolist()} is not "
            "finite: the policy has diverged; lower the learning rate, or check the observations' scale"
        )
    wrong = ((action.discrete < 0) | (action.discrete >= np.array(branches, np.int64))).any(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ActionError(
            f"behavior {behavior!r}, agent {agents[row]}: discrete action {action.discrete[row].tolist()} is outside "
            f"of the branch sizes {branches}"
        )
