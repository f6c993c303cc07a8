"""Actors and critics: shapes, initial distributions, the team critic against its naive form, absent members."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.networks import actions
from jaxrl.networks.encoders import UnsupportedObservationError
from jaxrl.networks.models import Actor, SharedActorCritic, TeamCritic, ValueNetwork, update_max_team
from jaxrl.types import (
    Action,
    ActionSpec,
    BehaviorSpec,
    JaxrlError,
    ObservationSpec,
)
from tests.networks import naive_team_critic


class Shape(NamedTuple):
    hidden_units: int = 16
    num_layers: int = 2
    vis_encode_type: str = "simple"
    body_type: None = None
    goal_conditioning_type: str = "hyper"
    compute_dtype: str = "float32"
    memory: None = None


class Critic(TeamCritic):
    """The critic with its calls compiled: eager mode would compile each operation for itself."""

    def apply(self, *arguments, method=None):
        return jax.jit(partial(super().apply, method=method))(*arguments)


HYBRID = BehaviorSpec((ObservationSpec("a", (4,)), ObservationSpec("b", (3,))), ActionSpec(2, (3, 2)))
STREAMS = ("extrinsic", "curiosity")


def team_data(n: int, members: int, spec: BehaviorSpec = HYBRID):
    """Random teams, drawn by numpy: every eager JAX draw of a new shape is a program to compile."""
    rng = np.random.default_rng(members)
    obs = tuple(rng.normal(size=(n, members, *o.shape)).astype(np.float32) for o in spec.observations)
    discrete = [rng.integers(0, size, (n, members)) for size in spec.action.discrete_branches]
    continuous = rng.normal(size=(n, members, spec.action.continuous_size)).astype(np.float32)
    present = rng.uniform(size=(n, members)) < 0.7
    present[:, 0] = True
    action = Action(continuous, np.stack(discrete, axis=-1).astype(np.int32))
    return jax.tree.map(jnp.asarray, (obs, action, present))


def make_critic(members: int):
    """A critic with random parameters (biases too) and the inputs of 6 teams."""
    critic = Critic(HYBRID, Shape(), STREAMS)
    obs, action, present = team_data(6, members)
    encoding = actions.one_hot(action, HYBRID.action)
    shapes = jax.eval_shape(critic.init, jax.random.key(0), obs, encoding, present, jnp.float32(members))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), jnp.float32), shapes)
    return critic, params, obs, encoding, present


@pytest.mark.parametrize("members", [1, 3, pytest.param(8, marks=pytest.mark.slow)])
def test_team_critic_equals_naive_form_in_value_and_gradient(members):
    critic, params, obs, encoding, present = make_critic(members)
    largest = jnp.float32(members + 1)
    weight = jnp.asarray(np.random.default_rng(5).normal(size=(6, 1 + members, len(STREAMS))), jnp.float32)
    counts = jnp.concatenate([jnp.ones((6, 1), bool), present], axis=1)[..., None]

    def score(value, baseline):
        out = jnp.concatenate([value[:, None], baseline], axis=1)
        return jnp.sum(jnp.where(counts, jnp.sin(out) * weight, 0.0)), out

    def fast(p):
        return score(*critic.apply(p, obs, encoding, present, largest))

    def naive(p):
        x = jnp.concatenate(obs, axis=-1) * present[..., None]
        return score(*naive_team_critic.team_critic(p, x, encoding * present[..., None], present, largest))

    fast_gradient, fast_out = jax.jit(jax.grad(fast, has_aux=True))(params)
    naive_gradient, naive_out = jax.jit(jax.grad(naive, has_aux=True))(params)
    np.testing.assert_allclose(jnp.where(counts, fast_out, 0), jnp.where(counts, naive_out, 0), atol=1e-5)
    for ours, theirs in zip(jax.tree.leaves(fast_gradient), jax.tree.leaves(naive_gradient), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * max(1.0, float(jnp.abs(theirs).max())))


def test_value_only_equals_value_of_the_whole_pass():
    critic, params, obs, encoding, present = make_critic(4)
    value, _ = critic.apply(params, obs, encoding, present, jnp.float32(4))
    alone = critic.apply(params, obs, present, jnp.float32(4), method="value_only")
    np.testing.assert_allclose(value, alone, atol=1e-6)


def test_absent_members_may_hold_nan():
    critic, params, obs, encoding, present = make_critic(4)
    gap = ~present[..., None]

    def total(p, obs, encoding):
        value, baseline = critic.apply(p, obs, encoding, present, jnp.float32(4))
        return jnp.sum(value) + jnp.sum(jnp.where(gap, 0.0, baseline)), baseline

    poisoned = tuple(jnp.where(gap, jnp.nan, o) for o in obs)
    value_and_gradient = jax.jit(jax.value_and_grad(total, has_aux=True))
    (clean, _), clean_gradient = value_and_gradient(params, obs, encoding)
    (dirty, baseline), dirty_gradient = value_and_gradient(params, poisoned, jnp.where(gap, jnp.nan, encoding))
    assert jnp.isfinite(baseline).all()
    np.testing.assert_allclose(clean, dirty, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(clean_gradient), jax.tree.leaves(dirty_gradient), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_order_of_members_does_not_matter():
    critic, params, obs, encoding, present = make_critic(4)
    order = jnp.array([2, 0, 3, 1])
    value, baseline = critic.apply(params, obs, encoding, present, jnp.float32(4))
    shuffled = critic.apply(
        params, tuple(o[:, order] for o in obs), encoding[:, order], present[:, order], jnp.float32(4)
    )
    np.testing.assert_allclose(shuffled[0], value, atol=1e-5)
    np.testing.assert_allclose(shuffled[1], baseline[:, order], atol=1e-5)


def test_baseline_ignores_own_action_and_sees_those_of_the_others():
    critic, params, obs, encoding, present = make_critic(3)
    present = jnp.ones_like(present)
    other = encoding.at[:, 1].add(1.0)
    value, baseline = critic.apply(params, obs, encoding, present, jnp.float32(3))
    value_other, baseline_other = critic.apply(params, obs, other, present, jnp.float32(3))
    np.testing.assert_array_equal(value, value_other)
    np.testing.assert_array_equal(baseline[:, 1], baseline_other[:, 1])
    assert jnp.abs(baseline[:, 0] - baseline_other[:, 0]).max() > 1e-3


def test_leading_axes_are_arbitrary():
    critic, params, obs, encoding, present = make_critic(3)
    shape = (2, 3)
    value, baseline = critic.apply(params, obs, encoding, present, jnp.float32(3))
    folded = critic.apply(
        params,
        tuple(o.reshape(*shape, *o.shape[1:]) for o in obs),
        encoding.reshape(*shape, *encoding.shape[1:]),
        present.reshape(*shape, 3),
        jnp.float32(3),
    )
    assert folded[0].shape == (*shape, 2) and folded[1].shape == (*shape, 3, 2)
    np.testing.assert_allclose(folded[0].reshape(6, 2), value, atol=1e-6)
    np.testing.assert_allclose(folded[1].reshape(6, 3, 2), baseline, atol=1e-6)


def test_team_size_enters_after_the_body():
    # 2 * 3 / 6 - 1 = 0 and 2 * 3 / 3 - 1 = 1: the values differ by the weight of the last input of the head
    critic, params, obs, encoding, present = make_critic(3)
    present = jnp.ones_like(present)
    half, _ = critic.apply(params, obs, encoding, present, jnp.float32(6))
    full, _ = critic.apply(params, obs, encoding, present, jnp.float32(3))
    step = jnp.broadcast_to(params["params"]["values"]["kernel"][-1:], full.shape)
    np.testing.assert_allclose(full - half, step, atol=1e-6)


def test_running_maximum():
    present = jnp.array([[True, True, False], [True, False, False]])
    assert update_max_team(jnp.float32(1), present) == 2
    assert update_max_team(jnp.float32(5), present) == 5


def test_hidden_units_must_fit_the_heads():
    critic = TeamCritic(HYBRID, Shape(hidden_units=18), STREAMS)
    obs, action, present = team_data(2, 2)
    with pytest.raises(JaxrlError, match=r"hidden_units: 18.*use 20"):
        critic.init(jax.random.key(0), obs, actions.one_hot(action, HYBRID.action), present, jnp.float32(2))


@pytest.mark.parametrize("action", [ActionSpec(2, ()), ActionSpec(0, (3, 2)), ActionSpec(2, (4,))])
def test_actor_shapes(action):
    spec = BehaviorSpec(HYBRID.observations, action)
    obs = tuple(jnp.ones((5, 2, *o.shape)) for o in spec.observations)
    actor = Actor(spec, Shape())
    dist = actor.apply(actor.init(jax.random.key(0), obs), obs)
    assert dist.mean.shape == (5, 2, action.continuous_size)
    assert dist.log_sigma.shape == (action.continuous_size,)
    assert dist.logits.shape == (5, 2, action.mask_size)


def test_shared_actor_critic_gives_the_same_alone_and_together():
    obs, _, _ = team_data(3, 2)
    network = SharedActorCritic(HYBRID, Shape(), STREAMS)
    params = network.init(jax.random.key(0), obs)
    dist, value = network.apply(params, obs)
    np.testing.assert_array_equal(value, network.apply(params, obs, method="value"))
    for a, b in zip(dist, network.apply(params, obs, method="distribution"), strict=True):
        np.testing.assert_array_equal(a, b)
    assert value.shape == (3, 2, 2)


def test_initial_distributions():
    # standard deviations: body 1 / sqrt(256); mean 0.2 / sqrt(512); logits 0.1 / sqrt(512);
    # team embeddings and attention sqrt(0.125 / 512); team body sqrt(0.125 / 512) / sqrt(512);
    # value heads uniform within sqrt(6 / (512 + 1)), whose deviation is that limit / sqrt(3)
    spec = BehaviorSpec((ObservationSpec("v", (256,)),), ActionSpec(200, (200,)))
    shape, streams = Shape(hidden_units=512, num_layers=1), tuple(str(i) for i in range(20))
    obs = (jnp.ones((1, 2, 256)),)
    actor = jax.jit(Actor(spec, shape).init)(jax.random.key(0), obs)["params"]
    value = jax.jit(ValueNetwork(spec, shape, streams).init)(jax.random.key(1), obs)["params"]
    team_inputs = (obs, jnp.ones((1, 2, 400)), jnp.ones((1, 2), bool), jnp.float32(2))
    team = jax.jit(TeamCritic(spec, shape, streams).init)(jax.random.key(2), *team_inputs)["params"]
    embedding = (0.125 / 512) ** 0.5
    expected = [
        (actor["body"]["layer_0"]["kernel"], 1 / 256**0.5),
        (actor["heads"]["mean"]["kernel"], 0.2 / 512**0.5),
        (actor["heads"]["logits"]["kernel"], 0.1 / 512**0.5),
        (value["values"]["kernel"], (6 / 513) ** 0.5 / 3**0.5),
        (team["embed_obs"]["kernel"], embedding),
        (team["embed_obs_action"]["kernel"], embedding),
        (team["attention"]["qkv"]["kernel"], embedding),
        (team["attention"]["out_kernel"], embedding),
        (team["body"]["layer_0"]["kernel"], embedding / 512**0.5),
    ]
    for kernel, deviation in expected:
        assert abs(float(kernel.std()) / deviation - 1) < 0.03
        assert abs(float(kernel.mean())) < 0.05 * deviation
    assert float(jnp.abs(value["values"]["kernel"]).max()) <= (6 / 513) ** 0.5
    assert not actor["heads"]["log_sigma"].any() and not team["attention"]["out_bias"].any()


@pytest.mark.parametrize(
    ("observation", "word"),
    [
        (ObservationSpec("map", (4, 4)), "rank2"),
        (ObservationSpec("film", (2, 3, 4, 4)), "rank4"),
    ],
)
def test_unsupported_observations_are_named(observation, word):
    spec = BehaviorSpec((observation,), ActionSpec(1, ()))
    with pytest.raises(UnsupportedObservationError, match=f"'{observation.name}'.*'{word}'"):
        Actor(spec, Shape()).init(jax.random.key(0), (jnp.ones((1, *observation.shape)),))


def test_no_observation_and_wrong_shapes_are_errors():
    empty = BehaviorSpec((), ActionSpec(1, ()))
    with pytest.raises(UnsupportedObservationError, match="add a sensor"):
        Actor(empty, Shape()).init(jax.random.key(0), ())
    with pytest.raises(ValueError, match="observation 1 \\('b'\\)"):
        Actor(HYBRID, Shape()).init(jax.random.key(0), (jnp.ones((1, 4)), jnp.ones((1, 4))))
