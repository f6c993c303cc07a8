"""Running mean and variance of vector observations (ML-Agents' normaliser; Chan, Golub & LeVeque 1983).

State per observation: mean, M2 (the sum of squared deviations) and count, at first 0, 1 and 1: a row of zeros, as in
ML-Agents. With `normalize_from_data` they are 0 at first. A batch of n rows with mean b and squared deviations S gives
    count' = count + n,  mean' = mean + (b - mean) n / count',  M2' = M2 + S + (b - mean)² count n / count'
and networks see an observation as clip((x - mean) / sqrt(M2 / count), -5, 5).
Nothing here is learned by gradient. All arrays are float32; F is the size of one observation.

This is ML-Agents' update, M2' = M2 + Σ (x - mean') (x - mean), in a form that is exact in float32: in that formula
b - mean and S are lost among products of the size of x² if observations are far from 0.
"""

from __future__ import annotations

import chex
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.networks.encoders import as_float
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.networks.shapes import as_row
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import BehaviorSpec

CLIP = 5.0
_PART = 2**16  # rows of a large array that are added at once
_LEAST = 2.0**-22
"""Smallest deviation over mean; a smaller one is rounding: the step of float32 is 2^-24 to 2^-23 of a number."""


@flax.struct.dataclass
class NormalizerState:
    """Statistics of one vector observation."""

    mean: jax.Array  # float32 [F]
    m2: jax.Array  # float32 [F]
    count: jax.Array  # float32 [], not an integer: a 32-bit one overflows in a long run, and float32 rounds harmlessly


States = tuple[NormalizerState | None, ...]
"""State of each observation of a behavior; None for one that is not normalised."""


def init(size: int, *, from_data: bool = False) -> NormalizerState:
    """Return the state before any data: mean 0, M2 1, count 1; all 0 with `from_data`."""
    weight = jnp.float32(0.0 if from_data else 1.0)
    return NormalizerState(mean=jnp.zeros(size), m2=jnp.full(size, weight), count=weight)


def moments(x: jax.Array, mask: jax.Array | None, near: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute number, mean and sum of squared deviations of rows x [..., F] where the mask [...] holds.

    Other rows are ignored, even NaN. The mean is relative to `near` [F], numbers close to the rows: sums of small
    differences are exact where sums of large numbers are not. A second pass corrects the rounding of the first.

    Returns:
      Float32 [], [F] and [F]; all 0 where the mask holds nowhere.

    Raises:
      AssertionError: another F or another shape of the mask.
    """
    size = near.shape[0]
    chex.assert_axis_dimension(x, -1, size)
    rows = as_float(x).reshape(-1, size)
    if mask is None:
        mask = jnp.ones(x.shape[:-1], bool)
    chex.assert_shape(mask, x.shape[:-1])
    valid = mask.reshape(-1, 1).astype(bool)
    n = jnp.sum(valid.astype(jnp.float32))
    least = jnp.maximum(n, 1.0)
    away = jnp.where(valid, rows - as_row(near, rows), 0.0)
    mean = jnp.sum(away, axis=0) / least
    away = jnp.where(valid, away - as_row(mean, rows), 0.0)
    rest = jnp.sum(away, axis=0)  # 0 but for rounding
    m2 = jnp.sum(jnp.square(away), axis=0) - jnp.square(rest) / least
    return n, mean + rest / least, jnp.maximum(m2, 0.0)


def update(state: NormalizerState, x: jax.Array, mask: jax.Array | None) -> NormalizerState:
    """Add one batch x [..., F] to the statistics; rows where mask [...] is False are ignored, even NaN.

    Raises AssertionError for another F or another shape of the mask.
    """
    n, shift, m2 = moments(x, mask, state.mean)
    count = state.count + n
    share = n / jnp.maximum(count, 1.0)
    return NormalizerState(
        mean=state.mean + shift * share, m2=state.m2 + m2 + jnp.square(shift) * (state.count * share), count=count
    )


def variance(state: NormalizerState) -> jax.Array:
    """Compute the variance that observations are divided by, float32 [F]: M2 / count, 1 before any data.

    It is never 0: at least that of rounding, and 1 for a number that is always 0.
    """
    known = state.count > 0
    value = jnp.where(known, state.m2 / jnp.where(known, state.count, 1.0), 1.0)
    value = jnp.maximum(value, jnp.square(_LEAST * state.mean))
    return jnp.where(value == 0, 1.0, value)


def normalize(state: NormalizerState, x: jax.Array) -> jax.Array:
    """Compute clip((x - mean) / sqrt(M2 / count), -5, 5); NaN stays NaN. Raises AssertionError unless x is [..., F]."""
    chex.assert_axis_dimension(x, -1, state.mean.shape[0])
    scale = jax.lax.rsqrt(variance(state))
    x = as_float(x)
    return jnp.clip((x - as_row(state.mean, x)) * as_row(scale, x), -CLIP, CLIP)


def normalize_onnx(graph: OnnxGraph, x: str, state: NormalizerState) -> str:
    """Add `normalize` of the tensor x [batch, F]; the statistics become constants of the file."""
    scale = 1.0 / np.sqrt(np.asarray(variance(state), np.float64))
    centred = graph.add("Sub", [x, graph.constant(f"{x}/mean", np.asarray(state.mean))], f"{x}/centered")
    scaled = graph.add("Mul", [centred, graph.constant(f"{x}/scale", scale)], f"{x}/scaled")
    return graph.add("Clip", [scaled], f"{x}/normalized", min=-CLIP, max=CLIP)


def init_all(spec: BehaviorSpec, enabled: bool, *, from_data: bool = False) -> States:
    """Return the states of a behavior: one per vector observation (goals included), all None without `enabled`."""
    vectors = [enabled and len(o.shape) == 1 for o in spec.observations]
    return tuple(
        init(o.shape[0], from_data=from_data) if v else None for o, v in zip(spec.observations, vectors, strict=True)
    )


def init_for(spec: BehaviorSpec, network: NetworkSettings) -> States:
    """Return `init_all` for the settings `normalize` and `normalize_from_data` of a network."""
    return init_all(spec, network.normalize, from_data=network.normalize_from_data)


def update_all(states: States, obs: tuple[jax.Array, ...], mask: jax.Array | None) -> States:
    """Apply `update` to each observation [..., *shape] with one mask [...]."""
    return tuple(s and update(s, x, mask) for s, x in zip(states, obs, strict=True))


def update_in_parts(states: States, obs: tuple[np.ndarray, ...], rows: np.ndarray | None = None) -> States:
    """Apply `update_all` to `rows`, int [m] or all, of arrays [n, *shape] that may be in files. Not to be traced."""
    if not any(states):
        return states
    places = np.arange(len(obs[0])) if rows is None else rows
    for part in np.split(places, range(_PART, len(places), _PART)):
        states = tuple(s and update(s, jnp.asarray(x[part]), None) for s, x in zip(states, obs, strict=True))
    return states


def normalize_all(states: States, obs: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Apply `normalize` to each observation that has a state; return the others as they are."""
    return tuple(x if s is None else normalize(s, x) for s, x in zip(states, obs, strict=True))
