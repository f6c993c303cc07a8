"""Distributions over hybrid actions: a Gaussian with free log-sigma per continuous dimension, one softmax per branch.

Log-probabilities are not summed: an action has C + D columns, continuous dimensions first, each with its own
(ML-Agents). The small constants 1e-7 are ML-Agents' and change results. Leading axes `...` are arbitrary; float32. A
branch in which everything is forbidden gives equal probabilities. `spec` is static. All functions raise AssertionError
for shapes that do not fit the spec or each other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl.networks.shapes import as_row
from jaxrl.types import Action, ActionSpec

EPSILON = 1e-7
FORBIDDEN = 1e8
ENVIRONMENT_CLIP = 3.0


class ActionDistribution(NamedTuple):
    """Distribution of an action by the actor."""

    mean: jax.Array  # float32 [..., C]
    log_sigma: jax.Array  # float32 [C], shared by all states; or [..., C], one for each state
    logits: jax.Array  # float32 [..., M], branches concatenated


def noise(key: jax.Array, lead: tuple[int, ...], spec: ActionSpec) -> jax.Array:
    """Draw the numbers that `sample` needs, float32 [*lead, C + D] in [0, 1). The key is consumed."""
    return jax.random.uniform(key, (*lead, spec.columns))


def sample(key: jax.Array, dist: ActionDistribution, mask: jax.Array, spec: ActionSpec) -> Action:
    """Draw a raw action: continuous float32 [..., C] before clipping, discrete int32 [..., D].

    Inverse distribution functions of one uniform number per column: fewer random bits than Gumbel noise.
    key: typed key, consumed, or the numbers that `noise` drew from it; mask: bool [..., M], True where allowed.
    """
    lead = dist.mean.shape[:-1]
    uniform = noise(key, lead, spec) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    chex.assert_shape(uniform, (*lead, spec.columns))
    c = spec.continuous_size
    lowest = jnp.nextafter(jnp.float32(-1.0), jnp.float32(0.0))
    normal = math.sqrt(2.0) * jax.lax.erf_inv(jnp.maximum(2.0 * uniform[..., :c] - 1.0, lowest))
    continuous = drawn(dist, normal)
    branches = [
        choose(p, uniform[..., c + i].reshape(-1)).reshape(lead) for i, p in enumerate(_columns_of(dist, mask, spec))
    ]
    return Action(continuous=continuous, discrete=_stack(branches, dist))


def drawn(dist: ActionDistribution, normal: jax.Array) -> jax.Array:
    """Compute the continuous action μ + σ · normal from standard normal numbers, all [..., C]."""
    return dist.mean + _sigma(dist) * normal


def choose(p: jax.Array, uniform: jax.Array) -> jax.Array:
    """Draw indices by inverse distribution function: probabilities [size, ...], numbers [...] in [0, 1) -> int32 [...].

    Takes the first index whose cumulative sum is above uniform · total. Indices with p = 0 are skipped: XLA adds up
    long branches in blocks, so that their sums may rise or fall by rounding where p = 0. The total is the largest sum
    of an index with p > 0, hence above uniform · total, so that there always is such an index.
    """
    chex.assert_shape(uniform, p.shape[1:])
    cumulative = jnp.where(p > 0.0, jnp.cumsum(p, axis=0), 0.0)
    target = uniform[None] * jnp.max(cumulative, axis=0, keepdims=True)
    index = jnp.arange(len(p), dtype=jnp.int32).reshape(-1, *[1] * uniform.ndim)
    return jnp.min(jnp.where(cumulative > target, index, len(p) - 1), axis=0)


def mode(dist: ActionDistribution, mask: jax.Array, spec: ActionSpec) -> Action:
    """Return the deterministic action: the mean and the most probable allowed index of each branch."""
    branches = [jnp.argmax(logits, axis=-1).astype(jnp.int32) for logits in masked_logits(dist, mask, spec)]
    return Action(continuous=dist.mean, discrete=_stack(branches, dist))


def log_prob(dist: ActionDistribution, action: Action, mask: jax.Array, spec: ActionSpec) -> jax.Array:
    """Compute the log-probability of each column, [..., C + D], in nats.

    Continuous: -(a - μ)² / (2σ² + 1e-7) - ln(σ + 1e-7) - ½ ln 2π. Discrete: ln(p + 1e-7).
    """
    _check_action(action, spec)
    chex.assert_equal_shape([action.continuous, dist.mean])
    chex.assert_equal_shape_prefix([action.discrete, dist.mean], dist.mean.ndim - 1)
    sigma = _sigma(dist)
    squares = jnp.square(action.continuous - dist.mean) / (2.0 * jnp.square(sigma) + EPSILON)
    columns = [-squares - jnp.log(sigma + EPSILON) - 0.5 * math.log(2.0 * math.pi)]
    for i, p in enumerate(_columns_of(dist, mask, spec)):
        # a one-hot sum instead of a gather: its gradient is a product, not a slow scatter
        index = action.discrete[..., i]
        chosen = index.reshape(1, -1) == jnp.arange(len(p))[:, None]
        columns.append(jnp.log(jnp.sum(jnp.where(chosen, p, 0.0), axis=0) + EPSILON).reshape(*index.shape, 1))
    return jnp.concatenate(columns, axis=-1)


def entropy(dist: ActionDistribution, mask: jax.Array, spec: ActionSpec) -> jax.Array:
    """Compute the entropy for losses, [...]: mean over C of ½ ln(2πe σ² + 1e-7), plus -Σ p ln(p + 1e-7) per branch."""
    total = jnp.zeros(dist.mean.shape[:-1])
    if spec.continuous_size:
        variance = jnp.exp(2.0 * dist.log_sigma)
        total += jnp.mean(0.5 * jnp.log(2.0 * math.pi * math.e * variance + EPSILON), axis=-1)
    for p in _columns_of(dist, mask, spec):
        total -= jnp.sum(p * jnp.log(p + EPSILON), axis=0).reshape(total.shape)
    return total


def to_environment(action: Action) -> Action:
    """Convert a raw action to the environment's: clip(a, -3, 3) / 3 for continuous dimensions, branches as they are."""
    clipped = jnp.clip(action.continuous, -ENVIRONMENT_CLIP, ENVIRONMENT_CLIP) / ENVIRONMENT_CLIP
    return action._replace(continuous=clipped)


def from_environment(action: Action) -> Action:
    """Convert an action of the environment to a raw one: 3 a for continuous dimensions, branches as they are."""
    return action._replace(continuous=jnp.asarray(action.continuous, jnp.float32) * ENVIRONMENT_CLIP)


def one_hot(action: Action, spec: ActionSpec) -> jax.Array:
    """Encode an action for critics, float32 [..., C + M]: raw continuous values, then the one-hot of each branch."""
    _check_action(action, spec)
    parts = [jnp.asarray(action.continuous, jnp.float32)]
    for i, size in enumerate(spec.discrete_branches):
        index = jnp.asarray(action.discrete)[..., i, None]
        parts.append((index == as_row(jnp.arange(size), index)).astype(jnp.float32))
    return jnp.concatenate(parts, axis=-1)


def masked_logits(dist: ActionDistribution, mask: jax.Array, spec: ActionSpec) -> list[jax.Array]:
    """Return the logits of each branch [..., size], -1e8 where forbidden."""
    chex.assert_axis_dimension(dist.mean, -1, spec.continuous_size)
    chex.assert_axis_dimension(dist.log_sigma, -1, spec.continuous_size)
    chex.assert_shape([dist.logits, mask], (*dist.mean.shape[:-1], spec.mask_size))
    allowed = jnp.where(mask.astype(bool), dist.logits, -FORBIDDEN)
    ends = [sum(spec.discrete_branches[: i + 1]) for i in range(len(spec.discrete_branches))]
    return [allowed[..., end - size : end] for end, size in zip(ends, spec.discrete_branches, strict=True)]


def probabilities(dist: ActionDistribution, mask: jax.Array, spec: ActionSpec) -> list[jax.Array]:
    """Compute the softmax of the masked logits of each branch, [..., size]."""
    return [jax.nn.softmax(logits, axis=-1) for logits in masked_logits(dist, mask, spec)]


def _sigma(dist: ActionDistribution) -> jax.Array:
    sigma = jnp.exp(dist.log_sigma)
    return as_row(sigma, dist.mean) if sigma.ndim == 1 else sigma


def _columns_of(dist: ActionDistribution, mask: jax.Array, spec: ActionSpec) -> list[jax.Array]:
    """Compute `probabilities` as [size, N], N all leading axes as one.

    On the CPU sums over a first axis take a third of the time of sums over a short last axis. With more axes behind it,
    the last of them short, each sum of a loss takes 220 instead of 5 us ([5, 1536, 1], jaxlib 0.10.2).
    """
    return [jax.nn.softmax(x.reshape(-1, x.shape[-1]).T, axis=0) for x in masked_logits(dist, mask, spec)]


def _check_action(action: Action, spec: ActionSpec) -> None:
    chex.assert_axis_dimension(action.continuous, -1, spec.continuous_size)
    chex.assert_axis_dimension(action.discrete, -1, len(spec.discrete_branches))


def _stack(branches: list[jax.Array], dist: ActionDistribution) -> jax.Array:
    if not branches:
        return jnp.zeros((*dist.mean.shape[:-1], 0), jnp.int32)
    return jnp.stack(branches, axis=-1)
