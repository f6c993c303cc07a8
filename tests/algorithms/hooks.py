"""Functions that tests name in `postprocess`."""

from __future__ import annotations

from jaxrl.rollout.rollout import Rollout

calls: list[tuple[int, ...]] = []
NOT_A_FUNCTION = 1


def shared(rollout: Rollout) -> Rollout:
    """Half of what the mates have earned is one's own."""
    calls.append(rollout.reward.shape)
    return rollout._replace(reward=rollout.reward + 0.5 * rollout.mates_reward)


def shorter(rollout: Rollout) -> Rollout:
    return rollout._replace(reward=rollout.reward[1:])


def nothing(rollout: Rollout) -> None:
    return None
