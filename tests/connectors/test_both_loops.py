"""X4, X6, R-1.5: the connectors of both loops make the same of the same steps."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl.jax_envs.ball3d import make_ball3d
from jaxrl.rollout.rollout import Rollout
from tests.connectors.connected_loops import through_both
from tests.jax_envs.toy_jax_env import ToySettings, make_toy

TOY = ToySettings(members=3, length=7, die=True, spawn=True, obs_size=5, actions=3)
CHAIN = (
    {"type": "clip", "low": -0.9, "high": 0.9},
    {"type": "one_hot", "sensor": "lamp", "column": 2, "values": 3},
    {"type": "normalize"},
    {"type": "clip", "of": "rewards", "low": -0.5, "high": 0.5},
    {"type": "normalize_rewards", "gamma": 0.9},
    {"type": "frame_stack", "frames": 3},
    {"type": "previous_action"},
    {"type": "previous_reward"},
    {"type": "scale", "factor": 2.0, "sensors": ["previous_reward"]},
)
FIELDS = ("reward", "group_reward", "mates_reward", "begin", "terminated", "truncated", "left", "cut")


@pytest.mark.parametrize(
    ("truncates", "team_rows"),
    [
        (True, True),
        (False, False),
        *(pytest.param(*of, marks=pytest.mark.slow) for of in ((True, False), (False, True))),
    ],
)
def test_x4_both_loops_agree(truncates: bool, team_rows: bool) -> None:
    """Everything that is learned from, of members that end alone, are replaced, and are cut off; and statistics."""
    env = make_toy(TOY._replace(truncates=truncates))
    both = through_both(env, *CHAIN, team_rows=team_rows)
    for ours, theirs in zip(both.compiled, both.host, strict=True):
        assert_same(ours, theirs)
    assert any(rollout.truncated.any() for rollout in both.compiled) == truncates
    ours, theirs = both.statistics
    assert ours[2]["0"].count == both.raw.alive.sum() == ours[4].count - 1  # rewards begin with a row of 0
    np.testing.assert_allclose(theirs[4].variance, ours[4].variance, rtol=1e-4)


def test_x5_both_loops_agree_on_continuous_actions() -> None:
    """The previous action is the one that was drawn, between -3 and 3, in both."""
    chain = ({"type": "previous_action"}, {"type": "unsquash", "low": -1.0, "high": 1.0})
    both = through_both(make_ball3d(), *chain, team_rows=False)
    for ours, theirs in zip(both.compiled, both.host, strict=True):
        assert_same(ours, theirs)
    assert np.abs(both.compiled[0].obs[1]).max() > 1.0


def assert_same(ours: Rollout, theirs: Rollout) -> None:
    """By the number of the decision; and the true last observations of those who were cut off."""
    (mine, my_last), (other, other_last) = _by_number(ours), _by_number(theirs)
    assert len(mine["reward"]) == len(other["reward"]) > 0
    for name, expected in other.items():
        np.testing.assert_allclose(mine[name], expected, rtol=1e-4, atol=1e-4, err_msg=name)
    for a, b in zip(my_last, other_last, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def _by_number(rollout: Rollout) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    acted = rollout.acted
    order = np.argsort(rollout.extras["log_prob"][acted][:, 0])
    parts = {name: getattr(rollout, name)[acted][order] for name in FIELDS}
    parts |= {f"obs {i}": x[acted][order] for i, x in enumerate(rollout.obs)}
    cut_off = (acted & rollout.truncated)[acted][order]
    after = [np.roll(x, -1, axis=0)[acted][order][cut_off] for x in rollout.obs]
    return parts, after
