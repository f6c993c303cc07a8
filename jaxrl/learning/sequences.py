"""Sequences of states that gradients flow through, cut from the rows of a rollout (truncated backpropagation in time).

Rows are cut from their beginning on, whatever episodes they hold: where an episode begins, the memory is reset inside
the sequence. Each sequence starts from the memory that was stored when its first state was acted in.
"""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp


def cut(states: Any, counts: jax.Array, length: int) -> Any:
    """Cut arrays [T, B, A, ...] of a pytree into [N, L, A, ...]: N = B ceil(T / L) sequences, L = min(length, T).

    The states that count are moved to the front in their order, so that sequences are as full as possible. Zeros pad
    the last sequence of a row. `counts`, bool [T, B, *]: the state updates the memory of a member of the row.

    Raises AssertionError for leading axes that differ.
    """
    chex.assert_equal_shape_prefix(jax.tree.leaves(states), 3)
    chex.assert_equal_shape_prefix([counts, *jax.tree.leaves(states)], 2)
    time, rows, _ = counts.shape
    length = min(length, time)
    pieces = -(-time // length)
    order = _order(counts)

    def of_rows(x: jax.Array) -> jax.Array:
        x = x[order, jnp.arange(rows)]
        x = jnp.pad(x, [(0, pieces * length - time)] + [(0, 0)] * (x.ndim - 1))
        x = jnp.swapaxes(x.reshape(pieces, length, rows, *x.shape[2:]), 1, 2)
        return x.reshape(pieces * rows, length, *x.shape[3:])

    return jax.tree.map(of_rows, states)


def joined(cut: jax.Array, counts: jax.Array) -> jax.Array:
    """Undo `cut`: [N, L, A, ...] -> [T, B, A, ...], each state in its former place."""
    time, rows, _ = counts.shape
    x = jnp.swapaxes(cut.reshape(-1, rows, *cut.shape[1:]), 1, 2)
    x = x.reshape(-1, *x.shape[2:])[:time]
    return x[jnp.argsort(_order(counts), axis=0), jnp.arange(rows)]


def _order(counts: jax.Array) -> jax.Array:
    """Return the order of the states of each row, those that count in front, int32 [T, B]."""
    return jnp.argsort(~counts.any(-1), axis=0, stable=True)
