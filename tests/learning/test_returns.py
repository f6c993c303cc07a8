"""Returns: golden numbers, a plain loop, states in which an agent did not act."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.learning import returns


def loop(reward, value, bootstrap, discount, lambd, acted, waiting):
    """`lambda_return` of one element as a plain loop."""
    result, next_return, next_value = np.zeros(len(reward)), bootstrap, bootstrap
    for t in reversed(range(len(reward))):
        if acted[t]:
            next_return = reward[t] + discount[t] * ((1 - lambd[t]) * next_value + lambd[t] * next_return)
            next_value = value[t]
            result[t] = next_return
        elif not waiting[t]:
            next_return = next_value = value[t]
    return result


def test_lambda_return_golden():
    reward, value = jnp.array([1.0, 2.0, 3.0]), jnp.array([10.0, 20.0, 30.0])
    got = returns.lambda_return(reward, value, jnp.float32(40.0), 0.5, 0.25)
    last = 3 + 0.5 * 40
    middle = 2 + 0.5 * (0.75 * 30 + 0.25 * last)
    first = 1 + 0.5 * (0.75 * 20 + 0.25 * middle)
    np.testing.assert_allclose(got, [first, middle, last], rtol=1e-6)


def test_gae_golden():
    reward, value = jnp.array([1.0, 2.0]), jnp.array([10.0, 20.0])
    got = returns.gae(reward, value, jnp.float32(40.0), 0.5, 0.25)
    last = 2 + 0.5 * 40 - 20
    first = (1 + 0.5 * 20 - 10) + 0.5 * 0.25 * last
    np.testing.assert_allclose(got, [first, last], rtol=1e-6)


def test_discounted_sum_golden():
    got = returns.discounted_sum(jnp.array([1.0, 2.0, 3.0]), jnp.float32(8.0), 0.5)
    np.testing.assert_allclose(got, [1 + 0.5 * (2 + 0.5 * (3 + 0.5 * 8)), 2 + 0.5 * (3 + 0.5 * 8), 3 + 0.5 * 8])
    acted = jnp.array([True, False, True])
    passed = returns.discounted_sum(jnp.array([1.0, jnp.nan, 3.0]), jnp.float32(8.0), 0.5, acted)
    np.testing.assert_allclose(passed, [1 + 0.5 * 7, 0.0, 7.0])


def test_states_not_acted_in_golden():
    # 0 acts, 1 waits for it, 2 acts and is cut, 3 only bootstraps, 4 acts and ends for good
    nan = jnp.nan
    got = returns.lambda_return(
        reward=jnp.array([1.0, nan, 2.0, nan, 5.0]),
        value=jnp.array([10.0, nan, 20.0, 30.0, 40.0]),
        bootstrap=jnp.float32(99.0),
        discount=jnp.array([0.5, 0.5, 0.5, 0.5, 0.0]),
        lambd=0.25,
        acted=jnp.array([True, False, True, False, True]),
        waiting=jnp.array([False, True, False, False, False]),
    )
    third = 2 + 0.5 * 30
    first = 1 + 0.5 * (0.75 * 20 + 0.25 * third)
    np.testing.assert_allclose(got, [first, 0.0, third, 0.0, 5.0])


@pytest.mark.parametrize("shape", [(9,), (9, 4), (9, 3, 2), (9, 3, 2, 2)])
def test_equals_the_loop_for_any_trailing_axes(shape):
    rng = np.random.default_rng(len(shape))
    reward, value = rng.normal(size=shape), rng.normal(size=shape)
    bootstrap = rng.normal(size=shape[1:])
    discount, lambd = rng.uniform(0.5, 1.0, shape), rng.uniform(0, 1, shape)
    discount[rng.uniform(size=shape) < 0.1] = 0.0
    kind = rng.integers(0, 4, shape)
    acted, waiting = kind < 2, kind == 2
    dirty_reward, dirty_value = np.where(acted, reward, np.nan), np.where(waiting, np.nan, value)
    arrays = [jnp.asarray(x, jnp.float32) for x in (dirty_reward, dirty_value, bootstrap, discount, lambd)]
    got = np.asarray(returns.lambda_return(*arrays, jnp.asarray(acted), jnp.asarray(waiting)))
    advantage = np.asarray(returns.gae(*arrays, jnp.asarray(acted), jnp.asarray(waiting)))
    for index in np.ndindex(*shape[1:]):
        line = (slice(None), *index)
        expected = loop(
            reward[line], value[line], bootstrap[index], discount[line], lambd[line], acted[line], waiting[line]
        )
        np.testing.assert_allclose(got[line], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(advantage[line], np.where(acted[line], expected - value[line], 0), atol=1e-4)


def test_masks_may_lack_the_stream_axis_and_discounts_differ_per_stream():
    rng = np.random.default_rng(0)
    reward, value = (jnp.asarray(rng.normal(size=(5, 3, 2)), jnp.float32) for _ in range(2))
    acted = jnp.asarray(rng.uniform(size=(5, 3)) < 0.6)
    gamma = jnp.array([0.9, 0.5])
    both = returns.lambda_return(reward, value, jnp.zeros((3, 2)), gamma, 0.9, acted, ~acted)
    for i in range(2):
        one = returns.lambda_return(reward[..., i], value[..., i], jnp.zeros(3), gamma[i], 0.9, acted, ~acted)
        np.testing.assert_allclose(both[..., i], one, rtol=1e-6)


def test_shapes_that_would_broadcast_by_accident_are_refused():
    with pytest.raises(AssertionError):
        returns.lambda_return(jnp.zeros((4, 2)), jnp.zeros((4, 1)), jnp.zeros(2), 0.9, 0.9)
    with pytest.raises(AssertionError):
        returns.lambda_return(jnp.zeros((4, 2)), jnp.zeros((4, 2)), jnp.zeros(()), 0.9, 0.9)
    with pytest.raises(AssertionError):
        returns.gae(jnp.zeros((4, 2)), jnp.zeros((4, 2)), jnp.zeros(2), jnp.ones(4), 0.9)  # a factor per state: [4, 1]
    with pytest.raises(AssertionError):
        returns.gae(jnp.zeros((4, 2)), jnp.zeros((4, 2)), jnp.zeros(2), 0.9, 0.9, jnp.ones(2))
    with pytest.raises(AssertionError):
        returns.discounted_sum(jnp.zeros((4, 2)), jnp.zeros(4), 0.9)


def test_works_inside_jit_and_grad():
    gradient = jax.jit(jax.grad(lambda r: returns.lambda_return(r, jnp.zeros(3), jnp.float32(0), 0.5, 1.0)[0]))
    np.testing.assert_allclose(gradient(jnp.ones(3)), [1.0, 0.5, 0.25])
