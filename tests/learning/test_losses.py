"""Losses: golden numbers, masks poisoned with NaN."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.learning import losses


def test_masked_mean_golden():
    mask = jnp.array([True, False, True])
    assert losses.masked_mean(jnp.array([1.0, 100.0, 4.0]), mask) == 2.5
    # columns share their row's mask: (1 + 2 + 5 + 6) / 4
    assert losses.masked_mean(jnp.array([[1.0, 2.0], [9.0, 9.0], [5.0, 6.0]]), mask) == 3.5
    assert losses.masked_mean(jnp.array([1.0, 2.0]), jnp.zeros(2)) == 0.0


def test_policy_loss_golden():
    # ratios 2 and 0.5 per column, epsilon 0.2; advantage 1: min(2, 1.2) and min(0.5, 0.8); advantage -1: the other way
    log_prob = jnp.log(jnp.array([[2.0, 0.5], [2.0, 0.5]]))
    got = losses.clipped_policy_loss(log_prob, jnp.zeros((2, 2)), jnp.array([1.0, -1.0]), jnp.ones(2), 0.2)
    assert got == pytest.approx(-(1.2 + 0.5 - 2.0 - 0.8) / 4)


def test_value_loss_golden():
    value, old, target = jnp.array([3.0, 1.0]), jnp.array([1.0, 1.0]), jnp.array([4.0, 0.0])
    # row 0: clipped value 1.2, max((4 - 3)², (4 - 1.2)²) = 7.84; row 1: 1
    assert losses.value_loss(value, old, target, jnp.ones(2), 0.2) == pytest.approx((7.84 + 1.0) / 2)
    assert losses.squared_value_loss(value, target, jnp.ones(2)) == pytest.approx((1.0 + 1.0) / 2)


def test_value_loss_is_the_mean_over_streams():
    rng = np.random.default_rng(0)
    value, old, target = (jnp.asarray(rng.normal(size=(7, 3)), jnp.float32) for _ in range(3))
    mask = jnp.asarray(rng.uniform(size=7) < 0.6)
    streams = [losses.value_loss(value[:, i], old[:, i], target[:, i], mask, 0.2) for i in range(3)]
    assert losses.value_loss(value, old, target, mask, 0.2) == pytest.approx(float(sum(streams)) / 3, rel=1e-5)


def test_normalized_advantages_golden():
    mask = jnp.array([True, True, False, True])
    got = losses.normalize_advantages(jnp.array([1.0, 2.0, jnp.nan, 3.0]), mask)
    # mean 2, population deviation sqrt(2 / 3)
    np.testing.assert_allclose(got, [-1 / math.sqrt(2 / 3), 0.0, 0.0, 1 / math.sqrt(2 / 3)], rtol=1e-6)
    np.testing.assert_array_equal(losses.normalize_advantages(jnp.full(3, 7.0), jnp.ones(3)), jnp.zeros(3))


@pytest.mark.parametrize("lead", [(12,), (4, 3), (2, 2, 3)])
def test_nan_where_masked_changes_neither_value_nor_gradient(lead):
    rng = np.random.default_rng(1)
    mask = jnp.asarray(rng.uniform(size=lead) < 0.5)
    rows = {name: jnp.asarray(rng.normal(size=lead), jnp.float32) for name in ("advantage",)}
    columns = {k: jnp.asarray(rng.normal(size=(*lead, 2)), jnp.float32) for k in ("new", "old", "value", "v0", "ret")}

    def total(x):
        return (
            losses.clipped_policy_loss(x["new"], x["old"], x["advantage"], mask, 0.2)
            + losses.value_loss(x["value"], x["v0"], x["ret"], mask, 0.2)
            + losses.squared_value_loss(x["value"], x["ret"], mask)
            + jnp.sum(losses.normalize_advantages(x["advantage"], mask) ** 3)
        )

    clean = rows | columns
    dirty = {k: jnp.where(mask if k in rows else mask[..., None], x, jnp.nan) for k, x in clean.items()}
    value, gradient = jax.value_and_grad(total)(clean)
    dirty_value, dirty_gradient = jax.value_and_grad(total)(dirty)
    np.testing.assert_array_equal(value, dirty_value)
    for name in clean:
        np.testing.assert_array_equal(gradient[name], dirty_gradient[name])
        assert not jnp.where(mask if name in rows else mask[..., None], 0.0, gradient[name]).any()


def test_leading_shape_does_not_matter():
    rng = np.random.default_rng(2)
    new, old = (jnp.asarray(rng.normal(size=(6, 4)), jnp.float32) for _ in range(2))
    advantage, mask = jnp.asarray(rng.normal(size=6), jnp.float32), jnp.asarray(rng.uniform(size=6) < 0.7)
    flat = losses.clipped_policy_loss(new, old, advantage, mask, 0.2)
    folded = losses.clipped_policy_loss(
        new.reshape(2, 3, 4), old.reshape(2, 3, 4), advantage.reshape(2, 3), mask.reshape(2, 3), 0.2
    )
    assert flat == pytest.approx(float(folded))


def test_shapes_that_would_broadcast_by_accident_are_refused():
    with pytest.raises(AssertionError):
        losses.squared_value_loss(jnp.zeros((4, 1)), jnp.zeros((4,)), jnp.ones(4))
    with pytest.raises(AssertionError):
        losses.masked_mean(jnp.zeros((4, 3)), jnp.ones(3))
    with pytest.raises(AssertionError):
        losses.clipped_policy_loss(jnp.zeros(4), jnp.zeros(4), jnp.zeros(4), jnp.ones(4), 0.2)  # no column axis
    with pytest.raises(AssertionError):
        losses.clipped_policy_loss(jnp.zeros((4, 2)), jnp.zeros((4, 2)), jnp.zeros((4, 2)), jnp.ones(4), 0.2)
    with pytest.raises(AssertionError):
        losses.value_loss(jnp.zeros(4), jnp.zeros((4, 1)), jnp.zeros(4), jnp.ones(4), 0.2)
    with pytest.raises(AssertionError):
        losses.normalize_advantages(jnp.zeros((4, 1)), jnp.ones(4))
