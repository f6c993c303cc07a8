"""Values chosen by a mask of the leading axes alone, whatever the trailing ones are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def of_slots(x: jax.Array, origin: Any) -> jax.Array:
    """`x` [B, A, *] of slot `origin`, row * A + member, int32 [B, A], in the place of each; of any where it is -1."""
    return x.reshape(-1, *x.shape[2:])[jnp.maximum(origin, 0)]


def trailing(mask: Any, like: Any) -> Any:
    """`mask` [...] with an axis of size 1 for each that `like` [..., *] has more, of JAX or NumPy."""
    return mask.reshape(*mask.shape, *[1] * (like.ndim - mask.ndim))


def select(mask: Any, x: jax.Array, other: Any) -> jax.Array:
    """`x` [..., *] where the mask [...] holds, else `other`, which broadcasts to it."""
    return jnp.where(trailing(mask, x), x, other)


def where(mask: Any, x: jax.Array, fill: Any) -> jax.Array:
    """The same in the type of `x`, whatever stands where the mask does not hold."""
    return select(jnp.asarray(mask), x, jnp.asarray(fill, x.dtype))
