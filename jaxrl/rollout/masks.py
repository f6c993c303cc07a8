"""Values chosen by a mask of the leading axes alone, whatever the trailing ones are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def of_slots(x: jax.Array, origin: Any) -> jax.Array:
    """`x` [B, A, *] of slot `origin`, row * A + member, int32 [B, A], in the place of each; of any where it is -1."""
    return x.reshape(-1, *x.shape[2:])[jnp.maximum(origin, 0)]


def where(mask: Any, x: jax.Array, fill: Any) -> jax.Array:
    """`x` [..., *] where the mask [...] holds; `fill`, which broadcasts to it, elsewhere, whatever stands there."""
    return jnp.where(
        jnp.reshape(mask, jnp.shape(mask) + (1,) * (x.ndim - jnp.ndim(mask))), x, jnp.asarray(fill, x.dtype)
    )
