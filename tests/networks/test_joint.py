"""Fully connected team critics: numbers by hand, empty places, room to spare, and what a baseline sees."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.networks.joint import JointCritic, JointValue, TeamCapacityError
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec


class Shape(NamedTuple):
    hidden_units: int = 1
    num_layers: int = 1
    vis_encode_type: str = "simple"
    body_type: None = None
    goal_conditioning_type: str = "hyper"
    compute_dtype: str = "float32"
    memory: None = None


ONE = BehaviorSpec((ObservationSpec("o", (1,)),), ActionSpec(1, ()))
TWO = BehaviorSpec((ObservationSpec("a", (4,)), ObservationSpec("b", (2,))), ActionSpec(2, (3,)))
STREAMS = ("extrinsic", "curiosity")
CAPACITY = 4


def layer(kernel: list[float], bias: float) -> dict:
    return {"kernel": jnp.asarray(kernel, jnp.float32).reshape(-1, 1), "bias": jnp.full(1, bias, jnp.float32)}


def column(*numbers: float) -> jax.Array:
    """One team, one number per member: [1, A, 1]."""
    return jnp.asarray(numbers, jnp.float32).reshape(1, -1, 1)


def swish(x: float) -> float:
    return x / (1 + math.exp(-x))


def test_value_by_hand() -> None:
    """Two places of (observation, flag): 0.5 + 1 o1 + 0.1 f1 + 2 o2 + 0.2 f2, swish, 3 times plus 1."""
    params = {"params": {"body": {"layer_0": layer([1, 0.1, 2, 0.2], 0.5)}, "values": layer([3], 1)}}
    critic = JointValue(ONE, Shape(), ("extrinsic",), 2)
    both = critic.apply(params, (column(0.3, -0.4),), jnp.array([[True, True]]))
    alone = critic.apply(params, (column(0.3, math.nan),), jnp.array([[True, False]]))
    assert float(both[0, 0]) == pytest.approx(1 + 3 * swish(0.5 + 0.3 + 0.1 - 0.8 + 0.2))
    assert float(alone[0, 0]) == pytest.approx(1 + 3 * swish(0.5 + 0.3 + 0.1))


def test_baseline_by_hand() -> None:
    """Own observation times 1, then two places of (observation, action, flag): times 2, 3, 4 and times 5, 6, 7."""
    nothing = {"body": {"layer_0": layer([0] * 6, 0)}, "values": layer([0], 0)}
    kernel = layer([1, 2, 3, 4, 5, 6, 7], 0)
    params = {"params": {"value": nothing, "body": {"layer_0": kernel}, "baselines": layer([1], 0)}}
    critic = JointCritic(ONE, Shape(), ("extrinsic",), 3)
    obs, action = column(0.1, 0.2, 0.3), column(0.01, 0.02, 0.03)
    present = jnp.array([[True, True, True]])
    _, full = critic.apply(params, (obs,), action, present, jnp.float32(3))
    _, pair = critic.apply(params, (obs,), action, present.at[0, 1].set(False), jnp.float32(3))
    first = 0.1 + (2 * 0.2 + 3 * 0.02 + 4) + (5 * 0.3 + 6 * 0.03 + 7)
    second = 0.2 + (2 * 0.1 + 3 * 0.01 + 4) + (5 * 0.3 + 6 * 0.03 + 7)
    third = 0.3 + (2 * 0.1 + 3 * 0.01 + 4) + (5 * 0.2 + 6 * 0.02 + 7)
    np.testing.assert_allclose(full[0, :, 0], [swish(first), swish(second), swish(third)], rtol=1e-6)
    lonely = 0.1 + (5 * 0.3 + 6 * 0.03 + 7), 0.3 + (2 * 0.1 + 3 * 0.01 + 4)
    np.testing.assert_allclose(pair[0, ::2, 0], [swish(x) for x in lonely], rtol=1e-6)


def random_critic(members: int):
    """A jitted critic with random parameters, and 6 teams."""
    critic = JointCritic(TWO, Shape(8, 2), STREAMS, CAPACITY)
    rng = np.random.default_rng(members)
    obs = tuple(rng.normal(size=(6, members, *sensor.shape)).astype(np.float32) for sensor in TWO.observations)
    encoding = rng.normal(size=(6, members, 5)).astype(np.float32)
    present = rng.random((6, members)) < 0.6
    present[:, 0] = True
    shapes = jax.eval_shape(critic.init, jax.random.key(0), obs, encoding, present, 1.0)
    params = jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)
    return jax.jit(critic.apply), params, obs, encoding, present


def test_what_absent_members_hold_has_no_influence_on_values_or_gradients() -> None:
    apply, params, obs, encoding, present = random_critic(CAPACITY)
    gap = ~present[..., None]

    @jax.jit
    def graded(params, obs, encoding):
        def total(params):
            value, baseline = apply(params, obs, encoding, present, 1.0)
            return jnp.sum(value) + jnp.sum(jnp.where(gap, 0.0, baseline)), (value, baseline)

        return jax.value_and_grad(total, has_aux=True)(params)

    poisoned = tuple(np.where(gap, np.float32(np.nan), o) for o in obs), np.where(gap, np.float32(np.nan), encoding)
    clean, dirty = (jax.tree.leaves(graded(params, *x)) for x in ((obs, encoding), poisoned))
    for a, b in zip(clean, dirty, strict=True):
        assert np.isfinite(b).all()
        np.testing.assert_array_equal(a, b)


def test_room_to_spare_equals_absent_members_and_too_little_is_an_error() -> None:
    apply, params, obs, encoding, present = random_critic(2)

    def padded(x: np.ndarray) -> np.ndarray:
        return np.pad(x, [(0, 0), (0, 2)] + [(0, 0)] * (x.ndim - 2))

    value, baseline = apply(params, obs, encoding, present, 1.0)
    more = apply(params, tuple(map(padded, obs)), padded(encoding), padded(present), 1.0)
    for few, of_more in ((value, more[0]), (baseline, more[1][:, :2])):  # sums of other lengths, on some processors
        np.testing.assert_allclose(few, of_more, rtol=0, atol=2e-7)
    with pytest.raises(TeamCapacityError, match=r"team_capacity: 4.*teams of 5 members.*write at least 5"):
        apply(*jax.tree.map(jnp.asarray, random_critic(5)[1:]), 1.0)


def test_baseline_ignores_the_own_action_and_sees_those_of_present_mates() -> None:
    apply, params, obs, encoding, present = random_critic(CAPACITY)
    present = present | np.array([True, True, False, False])
    other = encoding + np.array([0, 1, 0, 0], np.float32)[:, None]
    (value, first), (same, second) = (apply(params, obs, e, present, 1.0) for e in (encoding, other))
    np.testing.assert_array_equal(value, same)
    np.testing.assert_array_equal(first[:, 1], second[:, 1])
    assert (np.abs(first[:, 0] - second[:, 0]) > 1e-4).all()


def test_members_are_known_by_place_but_one_network_serves_all_baselines() -> None:
    """The order of the mates matters, the place of the agent itself does not: places 0, 1 of three in order 1, 0."""
    apply, params, obs, encoding, present = random_critic(CAPACITY)
    present = np.ones_like(present)
    order = np.array([1, 0, 2, 3])
    swapped = tuple(o[:, order] for o in obs), encoding[:, order]
    (value, first), (other, second) = (apply(params, *x, present, 1.0) for x in ((obs, encoding), swapped))
    np.testing.assert_allclose(first[:, 0], second[:, 1], rtol=1e-5, atol=1e-6)
    assert (np.abs(first[:, 2] - second[:, 2]) > 1e-5).any()
    assert (np.abs(value - other) > 1e-5).any()


def test_leading_axes_are_arbitrary() -> None:
    apply, params, obs, encoding, present = random_critic(3)

    def folded(x: np.ndarray) -> np.ndarray:
        return x.reshape(2, 3, *x.shape[1:])

    value, baseline = apply(params, obs, encoding, present, 1.0)
    again = apply(params, tuple(map(folded, obs)), folded(encoding), folded(present), 1.0)
    assert again[0].shape == (2, 3, 2) and again[1].shape == (2, 3, 3, 2)
    np.testing.assert_array_equal(folded(np.asarray(value)), again[0])
    np.testing.assert_array_equal(folded(np.asarray(baseline)), again[1])


def test_initial_distributions() -> None:
    """Bodies normal, 1 / sqrt(inputs): 3 · (100 + 1) and 100 + 2 · (100 + 50 + 1); heads ± sqrt(6 / (256 + 1))."""
    spec = BehaviorSpec((ObservationSpec("o", (100,)),), ActionSpec(0, (50,)))
    critic = JointCritic(spec, Shape(256, 1), tuple("abcdefgh"), 3)
    arrays = (jnp.ones((1, 1, 100)),), jnp.ones((1, 1, 50)), jnp.ones((1, 1), bool), jnp.float32(1)
    params = jax.jit(critic.init)(jax.random.key(0), *arrays)["params"]
    limit = math.sqrt(6 / 257)
    for network, head, inputs in ((params["value"], "values", 303), (params, "baselines", 402)):
        kernel = network["body"]["layer_0"]["kernel"]
        assert kernel.shape == (inputs, 256)
        assert float(kernel.std()) == pytest.approx(inputs**-0.5, rel=0.02)
        last = network[head]["kernel"]
        assert float(jnp.abs(last).max()) <= limit
        assert float(last.std()) == pytest.approx(limit / 3**0.5, rel=0.05)
        assert not network["body"]["layer_0"]["bias"].any() and not network[head]["bias"].any()
