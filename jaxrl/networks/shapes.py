"""Explicit broadcasting: jaxrl runs its tests with `jax_numpy_rank_promotion = raise`."""

from __future__ import annotations

import jax


def as_row(vector: jax.Array, like: jax.Array) -> jax.Array:
    """A vector [F] as [1, ..., 1, F] with as many axes as `like`."""
    return vector.reshape(*[1] * (like.ndim - 1), -1)
