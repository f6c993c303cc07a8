"""Running mean and variance of numbers that come a few at a time (Chan, Golub & LeVeque 1983).

A batch of n rows gives
    count' = count + n,  mean' = mean + Σ (x - mean) / count',
    variance' = variance + (Σ (x - mean') (x - mean) - n · variance) / count',
what `networks.normalizer` computes with M2 = variance · count. The count stops at `MOST`: from there on older numbers
fade. Beyond it float32 could not tell one more row from none, and the variance would drift.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.networks.normalizer import NormalizerState
from jaxrl.networks.shapes import as_row

MOST = 2.0**20
"""Rows after which older ones fade."""


class Running(NamedTuple):
    """Statistics of vectors of F numbers."""

    mean: Any  # float32 [F]
    variance: Any  # float32 [F]
    count: Any  # float32 []


def init(size: int) -> Running:
    """Before any data: mean 0, variance 1, with the weight of one row."""
    return Running(np.zeros(size, np.float32), np.ones(size, np.float32), np.ones((), np.float32))


def update(state: Running, x: jax.Array, mask: jax.Array) -> Running:
    """Take in x [..., F] where the mask [...] holds; what stands elsewhere is ignored, even NaN.

    Raises AssertionError for another F or another shape of the mask.
    """
    chex.assert_shape(x, (*mask.shape, *state.mean.shape))
    rows, valid = x.reshape(-1, x.shape[-1]), mask.reshape(-1, 1)
    n = valid.sum(dtype=jnp.float32)
    count = state.count + n
    before = jnp.where(valid, rows - as_row(state.mean, rows), 0.0)
    mean = state.mean + before.sum(0) / count
    after = jnp.where(valid, rows - as_row(mean, rows), 0.0)
    variance = state.variance + ((before * after).sum(0) - n * state.variance) / count
    return Running(mean, variance, jnp.minimum(count, MOST))


def as_normalizer(state: Running) -> NormalizerState:
    """The same mean and variance for `networks.normalizer`."""
    return NormalizerState(mean=state.mean, m2=state.variance, count=jnp.ones(()))
