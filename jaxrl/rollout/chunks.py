"""Apply a network to a whole rollout, some of its states at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxrl import mesh
from jaxrl.rollout.rollout import EverySecond, Rollout

PARTS = 16
"""Least number of parts of the states between decisions. Smaller parts are empty more often, but each has a cost."""
WIDER, ACCELERATOR_NUMBERS = 64, 2**24
"""Limits of a chunk on an accelerator: multiple of the members, and numbers in its inputs."""


def in_chunks(estimate: Callable[..., Any], inputs: Any, members: int, team: int | None = None) -> Any:
    """Apply `estimate` to a rollout's [T, B, A, ...] arrays, given as one tuple, about `members` members at once.

    The activations of a chunk stay in a CPU's caches, and those of the whole rollout need no memory; chunks on an
    accelerator are larger. `team`: members of a row, if the arrays are of several kinds of members with their own A.
    """
    leaves = jax.tree.leaves(inputs)
    chex.assert_equal_shape_prefix(leaves, 3 if team is None else 2)
    length, rows, columns = *leaves[0].shape[:2], team or leaves[0].shape[2]
    if mesh.on_accelerator():
        numbers = sum(leaf.size for leaf in leaves) // (length * rows * columns)
        members *= max(1, min(WIDER, ACCELERATOR_NUMBERS // (members * numbers)))
    size = -(-length // min(-(-length * rows * columns // members), length))
    whole = length // size * size
    chunks = jax.tree.map(lambda x: x[:whole].reshape(whole // size, size, *x.shape[1:]), inputs)
    outputs = jax.lax.map(lambda at: estimate(*at), chunks)
    outputs = jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), outputs)
    if whole == length:
        return outputs
    rest = estimate(*jax.tree.map(lambda x: x[whole:], inputs))
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), outputs, rest)


def of_states(
    estimate: Callable[..., Any], inputs: Any, rollout: Rollout, members: int, team: int | None = None
) -> Any:
    """Apply `in_chunks` to a rollout's states, and return 0 for parts of `between` without any last observation.

    Teams of equal episodes are cut off together, in few steps.
    """
    if not isinstance(rollout.between, EverySecond):
        return in_chunks(estimate, inputs, members, team)
    outputs = in_chunks(estimate, each_second(inputs, 0), members, team)
    between = each_second((rollout.present, inputs), 1)
    length = between[0].shape[0]
    parts = next(n for n in range(min(length, PARTS), length + 1) if length % n == 0)
    split = jax.tree.map(lambda x: x.reshape(parts, length // parts, *x.shape[1:]), between)

    def of_part(part: tuple[jax.Array, Any]) -> Any:
        present, states = part
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(estimate, *states))
        return jax.lax.cond(present.any(), lambda: estimate(*states), lambda: empty)

    return jax.tree.map(_woven, outputs, jax.lax.map(of_part, split))


def _woven(x: jax.Array, between: jax.Array) -> jax.Array:
    """Join states 0, 2, ... `x` and 1, 3, ... `between`, the latter in parts [P, M, ...], in the order of time."""
    odd = between.reshape(-1, *x.shape[1:])
    pairs = jnp.stack([x[: len(odd)], odd], axis=1)
    return jnp.concatenate([pairs.reshape(-1, *x.shape[1:]), x[len(odd) :]])


def each_second(x: Any, first: int) -> Any:
    """Return states `first`, `first` + 2, ... of arrays [T, ...]."""
    return jax.tree.map(lambda array: array[first::2], x)
