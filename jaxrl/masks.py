"""Selection by a mask over the leading axes, for any trailing axes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def of_slots(x: jax.Array, origin: Any) -> jax.Array:
    """Gather `x` [B, A, *] from slots `origin`, row * A + member, int32 [B, A]; any value where it is -1."""
    return x.reshape(-1, *x.shape[2:])[jnp.maximum(origin, 0)]


def trailing(mask: Any, like: Any) -> Any:
    """Append axes of size 1 to `mask` [...], up to the rank of `like` [..., *]; JAX or NumPy."""
    return mask.reshape(*mask.shape, *[1] * (like.ndim - mask.ndim))


def select(mask: Any, x: jax.Array, other: Any) -> jax.Array:
    """Return `x` [..., *] where the mask [...] holds, else `other`, which broadcasts to it."""
    return jnp.where(trailing(mask, x), x, other)


def where(mask: Any, x: jax.Array, fill: Any) -> jax.Array:
    """Return `x` where the mask holds, else `fill` in the type of `x`, whatever `x` holds there."""
    return select(jnp.asarray(mask), x, jnp.asarray(fill, x.dtype))
