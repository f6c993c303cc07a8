"""Initial distributions of the kernels, as in ML-Agents, so that equal settings give equal networks.

Every draw is a plain normal or uniform one. Orthogonal draws (QR) inside `jit(vmap(init))` deadlock XLA's CPU backend
on two cores, so none is used. Kernels are [inputs, outputs], float32. Keys are consumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from jax.nn.initializers import Initializer


def fan_in_normal(gain: float) -> Initializer:
    """Make a normal with deviation gain / sqrt(inputs): bodies 1.0, continuous head 0.2, discrete heads 0.1."""
    return jax.nn.initializers.variance_scaling(gain * gain, "fan_in", "normal")


def embedding_normal(embedding: int) -> Initializer:
    """Make a normal with deviation sqrt(0.125 / embedding) for any number of inputs: attention and entities."""
    return jax.nn.initializers.normal(math.sqrt(0.125 / embedding))


def uniform(limit: float) -> Initializer:
    """Make a uniform distribution within ± limit: filters, hypernetworks."""

    def draw(key: jax.Array, shape: Sequence[int], dtype=jax.numpy.float32, out_sharding=None) -> jax.Array:
        return jax.random.uniform(key, tuple(shape), dtype, -limit, limit)

    return draw


def head_uniform(key: jax.Array, shape: Sequence[int], dtype=jax.numpy.float32, out_sharding=None) -> jax.Array:
    """Draw [inputs, R] Xavier-uniform with each column as a separate head: ± sqrt(6 / (inputs + 1))."""
    limit = math.sqrt(6.0 / (shape[0] + 1))
    return jax.random.uniform(key, tuple(shape), dtype, -limit, limit)
