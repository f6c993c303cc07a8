"""Running statistics of observations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.networks import normalizer
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec, ObservationType


def test_golden_two_batches():
    state = normalizer.update(normalizer.init(1), jnp.array([[2.0], [4.0]]), None)
    # count 1 + 2; mean 0 + (2 + 4) / 3 = 2; M2 1 + (2 - 2) * 2 + (4 - 2) * 4 = 9
    assert (state.count, state.mean[0], state.m2[0]) == (3, 2, 9)
    state = normalizer.update(state, jnp.array([[6.0]]), None)
    # count 4; mean 2 + (6 - 2) / 4 = 3; M2 9 + (6 - 3) * (6 - 2) = 21
    assert (state.count, state.mean[0], state.m2[0]) == (4, 3, 21)
    # (7 - 3) / sqrt(21 / 4)
    np.testing.assert_allclose(normalizer.normalize(state, jnp.array([7.0])), 4 / (21 / 4) ** 0.5, rtol=1e-6)
    assert normalizer.normalize(state, jnp.array([1e6]))[0] == 5
    assert normalizer.normalize(state, jnp.array([-1e6]))[0] == -5


def test_from_data_begins_with_the_first_batch():
    """Mean 3 and squares 1 + 1 of 2 and 4; with 9 mean 5 and 9 + 1 + 16. Before any data numbers are as they are."""
    state = normalizer.init(1, from_data=True)
    np.testing.assert_array_equal(normalizer.normalize(state, jnp.array([3.0])), [3.0])
    state = normalizer.update(state, jnp.array([[2.0], [4.0]]), None)
    assert (state.count, state.mean[0], state.m2[0]) == (2, 3, 2)
    state = normalizer.update(state, jnp.array([[9.0], [np.nan]]), jnp.array([True, False]))
    np.testing.assert_allclose((state.count, state.mean[0], state.m2[0]), (3, 5, 26), rtol=1e-6)


@pytest.mark.parametrize("offset", [1000.0, -1e5])
@pytest.mark.parametrize("from_data", [False, True])
def test_sums_are_exact_far_from_zero(offset, from_data):
    """Against ML-Agents' formula in float64, batches of a PPO buffer's size and of a few rows; deviation 1 and 3."""
    rng, update = np.random.default_rng(0), jax.jit(normalizer.update)
    weight = 0.0 if from_data else 1.0
    state, mean, m2, count = normalizer.init(2, from_data=from_data), np.zeros(2), np.full(2, weight), weight
    for size in (2048, 16, 2048, 3, 1024):
        rows = (offset + rng.normal(size=(size, 2)) * [1.0, 3.0]).astype(np.float32)
        state = update(state, jnp.asarray(rows), None)
        count += size
        before = rows - mean
        mean = mean + before.sum(0) / count
        m2 = m2 + ((rows - mean) * before).sum(0)
        np.testing.assert_allclose(state.mean, mean, atol=0.02)  # two steps of float32 at 1e5
        np.testing.assert_allclose(state.m2, m2, rtol=1e-4)


def test_a_number_that_never_changes_is_shown_as_zero():
    """Its variance is rounding at most; one that is 0 is not divided by 0."""
    state = normalizer.init(3, from_data=True)
    row = jnp.array([0.0, 0.1, 123456.7])
    for _ in range(3):
        state = normalizer.update(state, jnp.tile(row, (5, 1)), None)
    np.testing.assert_allclose(normalizer.normalize(state, row), 0.0, atol=0.6)
    np.testing.assert_array_equal(normalizer.normalize(state, row + jnp.array([0.5, 9.0, 9.0])), [0.5, 5.0, 5.0])


def test_one_batch_equals_the_same_rows_one_by_one():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (40, 3)).astype(np.float32)
    whole, single = normalizer.update(normalizer.init(3), jnp.asarray(rows), None), normalizer.init(3)
    for row in rows:
        single = normalizer.update(single, jnp.asarray(row[None]), None)
    np.testing.assert_allclose(whole.mean, single.mean, rtol=1e-4)
    np.testing.assert_allclose(whole.m2, single.m2, rtol=1e-4)
    assert whole.count == single.count


def test_masked_rows_are_ignored_even_if_nan():
    rows = np.random.default_rng(1).normal(size=(4, 5, 2)).astype(np.float32)
    mask = np.random.default_rng(2).uniform(size=(4, 5)) < 0.5
    expected = normalizer.update(normalizer.init(2), jnp.asarray(rows[mask]), None)
    poisoned = jnp.where(mask[..., None], rows, jnp.nan)
    state = normalizer.update(normalizer.init(2), poisoned, jnp.asarray(mask))
    np.testing.assert_allclose(state.mean, expected.mean, rtol=1e-5)
    np.testing.assert_allclose(state.m2, expected.m2, rtol=1e-5)
    assert state.count == expected.count
    same = normalizer.update(state, poisoned, jnp.zeros_like(mask))
    np.testing.assert_array_equal(same.mean, state.mean)


def test_one_entry_per_observation():
    spec = BehaviorSpec(
        (
            ObservationSpec("v", (3,)),
            ObservationSpec("image", (1, 20, 20)),
            ObservationSpec("goal", (2,), observation_type=ObservationType.GOAL_SIGNAL),
        ),
        ActionSpec(1, ()),
    )
    assert normalizer.init_all(spec, False) == (None, None, None)
    states = normalizer.init_all(spec, True)
    assert [s is not None for s in states] == [True, False, True]
    obs = (jnp.ones((2, 3)), jnp.ones((2, 1, 20, 20)), jnp.ones((2, 2)))
    states = normalizer.update_all(states, obs, None)
    assert states[0].count == 3 and states[1] is None
    shown = normalizer.normalize_all(states, obs)
    assert shown[1] is obs[1]
    # mean 2 / 3, M2 1 + 2 * (1 / 3) = 5 / 3, so (1 - 2 / 3) / sqrt(5 / 9)
    np.testing.assert_allclose(shown[0], (1 / 3) / (5 / 9) ** 0.5, rtol=1e-6)


def test_another_size_or_shape_of_the_mask_is_refused():
    state = normalizer.init(3)
    with pytest.raises(AssertionError):
        normalizer.update(state, jnp.zeros((6, 2)), None)  # would be four rows of three
    with pytest.raises(AssertionError):
        normalizer.update(state, jnp.zeros((6, 3)), jnp.ones(5, bool))
    with pytest.raises(AssertionError):
        normalizer.normalize(state, jnp.zeros((6, 1)))
