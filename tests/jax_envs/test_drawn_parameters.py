"""Environment parameters that are drawn for each episode: the distributions, and which episode gets which value."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs.interface import TeamActions, advance_areas, begin_areas_anew, start_areas
from jaxrl.jax_envs.sampling import Distribution, distribution, draw, intervals_of, of_episode, of_one, of_seeds
from jaxrl.types import ParameterValue, SamplerSpec
from tests.jax_envs.shown_parameters import make_shown
from tests.jax_envs.toy_jax_env import quick_jit

DRAWS = 4000
UNIFORM = SamplerSpec("uniform", (-1.0, 3.0), 5)
GAUSSIAN = SamplerSpec("gaussian", (10.0, 0.5), 5)
RANGES = SamplerSpec("multirangeuniform", (1.0, 2.0, 4.0, 7.0), 5)
KEYS = jax.random.split(jax.random.key(3), DRAWS)
_many = quick_jit(jax.vmap(draw, in_axes=(None, 0)))  # one program for all kinds: they are numbers in it


def values_of(value: ParameterValue, intervals: int = 3) -> np.ndarray:
    return np.asarray(_many(distribution(value, intervals), KEYS))


def test_distributions():
    flat, bell, ranges = values_of(UNIFORM), values_of(GAUSSIAN), values_of(RANGES)
    assert -1.0 <= flat.min() < -0.99 and 2.99 < flat.max() <= 3.0
    assert abs(flat.mean() - 1.0) < 0.08 and abs(flat.std() - 4 / 12**0.5) < 0.04  # errors are 0.018 and 0.009
    assert abs(bell.mean() - 10.0) < 0.04 and abs(bell.std() - 0.5) < 0.03  # 0.008, 0.006
    first = ranges <= 2.0
    assert ((ranges >= 1.0) & first | (ranges >= 4.0) & (ranges <= 7.0)).all()
    assert abs(first.mean() - 0.25) < 0.035  # by length, 1 of 4; error 0.007
    assert abs(ranges[first].mean() - 1.5) < 0.05 and abs(ranges[~first].mean() - 5.5) < 0.08
    assert (values_of(2.25) == np.float32(2.25)).all()
    assert getattr(_many, "_cache_size")() == 1  # noqa: B009 - it has no public name


def test_single_points_are_as_likely_as_each_other():
    points = values_of(SamplerSpec("multirangeuniform", (1.0, 1.0, 5.0, 5.0, 7.0, 7.0), 1))
    assert [abs((points == x).mean() - 1 / 3) < 0.04 for x in (1.0, 5.0, 7.0)] == [True] * 3
    mixed = values_of(SamplerSpec("multirangeuniform", (1.0, 1.0, 5.0, 6.0), 1))
    assert mixed.min() >= 5.0  # a point beside an interval has no share


def test_room_for_more_intervals_changes_nothing_and_another_seed_does():
    np.testing.assert_array_equal(values_of(RANGES, 2), values_of(RANGES, 5))
    other = values_of(RANGES._replace(seed=6))
    assert (other != values_of(RANGES)).mean() > 0.99
    same = values_of(UNIFORM), values_of(SamplerSpec("uniform", (0.0, 1.0), 5))
    np.testing.assert_allclose((same[0] + 1.0) / 4.0, same[1], atol=1e-6)  # the same seed: the same random bits


def test_of_seeds():
    assert intervals_of([1.0, UNIFORM, GAUSSIAN]) == 1 and intervals_of([RANGES, 2.0]) == 2 and intervals_of([1.0]) == 0
    np.testing.assert_array_equal(of_seeds([1.0, 2.5], 0), np.array([1.0, 2.5], np.float32))
    found = of_seeds([RANGES, 3.0], 2)
    assert isinstance(found, Distribution)
    assert found.kind.tolist() == [2, 0] and found.mean.tolist() == [0.0, 3.0] and found.seed.tolist() == [5, 0]
    assert found.low.tolist() == [[1.0, 4.0], [0.0, 0.0]] and found.up_to.tolist() == [[0.25, 1.0], [1.0, 1.0]]


def test_one_episode():
    key = jax.random.key(0)
    begin = quick_jit(lambda key: of_episode(of_one({"size": RANGES, "mass": 2.0}), key))
    found, again = begin(key), begin(jax.random.key(1))
    assert 1.0 <= found["size"] <= 7.0 and found["mass"] == np.float32(2.0)
    assert found["size"] != again["size"]


AREAS, ENV = 16, make_shown()
_start = quick_jit(lambda key, parameters: start_areas(ENV, key, AREAS, parameters))
_advance = quick_jit(partial(advance_areas, ENV))


def played(parameters: dict[str, Any], steps: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Observations [T, E, 4] and ends [T, E] of areas that play on."""
    areas, view = _start(jax.random.key(1), parameters)
    seen, ends = [np.asarray(view.obs[0][:, 0])], []
    actions = TeamActions(jnp.zeros((AREAS, 1, 0)), jnp.zeros((AREAS, 1, 1), jnp.int32))
    for _ in range(steps):
        areas, result = _advance(areas, actions, parameters)
        seen.append(np.asarray(result.view.obs[0][:, 0]))
        ends.append(np.asarray(result.step.over))
    return np.array(seen), np.array(ends)


def test_every_episode_of_every_area_draws_its_own():
    value = of_seeds([RANGES] * AREAS, 2)
    seen, ends = played({"size": value, "mass": jnp.full(AREAS, 2.0)})
    size = seen[..., 0]
    assert len(np.unique(size[0])) == AREAS  # areas differ from the start
    changed = size[1:] != size[:-1]
    np.testing.assert_array_equal(changed, ends)  # with each new episode, and never within one
    drawn = np.concatenate([size[0], size[1:][ends]])
    assert len(np.unique(drawn)) == len(drawn) > 300
    assert abs((drawn <= 2.0).mean() - 0.25) < 0.1 and (seen[..., 1] == 2.0).all()
    again, _ = played({"size": value, "mass": jnp.full(AREAS, 2.0)}, 20)
    np.testing.assert_array_equal(again, seen[:21])


def test_a_constant_that_is_a_distribution_is_the_constant_bit_for_bit():
    """And what is drawn for a parameter leaves everything else of an episode as it is."""
    numbers = {"size": jnp.full(AREAS, 1.5), "mass": jnp.full(AREAS, 2.0)}
    plain, ends = played(numbers, 20)
    as_distribution, _ = played({**numbers, "size": of_seeds([1.5] * AREAS, 2)}, 20)
    np.testing.assert_array_equal(as_distribution, plain)
    sampled, sampled_ends = played({**numbers, "size": of_seeds([RANGES] * AREAS, 2)}, 20)
    np.testing.assert_array_equal(sampled[..., 1:], plain[..., 1:])
    np.testing.assert_array_equal(sampled_ends, ends)


@pytest.mark.parametrize("value", [3.5, RANGES])
def test_areas_begin_anew_with_other_parameters(value: ParameterValue):
    mass = jnp.full(AREAS, 2.0)
    areas, _ = _start(jax.random.key(1), {"size": jnp.full(AREAS, 1.5), "mass": mass})
    sizes = of_seeds([value] * AREAS, intervals_of([value]))
    moved, view = quick_jit(partial(begin_areas_anew, ENV))(areas, {"size": sizes, "mass": mass})
    np.testing.assert_array_equal(jax.random.key_data(moved.key), jax.random.key_data(areas.key))
    assert (np.asarray(moved.state.luck) != np.asarray(areas.state.luck)).all()
    size = np.asarray(view.obs[0][:, 0, 0])
    assert (size == 3.5).all() if value == 3.5 else len(np.unique(size)) == AREAS
