"""Entities: attention against plain loops, absence, order, several buffers, and what is refused."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.networks.encoders import UnsupportedObservationError
from jaxrl.networks.entities import EntityEncoder
from jaxrl.networks.models import Actor, TeamCritic, ValueNetwork
from jaxrl.networks.observations import ObservationEncoder, check_observations, encoding_size
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

SETTINGS = NetworkSettings(hidden_units=8, num_layers=1, vis_encode_type="match3")
VARIABLE = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
TILES, ENEMIES = ObservationSpec("tiles", (5, 3), VARIABLE), ObservationSpec("enemies", (3, 2), VARIABLE)
PRESENT = ((5, 3), (2, 0), (0, 1), (0, 0))
"""How many tiles and enemies each of four agents sees."""


def make_entities(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Tiles [4, 5, 3] and enemies [4, 3, 2]; rows of zeros behind those present."""
    rng = np.random.default_rng(seed)
    tiles, enemies = (rng.normal(1, 1, (4, *o.shape)).astype(np.float32) for o in (TILES, ENEMIES))
    for row, (n, m) in enumerate(PRESENT):
        tiles[row, n:], enemies[row, m:] = 0, 0
    return tiles, enemies


def drawn(shapes):
    """Random parameters, drawn by numpy: JAX's own draws take seconds to compile."""
    rng = np.random.default_rng(2)
    return jax.tree.map(lambda x: rng.normal(0, 0.15, x.shape).astype(np.float32), shapes)


@pytest.fixture(scope="module", params=[0, 4], ids=["alone", "with own"])
def encoder(request):
    """The encoder as a compiled function of (params, tiles, enemies), random parameters, and what it sees of itself."""
    rng = np.random.default_rng(1)
    module = EntityEncoder((TILES, ENEMIES), SETTINGS)
    own = rng.normal(size=(4, request.param)).astype(np.float32) if request.param else None
    params = drawn(jax.eval_shape(module.init, jax.random.key(0), make_entities(), own))
    return jax.jit(lambda params, *xs: module.apply(params, xs, own)), params, own


def naive(params: dict, tiles: np.ndarray, enemies: np.ndarray, own: np.ndarray | None) -> np.ndarray:
    """One agent: only entities that are there exist at all; float64."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params["params"])

    def swish(x):
        return x / (1 + np.exp(-x))

    def norm(x):
        return (x - x.mean()) / math.sqrt(x.var() + 1e-5)

    seen = [] if own is None else swish(own @ p["self"]["kernel"] + p["self"]["bias"])
    x = [
        norm(swish(np.concatenate([seen, row]) @ p[f"embed_{i}"]["kernel"] + p[f"embed_{i}"]["bias"]))
        for i, rows in enumerate((tiles, enemies))
        for row in rows
        if (row**2).sum() >= 0.01
    ]
    if not x:
        return np.zeros(128)
    a = p["attention"]
    q, k, v = np.split(np.array(x) @ a["qkv"]["kernel"] + a["qkv"]["bias"], 3, axis=1)
    out = []
    for i in range(len(x)):
        heads = []
        for part in (slice(32 * h, 32 * h + 32) for h in range(4)):
            weights = np.exp([q[i, part] @ k[j, part] / math.sqrt(128) for j in range(len(x))])
            heads.append(weights / weights.sum() @ v[:, part])
        out.append(norm(np.concatenate(heads) @ a["out_kernel"] + a["out_bias"] + x[i]))
    return np.mean(out, axis=0)


def test_numbers_are_those_of_plain_loops(encoder):
    """Two buffers with 5 and 3 places and 8, 2, 1 and 0 entities present."""
    apply, params, own = encoder
    tiles, enemies = make_entities()
    expected = [naive(params, tiles[i], enemies[i], None if own is None else own[i]) for i in range(4)]
    np.testing.assert_allclose(apply(params, tiles, enemies), expected, atol=1e-5)
    assert np.abs(expected[2]).max() > 0.1


def test_the_order_of_entities_has_no_effect(encoder):
    """Also where absent ones come first."""
    apply, params, _ = encoder
    tiles, enemies = make_entities()
    changed = apply(params, tiles[:, [4, 1, 0, 3, 2]], enemies[:, [2, 0, 1]])
    np.testing.assert_allclose(changed, apply(params, tiles, enemies), atol=1e-5)


def test_what_an_absent_entity_holds_changes_nothing(encoder):
    """Sums of squares of 3 · 0.05² = 0.0075 and 2 · 0.07² = 0.0098, below 0.01; 3 · 0.06² = 0.0108 is there."""
    apply, params, _ = encoder
    tiles, enemies = make_entities()
    filled = np.where(tiles == 0, np.float32(-0.05), tiles), np.where(enemies == 0, np.float32(0.07), enemies)
    found = apply(params, tiles, enemies)
    np.testing.assert_array_equal(apply(params, *filled), found)
    assert not found[3].any()
    present = apply(params, np.where(tiles == 0, np.float32(0.06), tiles), enemies)
    assert np.all(np.abs(present - found).max(axis=1)[1:] > 1e-3)


def test_gradients_are_finite_and_zero_where_nobody_is(encoder):
    apply, params, _ = encoder
    tiles, enemies = make_entities()
    weight = np.random.default_rng(3).normal(size=(4, 128)).astype(np.float32)
    gradient = jax.jit(jax.grad(lambda p, *xs: jnp.sum(apply(p, *xs) * weight), argnums=(0, 1, 2)))
    by_params, by_tiles, by_enemies = gradient(params, tiles, enemies)
    assert all(np.isfinite(x).all() and np.any(x) for x in jax.tree.leaves((by_params, by_tiles, by_enemies)))
    for row, (n, m) in enumerate(PRESENT):
        assert not by_tiles[row, n:].any() and not by_enemies[row, m:].any()
        assert np.all(np.any(by_tiles[row, :n], axis=-1)) and np.all(np.any(by_enemies[row, :m], axis=-1))
    nobody = gradient(params, 0 * tiles, 0 * enemies)
    assert all(np.isfinite(x).all() and not np.any(x) for x in jax.tree.leaves(nobody))


SENSORS = {
    "tiles": TILES,
    "enemies": ENEMIES,
    "vector": ObservationSpec("vector", (4,)),
    "camera": ObservationSpec("camera", (2, 5, 6), dtype="uint8"),
    "goal": ObservationSpec("goal", (2,), observation_type=ObservationType.GOAL_SIGNAL),
}
MIXTURES = [
    ("tiles",),
    ("enemies", "tiles"),
    ("tiles", "vector"),
    ("camera", "tiles", "goal", "enemies", "vector"),
    ("goal", "enemies", "camera", "vector", "tiles"),
]


@pytest.mark.parametrize("names", MIXTURES, ids=" ".join)
def test_any_mixture_in_any_order(names):
    """Own widths in the order of the spec (vector 4, camera 8 = hidden units, goal 2), 128 at the end."""
    spec = BehaviorSpec(tuple(SENSORS[name] for name in names), ActionSpec(2, (3,)))
    rng = np.random.default_rng(0)
    obs = tuple(rng.integers(0, 2, (2, 3, *o.shape)).astype(o.dtype) for o in spec.observations)
    encoder = ObservationEncoder(spec, SETTINGS)
    params = drawn(jax.eval_shape(encoder.init, jax.random.key(0), obs))
    encoding = jax.jit(encoder.apply)(params, obs)
    widths = {"vector": 4, "camera": 8, "goal": 2}
    own = [widths[name] for name in names if name in widths]
    assert encoding.shape == (2, 3, sum(own) + 128) and encoding_size(spec, SETTINGS) == sum(own) + 128
    ends = np.cumsum(own)
    for name, end in zip((name for name in names if name in widths), ends, strict=True):
        if name != "camera":
            np.testing.assert_array_equal(encoding[..., end - widths[name] : end], obs[names.index(name)])
    entities = [name for name in names if name in ("tiles", "enemies")]
    joint = EntityEncoder(tuple(SENSORS[name] for name in entities), SETTINGS)
    alone = {"params": params["params"]["entities"]}
    seen = encoding[..., :-128] if own else None
    found = jax.jit(joint.apply)(alone, tuple(obs[names.index(name)] for name in entities), seen)
    np.testing.assert_allclose(encoding[..., -128:], found, atol=1e-5)


def test_actor_value_and_team_critic_read_them():
    """An absent member of the team may hold NaN."""
    spec = BehaviorSpec((TILES, SENSORS["camera"]), ActionSpec(2, ()))
    tiles = np.ones((2, 3, 5, 3), np.float32)
    tiles[1, 2] = np.nan
    obs = (tiles, np.full((2, 3, 2, 5, 6), 200, np.uint8))
    present = np.ones((2, 3), bool)
    present[1, 2] = False
    seen = (np.nan_to_num(tiles), obs[1])
    assert jax.eval_shape(Actor(spec, SETTINGS).init_with_output, jax.random.key(0), seen)[0].mean.shape == (2, 3, 2)
    value = ValueNetwork(spec, SETTINGS, ("extrinsic",))
    assert jax.eval_shape(value.init_with_output, jax.random.key(0), seen)[0].shape == (2, 3, 1)
    critic = TeamCritic(spec, SETTINGS, ("extrinsic",))
    inputs = obs, jnp.zeros((2, 3, 2)), present, jnp.float32(3)
    params = drawn(jax.eval_shape(critic.init, jax.random.key(0), *inputs))
    team, baseline = jax.jit(critic.apply)(params, *inputs)
    assert team.shape == (2, 1) and np.isfinite(team).all() and np.isfinite(baseline).all()


def test_a_goal_of_variable_length_is_refused():
    spec = BehaviorSpec((TILES._replace(observation_type=ObservationType.GOAL_SIGNAL),), ActionSpec(1, ()))
    with pytest.raises(
        UnsupportedObservationError, match=r"'Sorter': observation 0 .'tiles'.* goal of variable length"
    ):
        check_observations(spec, SETTINGS, "Sorter")


def test_first_weights():
    """Normal with sqrt(0.125 / 128) = 1 / 32 whatever the number of inputs; biases 0."""
    module = EntityEncoder((TILES, ObservationSpec("many", (2, 200), VARIABLE)), SETTINGS)
    xs = (jnp.ones((1, 5, 3)), jnp.ones((1, 2, 200)))
    params = jax.jit(module.init)(jax.random.key(0), xs, jnp.ones((1, 300)))["params"]
    attention = params["attention"]
    kernels = [params["self"]["kernel"], params["embed_0"]["kernel"], params["embed_1"]["kernel"]]
    assert [k.shape for k in kernels] == [(300, 128), (128 + 3, 128), (128 + 200, 128)]
    for kernel in (*kernels, attention["qkv"]["kernel"], attention["out_kernel"]):
        assert abs(float(kernel.std()) * 32 - 1) < 0.03
    assert not any(x.any() for x in (params["self"]["bias"], params["embed_0"]["bias"], attention["out_bias"]))
