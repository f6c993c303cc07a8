"""The environment's reward as a stream: who counts what."""

import numpy as np

from jaxrl.rewards import REWARD_SIGNALS
from tests.algorithms.team_rollouts import random_rollout


def extrinsic(rollout, *, cooperative: bool):
    return REWARD_SIGNALS["extrinsic"].reward((), rollout, cooperative=cooperative)


def rollout():
    """One state of three: rewards 1, 2, 4 and those of their mates; group rewards 0, 8, 8; the first has left."""
    base = random_rollout(0, t=1, b=1, a=3)
    flags, nobody = np.ones((1, 1, 3), bool), np.zeros((1, 1, 3), bool)
    return base._replace(
        acted=flags,
        reward=np.array([[[1, 2, 4]]], np.float32),
        mates_reward=np.array([[[6, 5, 3]]], np.float32),
        group_reward=np.array([[[0, 8, 8]]], np.float32),
        left=np.array([[[True, False, False]]]),
        terminated=nobody,
        truncated=nobody,
        cut=nobody,
    )


def test_a_lone_agent_counts_its_own_and_its_share_of_the_group() -> None:
    """1 + 8, as it left and its mates got 8; 2 + 8; 4 + 8."""
    np.testing.assert_allclose(extrinsic(rollout(), cooperative=False)[0, 0], [9.0, 10.0, 12.0])


def test_a_team_counts_everybody_and_the_dead_have_what_the_step_earned() -> None:
    """1 + 2 + 4 = 7 for all; the first left and got nothing: the 8 of those who stayed counts for it, too."""
    np.testing.assert_allclose(extrinsic(rollout(), cooperative=True)[0, 0], [15.0, 15.0, 15.0])


def test_the_share_of_the_dead_is_the_one_of_largest_magnitude() -> None:
    """Its own 3 is less than the 8 of its mates, its own -9 is more; those who live keep theirs."""
    for own, counted in ((3, 8), (-9, -9)):
        group = np.array([[[own, 8, 8]]], np.float32)
        found = extrinsic(rollout()._replace(group_reward=group), cooperative=True)
        np.testing.assert_allclose(found[0, 0], [7 + counted, 15, 15])


def test_nobody_is_paid_without_a_decision() -> None:
    """A member that did not act has 0, and its share of the group is nobody's."""
    masked = rollout()._replace(
        acted=np.array([[[True, True, False]]]),
        reward=np.array([[[1, 2, 0]]], np.float32),
        mates_reward=np.array([[[2, 1, 0]]], np.float32),
        group_reward=np.array([[[0, 8, 50]]], np.float32),
    )
    np.testing.assert_allclose(extrinsic(masked, cooperative=True)[0, 0], [11.0, 11.0, 0.0])
