"""Epochs × minibatches of one update as nested loops inside one program.

Invalid rows of the batch are never trained on: each epoch sorts random numbers with the valid rows in front, which
compacts and shuffles at once. A row holds several members, and only members that acted count. A minibatch consists of
the rows that hold about the wanted number of these, in chunks of one size whose gradients are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import chex
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from jaxrl import mesh

Carry = TypeVar("Carry")
Metrics = dict[str, jax.Array]


def run(
    gradient: Callable[[Carry, Any], tuple[Any, Metrics]],
    apply: Callable[[Carry, Any], Carry],
    carry: Carry,
    batch: Any,
    acted: jax.Array,
    key: jax.Array,
    *,
    size: int,
    epochs: int,
    magnitudes: Collection[str] = (),
    largest: Collection[str] = (),
) -> tuple[Carry, Metrics]:
    """Run all minibatches of `epochs` shuffles of the rows in which a member acted.

    A chunk is c = size // A rows, `size` members if all act. Where the rows hold fewer, a minibatch is the whole number
    of chunks, at least one, that comes nearest to `size` members that acted: between two thirds and four thirds of it.
    Each epoch takes floor(valid rows / rows of a minibatch) minibatches, at least one; the remainder of that epoch is
    left out, as in ML-Agents. When there are fewer valid rows, the minibatch is filled with invalid ones, which the
    masks inside `batch` must switch off.

    Args:
      gradient: (carry, chunk) → (gradient, metrics), both means over the members of the chunk that acted.
      apply: (carry, gradient) → carry.
      carry: state that goes through all minibatches.
      batch: pytree of arrays [N, ...].
      acted: bool [N, A], members that count.
      key: typed key, consumed.
      size: members of a minibatch.
      epochs: passes over the batch.
      magnitudes: metrics of `gradient` that are averaged by their absolute value in each minibatch.
      largest: metrics of `gradient` that are no means and at least 0: the largest of the first minibatch is returned.

    Returns:
      The last carry and the mean of each other metric over all minibatches.

    Raises AssertionError unless `acted` has two axes.
    """
    chex.assert_rank(acted, 2)
    rows, members = acted.shape
    chunk = min(max(size // members, 1), rows)
    counts = acted.sum(-1, dtype=jnp.int32)  # [N]
    valid = acted.any(-1)
    # With one member in a row a minibatch is one chunk, and an accelerator need not wait for the number of chunks.
    chunks = 1 if members == 1 and mesh.on_accelerator() else _chunks(counts, valid, size, chunk)
    count = jnp.maximum(valid.sum() // (chunks * chunk), 1)
    batch, valid, counts = spread((batch, valid, counts), None)
    shapes = jax.eval_shape(gradient, carry, jax.tree.map(lambda x: x[:chunk], batch))
    largest = [name for name in largest if name in shapes[1]]

    def told(name: str, total: jax.Array, x: jax.Array) -> jax.Array:
        if name in largest:
            return jnp.where(total < 0.0, x, total)
        return total + (jnp.abs(x) if name in magnitudes else x)

    def mean_gradient(state: Carry, order: jax.Array, first: jax.Array) -> tuple[Any, Metrics]:
        """Compute Σ_k (n_k / n) mean_k over the chunks k of a minibatch, from `first` on; the maximum of `largest`."""

        def rows(k: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(order, (first + k) * chunk, chunk)

        def acted(k: jax.Array) -> jax.Array:
            return counts[rows(k)].sum()

        total = jax.lax.fori_loop(0, chunks, lambda k, n: n + acted(k), jnp.int32(0))

        def add(k: jax.Array, sums: Any) -> Any:
            chunk_means = gradient(state, spread(jax.tree.map(lambda x: x[rows(k)], batch), chunk))
            share = acted(k) / jnp.maximum(total, 1)
            mean, metrics = jax.tree.map(lambda s, x: s + share * x, sums, chunk_means)
            return mean, metrics | {name: jnp.maximum(sums[1][name], chunk_means[1][name]) for name in largest}

        return jax.lax.fori_loop(0, chunks, add, _zeros(shapes))

    def epoch(carry: tuple[Carry, Metrics], key: jax.Array):
        order = shuffle(key, valid)

        def minibatch(i: jax.Array, carry: tuple[Carry, Metrics]):
            state, totals = carry
            mean, metrics = mean_gradient(state, order, i * chunks)
            return apply(state, mean), {name: told(name, totals[name], x) for name, x in metrics.items()}

        return jax.lax.fori_loop(0, count, minibatch, carry), None

    start = {name: x - (name in largest) for name, x in _zeros(shapes[1]).items()}
    (carry, totals), _ = jax.lax.scan(epoch, (carry, start), jax.random.split(key, epochs))
    return carry, {name: x if name in largest else x / (count * epochs) for name, x in totals.items()}


def _chunks(counts: jax.Array, valid: jax.Array, size: int, chunk: int) -> jax.Array:
    """Return the number of chunks nearest to `size` members that acted, int32 []; at most the chunks of all rows."""
    of_chunk = chunk * counts.sum() / jnp.maximum(valid.sum(), 1)
    wanted = jnp.floor(size / jnp.maximum(of_chunk, 1e-6) + 0.5)
    return jnp.clip(wanted, 1, counts.shape[0] // chunk).astype(jnp.int32)


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def spread(x: Any, rows: int | None) -> Any:
    """Shard arrays [N, ...] over the mesh of devices by their N = `rows`; with None put the whole on each device.

    Each device then computes the gradient of its part of a minibatch and the compiler adds them up. Return `x` as it is
    without a mesh, where each device works for itself, and when the devices do not divide the rows.
    """
    devices = jax.sharding.get_abstract_mesh()
    if devices.empty or devices.size == 1 or not all(kind is AxisType.Auto for kind in devices.axis_types):
        return x
    if rows is not None and rows % devices.size:
        return x
    place = PartitionSpec() if rows is None else PartitionSpec(devices.axis_names)
    return jax.tree.map(lambda array: jax.lax.with_sharding_constraint(array, place), x)


def shuffle(key: jax.Array, valid: jax.Array) -> jax.Array:
    """Return the valid rows in random order, then the others, int32 [N]. The key is consumed.

    Sorts single words, each with the row's number in its low bits: 6 times as fast as an argsort of 2,048 rows, and
    `jax.random.permutation` sorts several times. Where that leaves fewer than 15 random bits, it sorts twice, as in a
    radix sort, with half of the bits each (a million rows: half the time of an argsort). Rows whose random bits are
    equal keep their order, which favours one of two rows by at most 2^-15.
    """
    rows = valid.shape[0]
    low = jnp.uint32((1 << (rows - 1).bit_length()) - 1)

    def in_order(random: jax.Array, valid: jax.Array) -> jax.Array:
        word = jnp.where(valid, random >> 1, (random >> 1) | jnp.uint32(1 << 31))
        return (jnp.sort((word & ~low) | jnp.arange(rows, dtype=jnp.uint32)) & low).astype(jnp.int32)

    random = jax.random.bits(key, (rows,) if rows <= 1 << 16 else (2, rows), jnp.uint32)
    if random.ndim == 1:
        return in_order(random, valid)
    if rows > 1 << 22:
        return jnp.argsort(jnp.where(valid, random[0] >> 1, (random[0] >> 1) | jnp.uint32(1 << 31)))
    first = in_order(random[0], jnp.ones_like(valid))
    return first[in_order(random[1], valid[first])]
