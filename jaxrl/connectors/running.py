"""Running mean and variance of a stream of numbers, as `networks.normalizer` computes them.

The count stops at `MOST`, and older numbers fade from there on: float32 could not add one row to a larger count, and
the variance would drift.
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
    """Add x [..., F] to the statistics where the mask [...] holds; other elements are ignored, even NaN.

    Raises AssertionError for another F or another shape of the mask.
    """
    n, shift, m2 = normalizer.moments(x, mask, jnp.asarray(state.mean))
    count = state.count + n
    share = n / jnp.maximum(count, 1.0)
    between = jnp.square(shift) * share * (1.0 - share)
    variance = state.variance * (1.0 - share) + m2 / jnp.maximum(count, 1.0) + between
    return Running(state.mean + shift * share, variance, jnp.minimum(count, MOST))


def as_normalizer(state: Running) -> NormalizerState:
    """Convert the mean and variance to the state of `networks.normalizer`."""
    return NormalizerState(mean=state.mean, m2=state.variance, count=jnp.ones(()))
