"""Batched products against numpy, and their hand-written gradients against those that JAX derives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.networks.products import inner_products, weighted_sums

PLAIN = {inner_products: "...ic,...jc->...ij", weighted_sums: "...ij,...jc->...ic"}


@pytest.mark.parametrize("rows", [1, 2, 5])  # a transpose in two halves: one of them may be empty
@pytest.mark.parametrize("batch", [(3,), (3, 2)])
@pytest.mark.parametrize("product", PLAIN)
def test_values_and_gradients_are_those_of_the_plain_product(product, batch, rows) -> None:
    inner = (4, 6) if product is inner_products else (7, 6)
    a = jax.random.normal(jax.random.key(0), (*batch, rows, 6 if product is inner_products else 7))
    b = jax.random.normal(jax.random.key(1), (*batch, *inner))

    def loss(times, a, b):
        out = times(a, b)
        return jnp.sum(jnp.sin(jnp.arange(out.size).reshape(out.shape)) * out), out

    ours = jax.value_and_grad(lambda *ab: loss(product, *ab), (0, 1), has_aux=True)(a, b)
    plain = jax.value_and_grad(lambda *ab: loss(lambda a, b: jnp.einsum(PLAIN[product], a, b), *ab), (0, 1), True)(a, b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), ours, plain)


def test_inner_products_by_hand() -> None:
    a, b = jnp.array([[[1.0, 2.0]]]), jnp.array([[[3.0, 4.0], [5.0, 6.0]]])
    np.testing.assert_array_equal(inner_products(a, b), [[[11.0, 17.0]]])  # 1·3 + 2·4, 1·5 + 2·6
    np.testing.assert_array_equal(weighted_sums(a, b), [[[13.0, 16.0]]])  # 1·3 + 2·5, 1·4 + 2·6


def test_under_vmap_each_example_keeps_its_own() -> None:
    """Many seeds: a third leading axis."""
    a, b = jax.random.normal(jax.random.key(0), (5, 3, 2, 4)), jax.random.normal(jax.random.key(1), (5, 3, 4, 6))
    gradients = jax.vmap(jax.grad(lambda a, b: jnp.sum(weighted_sums(a, b) ** 2), (0, 1)))(a, b)
    each = [jax.grad(lambda a, b: jnp.sum(weighted_sums(a, b) ** 2), (0, 1))(a[i], b[i]) for i in range(5)]
    for i, one in enumerate(each):
        jax.tree.map(lambda x, y, i=i: np.testing.assert_allclose(x[i], y, rtol=1e-5, atol=1e-5), gradients, one)
