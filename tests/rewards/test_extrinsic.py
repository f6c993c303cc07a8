"""The environment's reward as a stream: who counts what."""

import numpy as np
import pytest

from jaxrl.rewards import REWARD_SIGNALS
from tests.algorithms.team_rollouts import random_rollout

extrinsic = REWARD_SIGNALS["extrinsic"]


def rollout():
    """One state of three members: rewards 1, 2, 4; group rewards 0, 8, 8; the first has left."""
    base = random_rollout(0, t=1, b=1, a=3)
    flags = np.ones((1, 1, 3), bool)
    return base._replace(
        acted=flags,
        reward=np.array([[[1, 2, 4]]], np.float32),
        group_reward=np.array([[[0, 8, 8]]], np.float32),
        left=np.array([[[True, False, False]]]),
    )


def test_a_lone_agent_counts_its_own_and_its_share_of_the_group() -> None:
    """strength 0.5: (1 + 0) / 2, (2 + 8) / 2, (4 + 8) / 2."""
    found = extrinsic(rollout(), strength=0.5, cooperative=False)
    np.testing.assert_allclose(found[0, 0], [0.5, 5.0, 6.0])


def test_a_team_counts_everybody_and_the_dead_have_what_the_step_earned() -> None:
    """1 + 2 + 4 = 7 for all; the first left and got nothing: the mean 8 of those who stayed counts for it, too."""
    found = extrinsic(rollout(), strength=1.0, cooperative=True)
    np.testing.assert_allclose(found[0, 0], [15.0, 15.0, 15.0])


def test_a_group_reward_of_its_own_stays() -> None:
    """Who left with a group reward of its own keeps that one: 7 + 3."""
    found = extrinsic(
        rollout()._replace(group_reward=np.array([[[3, 8, 8]]], np.float32)), strength=1.0, cooperative=True
    )
    assert float(found[0, 0, 0]) == pytest.approx(10.0)


def test_nobody_is_paid_without_a_decision() -> None:
    """A member that did not act has 0, and what the others earned does not change with it."""
    masked = rollout()._replace(
        acted=np.array([[[True, True, False]]]),
        reward=np.array([[[1, 2, 0]]], np.float32),
        group_reward=np.array([[[0, 8, 0]]], np.float32),
    )
    np.testing.assert_allclose(extrinsic(masked, strength=1.0, cooperative=True)[0, 0], [11.0, 11.0, 0.0])
