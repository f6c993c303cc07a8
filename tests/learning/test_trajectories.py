"""Means over trajectories by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.learning.trajectories import mean_over_trajectories, trajectory_weights

NAN = np.nan
# Two members, time downwards. The first: 1 and 3 | silent | 5 ... and one that is not over: 7, silent, 11.
# The second: a single 2 | 4, silent, 6, 8 that nobody ends.
ACTED = jnp.array([[1, 1], [1, 0], [0, 1], [1, 0], [1, 1], [0, 1], [1, 0]], bool)
LAST = jnp.array([[0, 1], [1, 0], [0, 0], [1, 0], [0, 0], [0, 0], [0, 0]], bool)
X = jnp.array([[1, 2], [3, NAN], [NAN, 4], [5, NAN], [7, 6], [NAN, 8], [11, NAN]], jnp.float32)


def test_a_short_trajectory_counts_like_a_long_one() -> None:
    """P6: (1 + 3)/2 = 2, 5, (7 + 11)/2 = 9 and 2, (4 + 6 + 8)/3 = 6: 24/5 = 4.8, where the mean is 5.22."""
    assert mean_over_trajectories(X, ACTED, LAST) == pytest.approx(4.8)
    assert np.nanmean(X) == pytest.approx(47 / 9)
    weights = trajectory_weights(ACTED, LAST)
    expected = np.array([[3, 6], [3, 0], [0, 2], [6, 0], [3, 2], [0, 2], [3, 0]], np.float32) / 6
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    assert weights.sum() == pytest.approx(5.0), "the number of trajectories"


def test_trailing_axes_seeds_and_nothing_at_all() -> None:
    team = [x.reshape(7, 1, 2) for x in (X, ACTED, LAST)]
    assert mean_over_trajectories(*team) == pytest.approx(4.8)
    seeds = jax.vmap(mean_over_trajectories)(*(jnp.stack([x, x]) for x in team))
    np.testing.assert_allclose(seeds, [4.8, 4.8], rtol=1e-6)
    nobody = jnp.zeros((7, 1, 2), bool)
    assert mean_over_trajectories(team[0], nobody, team[2]) == 0.0
    assert mean_over_trajectories(X[:, 0], ACTED[:, 0], LAST[:, 0]) == pytest.approx(16 / 3)


def test_what_ends_without_a_decision_ends_nothing() -> None:
    """`last` counts where somebody acted alone."""
    acted, last = jnp.array([[True], [False], [True]]), jnp.array([[False], [True], [True]])
    assert mean_over_trajectories(jnp.array([[2.0], [NAN], [4.0]]), acted, last) == pytest.approx(3.0)
