"""Action distributions: golden numbers, sampling frequencies, masks."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.networks import actions
from jaxrl.networks.actions import ActionDistribution
from jaxrl.types import Action, ActionSpec

HYBRID = ActionSpec(2, (3, 2))


def hybrid(n: int = 1) -> ActionDistribution:
    return ActionDistribution(
        mean=jnp.broadcast_to(jnp.array([0.5, -1.0]), (n, 2)),
        log_sigma=jnp.array([0.0, math.log(2.0)]),
        logits=jnp.log(jnp.broadcast_to(jnp.array([0.2, 0.3, 0.5, 0.9, 0.1]), (n, 5))),
    )


def test_golden_log_probabilities():
    action = Action(jnp.array([[1.5, 1.0]]), jnp.array([[2, 1]], jnp.int32))
    got = actions.log_prob(hybrid(), action, jnp.ones((1, 5), bool), HYBRID)[0]
    half_log = 0.5 * math.log(2 * math.pi)
    expected = [
        -(1.0**2) / 2 - half_log,  # (1.5 - 0.5)² / (2 · 1²), ln 1 = 0
        -(2.0**2) / 8 - math.log(2.0) - half_log,  # (1 + 1)² / (2 · 2²)
        math.log(0.5),
        math.log(0.1),
    ]
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_golden_entropy():
    got = actions.entropy(hybrid(), jnp.ones((1, 5), bool), HYBRID)
    gaussian = [0.5 * math.log(2 * math.pi * math.e * s**2) for s in (1.0, 2.0)]
    branches = [-sum(p * math.log(p) for p in ps) for ps in ((0.2, 0.3, 0.5), (0.9, 0.1))]
    # the mean over continuous dimensions, the sum over branches
    np.testing.assert_allclose(got, [sum(gaussian) / 2 + sum(branches)], rtol=1e-5)


def test_forbidden_actions_get_no_probability():
    mask = jnp.array([[True, False, True, False, True]])
    first, second = actions.probabilities(hybrid(), mask, HYBRID)
    np.testing.assert_allclose(first[0], [0.2 / 0.7, 0.0, 0.5 / 0.7], rtol=1e-5)
    np.testing.assert_array_equal(second[0], [0.0, 1.0])
    action = Action(jnp.zeros((1, 2)), jnp.array([[1, 1]], jnp.int32))
    assert actions.log_prob(hybrid(), action, mask, HYBRID)[0, 2] == pytest.approx(math.log(1e-7), rel=1e-5)


def test_sample_frequencies_and_moments():
    n = 20_000
    mask = jnp.broadcast_to(jnp.array([True, False, True, True, True]), (n, 5))
    action = actions.sample(jax.random.key(3), hybrid(n), mask, HYBRID)
    assert action.continuous.shape == (n, 2) and action.discrete.dtype == jnp.int32
    np.testing.assert_allclose(action.continuous.mean(0), [0.5, -1.0], atol=0.05)
    np.testing.assert_allclose(action.continuous.std(0), [1.0, 2.0], rtol=0.03)
    first = np.bincount(np.asarray(action.discrete[:, 0]), minlength=3) / n
    np.testing.assert_allclose(first, [0.2 / 0.7, 0.0, 0.5 / 0.7], atol=0.02)
    assert first[1] == 0.0
    # columns are independent
    assert abs(np.corrcoef(action.discrete[:, 0], action.discrete[:, 1])[0, 1]) < 0.03
    assert abs(np.corrcoef(action.continuous[:, 0], action.discrete[:, 0])[0, 1]) < 0.03


def test_a_last_forbidden_action_is_never_reached():
    # logits so uneven that rounding would give the last, forbidden one to a careless inverse distribution function
    spec, n = ActionSpec(0, (4,)), 50_000
    dist = ActionDistribution(jnp.zeros((n, 0)), jnp.zeros(0), jnp.tile(jnp.array([0.0, 1.0, -30.0, 90.0]), (n, 1)))
    mask = jnp.broadcast_to(jnp.array([True, True, True, False]), (n, 4))
    assert int(actions.sample(jax.random.key(0), dist, mask, spec).discrete.max()) <= 2


@pytest.mark.parametrize("place", ["begin", "middle", "end", "all over"])
@pytest.mark.parametrize("size", [7, 300, 1000])
def test_no_uniform_number_reaches_an_action_without_probability(size, place):
    """Numbers at, just below and just above every step of the cumulative sums, as XLA and as float64 add them up."""
    rng, index = np.random.default_rng(size), np.arange(size) / size
    allowed = {"begin": index > 0.6, "middle": (index < 0.2) | (index > 0.8), "end": index < 0.4}
    softmax, cumsum, choose = jax.jit(jax.nn.softmax), jax.jit(jnp.cumsum), jax.jit(actions.choose)
    for _ in range(8 if size < 1000 else 2):  # of 6,000 numbers each
        mask = allowed.get(place, index >= 0) & (rng.random(size) < 0.5) | (np.arange(size) == size // 10)
        p = np.asarray(softmax(np.where(mask, rng.normal(0, 2, size), -1e8).astype(np.float32)))
        steps = np.concatenate([cumsum(p) / p.sum(), np.cumsum(p, dtype=np.float64)]).astype(np.float32)
        near = [np.nextafter(steps, np.float32(0)), steps, np.nextafter(steps, np.float32(2))]
        uniform = np.concatenate([*near, np.array([0, 2.0**-23, 0.5, 1], np.float32)])
        uniform = np.minimum(uniform, np.float32(1 - 2.0**-24))
        chosen = choose(np.repeat(p[:, None], len(uniform), axis=1), uniform)
        assert mask[chosen].all()
        # and it is the one whose step the number lies on: Σ p before it <= u < Σ p up to it, but for rounding
        upper = np.cumsum(p, dtype=np.float64) / p.sum(dtype=np.float64)
        lower = np.concatenate([[0.0], upper[:-1]])
        np.testing.assert_array_less(lower[chosen] - 1e-6, uniform)
        np.testing.assert_array_less(uniform, upper[chosen] + 1e-6)


def test_mode():
    mask = jnp.array([[True, True, False, True, True]])
    action = actions.mode(hybrid(), mask, HYBRID)
    np.testing.assert_array_equal(action.continuous, [[0.5, -1.0]])
    np.testing.assert_array_equal(action.discrete, [[1, 0]])


def test_to_environment_and_one_hot():
    action = Action(jnp.array([[6.0, -1.5]]), jnp.array([[2, 0]], jnp.int32))
    np.testing.assert_allclose(actions.to_environment(action).continuous, [[1.0, -0.5]])
    np.testing.assert_array_equal(actions.one_hot(action, HYBRID), [[6.0, -1.5, 0, 0, 1, 1, 0]])


def test_shapes_that_would_broadcast_by_accident_are_refused():
    action = Action(jnp.zeros((1, 2)), jnp.zeros((1, 2), jnp.int32))
    mask = jnp.ones((1, 5), bool)
    with pytest.raises(AssertionError):
        actions.sample(jax.random.key(0), hybrid(3), mask, HYBRID)  # one mask for three rows
    with pytest.raises(AssertionError):
        actions.mode(hybrid(), jnp.ones((1, 4), bool), HYBRID)
    with pytest.raises(AssertionError):
        actions.log_prob(hybrid(), action._replace(continuous=jnp.zeros((1, 1))), mask, HYBRID)
    with pytest.raises(AssertionError):
        actions.log_prob(hybrid(), action._replace(discrete=jnp.zeros((2, 2), jnp.int32)), mask, HYBRID)
    with pytest.raises(AssertionError):
        actions.entropy(hybrid(), mask, ActionSpec(1, (3, 2)))
    with pytest.raises(AssertionError):
        actions.one_hot(action, ActionSpec(2, (5,)))


@pytest.mark.parametrize("spec", [ActionSpec(2, ()), ActionSpec(0, (3,)), HYBRID])
def test_any_leading_axes(spec):
    lead = (4, 2, 3)
    dist = ActionDistribution(
        jnp.zeros((*lead, spec.continuous_size)), jnp.zeros(spec.continuous_size), jnp.zeros((*lead, spec.mask_size))
    )
    mask = jnp.ones((*lead, spec.mask_size), bool)
    action = actions.sample(jax.random.key(0), dist, mask, spec)
    assert action.continuous.shape == (*lead, spec.continuous_size)
    assert action.discrete.shape == (*lead, len(spec.discrete_branches))
    assert actions.log_prob(dist, action, mask, spec).shape == (*lead, spec.columns)
    assert actions.entropy(dist, mask, spec).shape == lead
    assert actions.mode(dist, mask, spec).discrete.dtype == jnp.int32


def test_gradient_raises_the_probability_of_the_chosen_action():
    action = Action(jnp.array([[2.0, 0.0]]), jnp.array([[0, 1]], jnp.int32))
    mask = jnp.ones((1, 5), bool)
    gradient = jax.grad(lambda d: actions.log_prob(d, action, mask, HYBRID).sum())(hybrid())
    # d ln p_0 / d logits = one-hot - p
    np.testing.assert_allclose(gradient.logits[0], [0.8, -0.3, -0.5, -0.9, 0.9], rtol=1e-4)
    # (a - mean) / sigma²
    np.testing.assert_allclose(gradient.mean[0], [1.5, 0.25], rtol=1e-4)


def test_numbers_drawn_in_advance_give_the_same_actions():
    mask = jnp.ones((4, HYBRID.mask_size), bool)
    key = jax.random.key(9)
    drawn = actions.noise(key, (4,), HYBRID)
    assert drawn.shape == (4, HYBRID.columns)
    before, after = (actions.sample(given, hybrid(4), mask, HYBRID) for given in (key, drawn))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    with pytest.raises(AssertionError):
        actions.sample(drawn[:3], hybrid(4), mask, HYBRID)
