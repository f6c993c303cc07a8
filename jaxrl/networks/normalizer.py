"""Running mean and variance of vector observations (ML-Agents' normaliser; Chan, Golub & LeVeque 1983).

State per observation: mean, M2 (the sum of squared deviations) and count, at first 0, 1 and 1. A batch of n rows gives
    count' = count + n,  mean' = mean + Σ (x - mean) / count',  M2' = M2 + Σ (x - mean') (x - mean)
and an observation is shown to the networks as clip((x - mean) / sqrt(M2 / count), -5, 5).
Nothing here is learned by gradient. All arrays are float32; F is the size of one observation.
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
from jaxrl.types import BehaviorSpec

CLIP = 5.0
_PART = 2**16  # rows of a large array taken in at once


@flax.struct.dataclass
class NormalizerState:
    """Statistics of one vector observation."""

    mean: jax.Array  # float32 [F]
    m2: jax.Array  # float32 [F]
    count: jax.Array  # float32 [], not an integer: a 32-bit one overflows in a long run, and float32 rounds harmlessly


States = tuple[NormalizerState | None, ...]
"""One entry per observation of a behavior; None where it is shown as it is."""


def init(size: int) -> NormalizerState:
    """State before any data: mean 0, M2 1, count 1."""
    return NormalizerState(mean=jnp.zeros(size), m2=jnp.ones(size), count=jnp.ones(()))


def update(state: NormalizerState, x: jax.Array, mask: jax.Array | None) -> NormalizerState:
    """Take in one batch x [..., F]; rows where mask [...] is False are ignored, whatever they hold (even NaN).

    Raises AssertionError for another F or another shape of the mask.
    """
    size = state.mean.shape[0]
    chex.assert_axis_dimension(x, -1, size)
    rows = as_float(x).reshape(-1, size)
    if mask is None:
        mask = jnp.ones(x.shape[:-1], bool)
    chex.assert_shape(mask, x.shape[:-1])
    valid = mask.reshape(-1, 1).astype(bool)
    rows = jnp.where(valid, rows, 0.0)
    count = state.count + jnp.sum(valid.astype(jnp.float32))
    delta = jnp.where(valid, rows - as_row(state.mean, rows), 0.0)
    mean = state.mean + jnp.sum(delta, axis=0) / count
    m2 = state.m2 + jnp.sum((rows - as_row(mean, rows)) * delta, axis=0)
    return NormalizerState(mean=mean, m2=m2, count=count)


def normalize(state: NormalizerState, x: jax.Array) -> jax.Array:
    """clip((x - mean) / sqrt(M2 / count), -5, 5) of x [..., F]; NaN stays NaN. Raises AssertionError for another F."""
    chex.assert_axis_dimension(x, -1, state.mean.shape[0])
    scale = jax.lax.rsqrt(state.m2 / state.count)
    x = as_float(x)
    return jnp.clip((x - as_row(state.mean, x)) * as_row(scale, x), -CLIP, CLIP)


def normalize_onnx(graph: OnnxGraph, x: str, state: NormalizerState) -> str:
    """`normalize` of the tensor x [batch, F]; the statistics become constants of the file."""
    scale = 1.0 / np.sqrt(np.asarray(state.m2, np.float64) / np.asarray(state.count, np.float64))
    centred = graph.add("Sub", [x, graph.constant(f"{x}/mean", np.asarray(state.mean))], f"{x}/centered")
    scaled = graph.add("Mul", [centred, graph.constant(f"{x}/scale", scale)], f"{x}/scaled")
    return graph.add("Clip", [scaled], f"{x}/normalized", min=-CLIP, max=CLIP)


def init_all(spec: BehaviorSpec, enabled: bool) -> States:
    """States of a behavior: one per vector observation (goals included), all None when `normalize` is off."""
    vectors = [enabled and len(o.shape) == 1 for o in spec.observations]
    return tuple(init(o.shape[0]) if v else None for o, v in zip(spec.observations, vectors, strict=True))


def update_all(states: States, obs: tuple[jax.Array, ...], mask: jax.Array | None) -> States:
    """`update` of each observation [..., *shape] with the same mask [...]."""
    return tuple(s and update(s, x, mask) for s, x in zip(states, obs, strict=True))


def update_in_parts(states: States, obs: tuple[np.ndarray, ...], rows: np.ndarray | None = None) -> States:
    """`update_all` of arrays [n, *shape] that may lie in files; `rows`: int [m], those alone. Not to be traced."""
    if not any(states):
        return states
    places = np.arange(len(obs[0])) if rows is None else rows
    for part in np.split(places, range(_PART, len(places), _PART)):
        states = tuple(s and update(s, jnp.asarray(x[part]), None) for s, x in zip(states, obs, strict=True))
    return states


def normalize_all(states: States, obs: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """`normalize` of each observation that has a state; the others as they are."""
    return tuple(x if s is None else normalize(s, x) for s, x in zip(states, obs, strict=True))
