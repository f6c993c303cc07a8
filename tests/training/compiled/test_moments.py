"""Means and spreads that are put together iteration by iteration in float32, against numpy on all numbers at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.training.compiled.stacking import Moments, moments, together


@pytest.mark.parametrize(("mean", "std"), [(1e4, 0.1), (1e6, 100.0), (-3.0, 2.0)])
def test_a_small_spread_about_a_large_mean(mean: float, std: float) -> None:
    """Sums of float32 squares told 2.66 for 0.1, and 186 for 100. As chunks do it: zeros first, 40 iterations, empty
    ones among them, three of those put together by numpy in float64."""
    drift = std * np.linspace(-2.0, 2.0, 40)[:, None]  # so that iterations differ in their means as well
    x = (np.random.default_rng(0).normal(mean, std, (3, 40, 256)) + drift).astype(np.float32)
    mask = np.random.default_rng(1).random(x.shape) < 0.5
    mask[:, ::7] = False

    @jax.jit
    def chunk(x: jax.Array, mask: jax.Array) -> Moments:
        nothing = Moments(*jnp.zeros((3,), jnp.float32))
        return jax.lax.fori_loop(0, 40, lambda i, so_far: together(so_far, moments(x[i], mask[i])), nothing)

    chunks = [jax.tree.map(np.float64, chunk(*of_chunk)) for of_chunk in zip(x, mask, strict=True)]
    found = together(together(chunks[0], chunks[1]), chunks[2])
    expected = x[mask].astype(np.float64)
    assert found.count == len(expected)
    assert found.mean == pytest.approx(expected.mean(), abs=0.02 * std)
    assert found.std == pytest.approx(expected.std(), rel=0.01)
    assert found.total == pytest.approx(expected.sum(), rel=1e-6)


def test_of_none() -> None:
    none = moments(jnp.full(4, jnp.nan), jnp.zeros(4, bool))
    assert (float(none.count), float(none.mean), float(none.std)) == (0.0, 0.0, 0.0)
    some = moments(jnp.array([1.0, 3.0]), jnp.ones(2, bool))
    for both in (together(none, some), together(some, none)):
        assert (float(both.count), float(both.mean), float(both.std)) == (2.0, 2.0, 1.0)
