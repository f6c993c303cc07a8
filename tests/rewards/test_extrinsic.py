"""The environment's reward as a stream: who counts what. `strength` is applied by `batches.stream_returns`."""

import numpy as np
import pytest

from jaxrl.rewards.extrinsic import EXTRINSIC
from tests.algorithms.team_rollouts import random_rollout

reward = EXTRINSIC.reward
ENDED = pytest.mark.parametrize("kind", ["left", "terminated", "truncated"])


def rollout(kind: str = "left", group_reward: tuple[float, float, float] = (0, 8, 8)):
    """One state of three members with rewards 1, 2, 4; the first has ended in this way."""
    base = random_rollout(0, t=1, b=1, a=3)
    flags = np.ones((1, 1, 3), bool)
    nobody = dict.fromkeys(("left", "terminated", "truncated", "cut"), ~flags)
    return base._replace(
        acted=flags,
        reward=np.array([[[1, 2, 4]]], np.float32),
        mates_reward=np.array([[[6, 5, 3]]], np.float32),
        group_reward=np.array([[group_reward]], np.float32),
        **nobody | {kind: np.array([[[True, False, False]]])},
    )


@ENDED
def test_a_lone_agent_counts_its_own_and_its_share_of_the_group(kind: str) -> None:
    """2 + 8 and 4 + 8. The first ended and got nothing of the group's 8, which counts for it, too: 1 + 8."""
    np.testing.assert_allclose(reward((), rollout(kind), cooperative=False)[0, 0], [9.0, 10.0, 12.0])


@ENDED
def test_a_team_counts_everybody_and_the_dead_have_what_the_step_earned(kind: str) -> None:
    """1 + 2 + 4 = 7 for all; the first ended and got nothing: the 8 of those who stayed counts for it, too."""
    np.testing.assert_allclose(reward((), rollout(kind), cooperative=True)[0, 0], [15.0, 15.0, 15.0])


def test_mates_count_with_what_they_earned_while_the_decision_was_open() -> None:
    """A slow member's mates earned 60 meanwhile, not the 6 of this state: 1 + 60 + 8."""
    slow = rollout()._replace(mates_reward=np.array([[[60, 5, 3]]], np.float32))
    np.testing.assert_allclose(reward((), slow, cooperative=True)[0, 0], [69.0, 15.0, 15.0])


@ENDED
@pytest.mark.parametrize(
    ("group_reward", "credited"),
    [((3, 8, 8), 8), ((-0.5, 8, 7), 8), ((9, 8, 8), 9), ((0.5, -2, 1), -2), ((-2, 2, 0), 2), ((0, 0, 0), 0)],
)
@pytest.mark.parametrize("cooperative", [True, False], ids=["team", "member"])
def test_who_ended_has_the_group_reward_of_largest_magnitude(kind, group_reward, credited, cooperative) -> None:
    """Also where it was given one of its own, which stood until issue 7: a reward that everybody gets all the time
    would hide what its death earned the team. Those who go on keep what they were given.
    """
    found = reward((), rollout(kind, group_reward), cooperative=cooperative)[0, 0]
    own = np.array([7, 7, 7] if cooperative else [1, 2, 4])
    np.testing.assert_allclose(found - own, [credited, *group_reward[1:]])


def test_nobody_is_paid_without_a_decision() -> None:
    """A member that did not act has 0, whatever stands there; what the others earned does not change with it."""
    masked = rollout()._replace(
        acted=np.array([[[True, True, False]]]),
        reward=np.array([[[1, 2, 0]]], np.float32),
        mates_reward=np.array([[[2, 1, 0]]], np.float32),
        group_reward=np.array([[[0, 8, 0]]], np.float32),
    )
    np.testing.assert_allclose(reward((), masked, cooperative=True)[0, 0], [11.0, 11.0, 0.0])
    rubbish = {name: np.where(masked.acted, getattr(masked, name), 99) for name in ("reward", "group_reward")}
    np.testing.assert_allclose(reward((), masked._replace(**rubbish), cooperative=True)[0, 0], [11.0, 11.0, 0.0])


def test_it_learns_nothing() -> None:
    """No state, no metrics."""
    state, metrics = EXTRINSIC.learn((), rollout(), None)
    assert (state, metrics) == ((), {})
