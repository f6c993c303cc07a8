"""Some agents of a message, by their places in it, and two lists of ended agents as one. Numpy only."""

from __future__ import annotations

import numpy as np

from jaxrl.types import DecisionSteps, TerminalSteps


def some_ended(steps: TerminalSteps, places: np.ndarray) -> TerminalSteps:
    """Ended agents at `places`, int64 [K], in that order."""
    return TerminalSteps(
        agent_id=steps.agent_id[places],
        group_id=steps.group_id[places],
        reward=steps.reward[places],
        group_reward=steps.group_reward[places],
        truncated=steps.truncated[places],
        obs=tuple(sensor[places] for sensor in steps.obs),
    )


def some_deciding(steps: DecisionSteps, places: np.ndarray) -> DecisionSteps:
    """Deciding agents at `places`, int64 [K], in that order."""
    return DecisionSteps(
        agent_id=steps.agent_id[places],
        group_id=steps.group_id[places],
        reward=steps.reward[places],
        group_reward=steps.group_reward[places],
        action_mask=steps.action_mask[places],
        obs=tuple(sensor[places] for sensor in steps.obs),
    )


def all_ended(first: TerminalSteps, second: TerminalSteps) -> TerminalSteps:
    """Ended agents of both, those of `first` in front."""
    return TerminalSteps(
        agent_id=np.concatenate([first.agent_id, second.agent_id]),
        group_id=np.concatenate([first.group_id, second.group_id]),
        reward=np.concatenate([first.reward, second.reward]),
        group_reward=np.concatenate([first.group_reward, second.group_reward]),
        truncated=np.concatenate([first.truncated, second.truncated]),
        obs=tuple(np.concatenate(pair) for pair in zip(first.obs, second.obs, strict=True)),
    )
