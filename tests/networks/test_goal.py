"""Goals: the last layer that a hypernetwork makes, where it is made and where not, first weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from jaxrl.networks import goal as goal_file
from jaxrl.networks import normalizer
from jaxrl.networks.joint import JointCritic, JointValue
from jaxrl.networks.models import Actor, SharedActorCritic, TeamCritic, ValueNetwork
from jaxrl.networks.observations import goal_columns
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

GOAL = ObservationType.GOAL_SIGNAL
SENSORS = (
    ObservationSpec("colour", (2,), observation_type=GOAL),
    ObservationSpec("vector", (3,)),
    ObservationSpec("sign", (1, 5, 5), observation_type=GOAL, dtype="uint8"),
    ObservationSpec("others", (2, 2), (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)),
)
SPEC = BehaviorSpec(SENSORS[:2], ActionSpec(2, ()))
STREAMS = ("extrinsic",)


def make_settings(layers: int, kind: str = "hyper", units: int = 6) -> NetworkSettings:
    return NetworkSettings(hidden_units=units, num_layers=layers, goal_conditioning_type=kind, vis_encode_type="match3")


def swish(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("layers", [1, 3])
def test_the_last_layer_is_made_from_the_goal(layers):
    """y = swish(x K + bias), K = made(LN(swish(swish(goal)))) row by row, [inputs, 6]."""
    settings = make_settings(layers)
    rng = np.random.default_rng(0)
    obs = tuple(rng.normal(size=(4, *o.shape)).astype(np.float32) for o in SPEC.observations)
    actor = Actor(SPEC, settings)
    shapes = jax.eval_shape(actor.init, jax.random.key(0), obs)
    params = jax.tree.map(lambda x: rng.normal(0, 0.5, x.shape).astype(np.float32), shapes)
    p = jax.tree.map(lambda x: x.astype(np.float64), params["params"]["body"])

    def linear(x, layer):
        return x @ layer["kernel"] + layer["bias"]

    expected = []
    for goal, vector in zip(*obs, strict=True):
        x = np.concatenate([goal, vector])
        for i in range(layers - 1):
            x = swish(linear(x, p[f"layer_{i}"]))
        last = p[f"layer_{layers - 1}"]
        g = swish(linear(swish(linear(goal, last["hidden_0"])), last["hidden_1"]))
        g = (g - g.mean()) / np.sqrt(g.var() + 1e-5)
        expected.append(swish(x @ linear(g, last["made"]).reshape(-1, 6) + last["bias"]))
    found = jax.jit(lambda p, o: actor.apply(p, o, method="encode"))(params, obs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_goals_of_all_kinds_are_found_in_the_encoding():
    """colour takes columns 0 and 1, vector 2 to 4, sign 5 to 10 (6 hidden units), entities stand behind."""
    spec = SPEC._replace(observations=SENSORS)
    settings = make_settings(2)
    assert goal_columns(spec, settings) == ((0, 2), (5, 11))
    obs = tuple(jnp.ones((2, 3, *o.shape), o.dtype) for o in SENSORS)
    params = jax.eval_shape(Actor(spec, settings).init, jax.random.key(0), obs)["params"]
    assert params["body"]["layer_1"]["hidden_0"]["kernel"].shape == (8, 6)


def test_who_is_conditioned_and_who_is_not():
    """Actors and value networks with `hyper` and a goal; never a critic of a whole team, never with `none`."""
    obs = (jnp.ones((2, 3, 2)), jnp.ones((2, 3, 3)))
    team = (jnp.ones((2, 3, 2)), jnp.ones((2, 3), bool), jnp.float32(3))

    def conditioned(network, *inputs) -> bool:
        found = flatten_dict(jax.eval_shape(network.init, jax.random.key(0), *inputs)["params"], sep="/")
        assert any(path.startswith("body/layer_1/") for path in found)
        return any("made" in path for path in found)

    hyper, none = make_settings(2, units=8), make_settings(2, "none", units=8)
    plain = SPEC._replace(observations=tuple(o._replace(observation_type=0) for o in SPEC.observations))
    assert conditioned(Actor(SPEC, hyper), obs)
    assert conditioned(ValueNetwork(SPEC, hyper, STREAMS), obs)
    assert conditioned(SharedActorCritic(SPEC, hyper, STREAMS), obs)
    assert not conditioned(Actor(SPEC, none), obs)
    assert not conditioned(ValueNetwork(SPEC, none, STREAMS), obs)
    assert not conditioned(Actor(plain, hyper), obs)
    assert not conditioned(TeamCritic(SPEC, hyper, STREAMS), obs, *team)
    assert not conditioned(JointValue(SPEC, hyper, STREAMS, 3), obs, team[1])
    assert not conditioned(JointCritic(SPEC, hyper, STREAMS, 3), obs, *team)


def test_goal_vectors_are_normalised_and_images_are_not():
    states = normalizer.init_all(SPEC._replace(observations=SENSORS), True)
    assert [state is not None for state in states] == [True, True, False, False]
    obs = tuple(jnp.zeros((4, *o.shape), o.dtype) + 1 for o in SENSORS)
    obs = tuple(x.astype(o.dtype) for x, o in zip(obs, SENSORS, strict=True))
    states = normalizer.update_all(states, obs, None)
    # mean 0 + 4 · (1 - 0) / 5 = 0.8, M2 = 1 + 4 · (1 - 0.8) · 1 = 1.8, so (1 - 0.8) / sqrt(1.8 / 5) = 1/3
    shown = normalizer.normalize_all(states, obs)
    np.testing.assert_allclose(shown[0], np.full((4, 2), 1 / 3), rtol=1e-6)
    assert shown[2] is obs[2] and shown[2].dtype == jnp.uint8


def test_first_weights():
    """Hidden layers normal with 1 / sqrt(inputs), the last uniform within sqrt(1 / (units · inputs)), biases 0."""
    spec = BehaviorSpec((ObservationSpec("goal", (64,), observation_type=GOAL),), ActionSpec(1, ()))
    params = jax.jit(Actor(spec, make_settings(1, units=64)).init)(jax.random.key(0), (jnp.ones((1, 64)),))
    layer = params["params"]["body"]["layer_0"]
    for i in range(2):
        assert abs(float(layer[f"hidden_{i}"]["kernel"].std()) * 8 - 1) < 0.05
    made, limit = layer["made"]["kernel"], (1 / (64 * 64)) ** 0.5
    assert made.shape == (64, 64 * 64)
    assert 0.999 * limit < float(jnp.abs(made).max()) <= limit and abs(float(made.std()) * 3**0.5 / limit - 1) < 0.01
    assert not any(x.any() for x in (layer["bias"], layer["made"]["bias"], layer["hidden_0"]["bias"]))


def make_product_input(kinds: int, rows: int = 40, seed: int = 0):
    """x, goals [N, 3] of which `kinds` differ, and the weights: of g, kernel, bias."""
    rng = np.random.default_rng(seed)
    shapes = (kinds, 3), (rows, 4), (3, 5), (5, 4 * 6), (4 * 6,)
    goals, x, *weights = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return x, goals[np.arange(rows) % kinds], *weights


def made_product(x, goals, base, kernel, bias):
    return goal_file.made_product(x, goals, jnp.tanh(goals @ base), kernel, bias)


def naive_product(x, goals, base, kernel, bias):
    made = jnp.tanh(goals @ base) @ kernel + bias.reshape(1, -1)
    return jnp.stack([x[n] @ made[n].reshape(4, 6) for n in range(len(x))])


def of_the_weights(product):
    """Loss and gradients by x and all weights."""
    return jax.value_and_grad(lambda *given: jnp.sum(jnp.sin(product(*given))), (0, 2, 3, 4))


@pytest.mark.parametrize("kinds", [1, 8, 9, 40])
def test_few_goals_give_what_many_give(kinds):
    """8 different goals share their matrices, 9 do not."""
    given = make_product_input(kinds)
    np.testing.assert_allclose(made_product(*given), naive_product(*given), rtol=1e-4, atol=1e-5)
    found, expected = (jax.jit(of_the_weights(f))(*given) for f in (made_product, naive_product))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("axes", [(0, 0, 0, None, None), (0, 0, 0, 0, 0), (0, None, None, None, None)])
@pytest.mark.parametrize("batches", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_side_by_side(axes, batches):
    """Several batches of one policy, several policies, and one of several seeds: forward and gradients."""
    of_each = [make_product_input(8, seed=s) for s in range(batches)]
    given = tuple(
        np.stack(parts) if axis == 0 else parts[0] for axis, parts in zip(axes, zip(*of_each, strict=True), strict=True)
    )
    for found, expected in (
        (jax.vmap(made_product, axes)(*given), jax.vmap(naive_product, axes)(*given)),
        (
            jax.vmap(of_the_weights(made_product), axes)(*given),
            jax.vmap(of_the_weights(naive_product), axes)(*given),
        ),
    ):
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_a_row_that_is_not_a_number_changes_no_other():
    x, goals, *others = make_product_input(4)
    poisoned = x.copy(), goals.copy()
    poisoned[0][7] = poisoned[1][7] = np.nan
    found, expected = made_product(*poisoned, *others), made_product(x, goals, *others)
    rest = np.arange(40) != 7
    np.testing.assert_allclose(found[rest], expected[rest], rtol=1e-5, atol=1e-6)


def test_rows_by_what_they_hold():
    rows = jnp.array([[1.0, 2.0], [1.0, 3.0], [1.0, 2.0], [jnp.nan, 0.0], [0.0, 0.0]])
    found = goal_file.distinct(rows, 2)
    assert found.first.tolist() == [0, 1] and found.which.tolist() == [0, 1, 0, 2, 2]
    assert goal_file.distinct(rows[:3], 4).which.tolist() == [0, 1, 0]
