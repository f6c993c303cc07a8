"""Running mean and variance of numbers that come a few at a time, as `networks.normalizer` computes them.

The count stops at `MOST`: from there on older numbers fade. Beyond it float32 could not tell one more row from none,
and the variance would drift.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.networks import normalizer
from jaxrl.networks.normalizer import NormalizerState

MOST = 2.0**20
"""Rows after which older ones fade."""


class Running(NamedTuple):
    """Statistics of vectors of F numbers."""

    mean: Any  # float32 [F]
    variance: Any  # float32 [F]
    count: Any  # float32 []


def init(size: int, *, rows: int = 0) -> Running:
    """Return the statistics before any data: mean 0, variance 1, with the weight of `rows` rows."""
    return Running(np.zeros(size, np.float32), np.ones(size, np.float32), np.full((), rows, np.float32))


def update(state: Running, x: jax.Array, mask: jax.Array) -> Running:
    """Take in x [..., F] where the mask [...] holds; what stands elsewhere is ignored, even NaN.

    Raises AssertionError for another F or another shape of the mask.
    """
    n, shift, m2 = normalizer.moments(x, mask, jnp.asarray(state.mean))
    count = state.count + n
    share = n / jnp.maximum(count, 1.0)
    between = jnp.square(shift) * share * (1.0 - share)
    variance = state.variance * (1.0 - share) + m2 / jnp.maximum(count, 1.0) + between
    return Running(state.mean + shift * share, variance, jnp.minimum(count, MOST))


def as_normalizer(state: Running) -> NormalizerState:
    """The same mean and variance for `networks.normalizer`."""
    return NormalizerState(mean=state.mean, m2=state.variance, count=jnp.ones(()))
