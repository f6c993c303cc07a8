"""A network over a whole rollout, some of its states at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxrl import mesh
from jaxrl.rollout.rollout import EverySecond, Rollout

PARTS = 16
"""Of the states between decisions, at least: smaller ones are left out more often, and cost more to look at."""
WIDER, ACCELERATOR_NUMBERS = 64, 2**24
"""On an accelerator a chunk has so many times the members, at most, and so many numbers of what goes in."""


def in_chunks(estimate: Callable[..., Any], inputs: Any, members: int, team: int | None = None) -> Any:
    """`estimate` of a rollout's [T, B, A, ...] arrays, given as one tuple, about `members` members at once.

    The activations of a chunk stay in a CPU's caches, and no memory is needed for those of the whole rollout; an
    accelerator gets wider ones. `team`: members of a row, where the arrays are of several kinds of members, each with
    an A of its own.
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
    found = jax.lax.map(lambda at: estimate(*at), chunks)
    found = jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), found)
    if whole == length:
        return found
    rest = estimate(*jax.tree.map(lambda x: x[whole:], inputs))
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), found, rest)


def of_states(
    estimate: Callable[..., Any], inputs: Any, rollout: Rollout, members: int, team: int | None = None
) -> Any:
    """`in_chunks` of a rollout's states. Of last observations, parts in which nobody was cut off are left out, and 0.

    Teams of equal episodes are cut off together, in few steps.
    """
    if not isinstance(rollout.between, EverySecond):
        return in_chunks(estimate, inputs, members, team)
    found = in_chunks(estimate, each_second(inputs, 0), members, team)
    between = each_second((rollout.present, inputs), 1)
    length = between[0].shape[0]
    parts = next(n for n in range(min(length, PARTS), length + 1) if length % n == 0)
    split = jax.tree.map(lambda x: x.reshape(parts, length // parts, *x.shape[1:]), between)

    def of_part(part: tuple[jax.Array, Any]) -> Any:
        present, states = part
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(estimate, *states))
        return jax.lax.cond(present.any(), lambda: estimate(*states), lambda: empty)

    return jax.tree.map(_woven, found, jax.lax.map(of_part, split))


def _woven(x: jax.Array, between: jax.Array) -> jax.Array:
    """States 0, 2, ... `x` and 1, 3, ... `between`, these in parts [P, M, ...], in the order of time."""
    odd = between.reshape(-1, *x.shape[1:])
    pairs = jnp.stack([x[: len(odd)], odd], axis=1)
    return jnp.concatenate([pairs.reshape(-1, *x.shape[1:]), x[len(odd) :]])


def each_second(x: Any, first: int) -> Any:
    """States `first`, `first` + 2, ... of arrays [T, ...]."""
    return jax.tree.map(lambda array: array[first::2], x)
