"""Linear layers on columns: features along the first axis, all other axes as one last axis.

The gradient of a kernel is a sum over the rows of a batch. In rows [N, F] it contracts the first axis of both factors,
which XLA's CPU backend copies: with 1,536 rows 64 x 64 takes 200 us, 64 x 5 takes 146 (one core, jaxlib 0.10.2). In
columns [F, N] it contracts the last axes: 91 and 16 us. Sums behind a narrow head then run over whole columns.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from jaxrl import mesh

FEW_ROWS = 256
"""Rows from which x is copied in halves: the copy would add 6 us to a decision of 48 agents that takes 100."""


class Linear(nn.Module):
    """Layer like `nn.Dense` on columns, with its parameters: x [F, N] -> kernelᵀ·x + bias, [features, N]."""

    features: int
    kernel_init: Initializer

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", self.kernel_init, (x.shape[0], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        kernel, bias = kernel.astype(x.dtype), bias.astype(x.dtype)
        return jax.lax.dot_general(kernel, x, (((0,), (0,)), ((), ()))) + bias[:, None]


def on_columns(layers: Callable[[jax.Array], jax.Array], x: jax.Array, *, from_columns: bool = False) -> jax.Array:
    """Apply `layers`, from columns [F, N] to [G, N], to x [..., F], with all leading axes as N. Return [..., G].

    `from_columns`: x is a result of this function, so that XLA cancels its transpose against the one here. Other x are
    transposed in two halves, which XLA cannot fold back into the products of the first layer. That copy is left out for
    few rows, as in a decision, on accelerators, and for rows that are spread over devices, between which halves would
    be transferred.
    """
    rows = x.reshape(-1, x.shape[-1])
    as_they_are = from_columns or len(rows) < FEW_ROWS or mesh.rows_are_spread() or mesh.on_accelerator()
    middle = 0 if as_they_are else len(rows) // 2
    columns = jnp.concatenate([half.T for half in (rows[:middle], rows[middle:]) if len(half)], axis=1)
    out = layers(columns)
    return out.T.reshape(*x.shape[:-1], out.shape[0])
