"""Losses of PPO and MA-POCA: arrays in, scalars out.

A mask is bool (or 0/1) over the leading axes `...`. Elements where it is False have no influence on values or
gradients, even if they are NaN: they are replaced *before* the arithmetic, because 0 * NaN would come back in the
gradient. Trailing columns (action dimensions and branches, or reward signals) share their row's mask. All arrays are
float32. All functions raise AssertionError for shapes other than those documented, so that nothing broadcasts by
accident.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def masked_mean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Compute Σ x·mask / max(Σ mask, 1) over all elements, x [...] or [..., columns], mask [...]; 0 without any."""
    mask = _columns(mask, x)
    total = jnp.sum(jnp.where(mask, x, 0.0))
    return total / jnp.maximum(jnp.sum(mask.astype(jnp.float32)), 1.0)


def clipped_policy_loss(
    log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, mask: jax.Array, epsilon: jax.Array | float
) -> jax.Array:
    """Compute -mean(min(ρ A, clip(ρ, 1 - ε, 1 + ε) A)), ρ = exp(new - old) per column (Schulman et al. 2017, eq. 7).

    log_prob, old_log_prob: [..., C + D]; advantage, mask: [...]. Each action dimension and branch has its own ratio.
    """
    chex.assert_equal_shape([log_prob, old_log_prob])
    chex.assert_equal_shape([advantage, mask])
    chex.assert_rank(log_prob, mask.ndim + 1)
    valid = _columns(mask, log_prob)
    ratio = jnp.exp(jnp.where(valid, log_prob, 0.0) - jnp.where(valid, old_log_prob, 0.0))
    weight = jnp.where(mask.astype(bool), advantage, 0.0)[..., None]
    clipped = jnp.clip(ratio, 1.0 - epsilon, 1.0 + epsilon)
    return -masked_mean(jnp.minimum(ratio * weight, clipped * weight), mask)


def value_loss(
    value: jax.Array, old_value: jax.Array, returns: jax.Array, mask: jax.Array, epsilon: jax.Array | float
) -> jax.Array:
    """Compute the clipped value loss, the mean of max((R - v)², (R - (v_old + clip(v - v_old, -ε, ε)))²).

    v is [...] or [..., R]. The streams share the mask, so that this is also the mean of the streams' masked means.
    """
    chex.assert_equal_shape([value, old_value, returns])
    valid = _columns(mask, value)
    value, old_value, returns = (jnp.where(valid, x, 0.0) for x in (value, old_value, returns))
    clipped = old_value + jnp.clip(value - old_value, -epsilon, epsilon)
    return masked_mean(jnp.maximum(jnp.square(returns - value), jnp.square(returns - clipped)), mask)


def squared_value_loss(value: jax.Array, returns: jax.Array, mask: jax.Array) -> jax.Array:
    """Compute mean((R - v)²), v and R [...] or [..., R]: the value loss of ML-Agents, whose old value is R."""
    chex.assert_equal_shape([value, returns])
    valid = _columns(mask, value)
    return masked_mean(jnp.square(jnp.where(valid, returns, 0.0) - jnp.where(valid, value, 0.0)), mask)


def normalize_advantages(advantage: jax.Array, mask: jax.Array) -> jax.Array:
    """Compute (A - mean) / (std + 1e-10) over the masked elements (population std); 0 elsewhere. Both [...]."""
    chex.assert_equal_shape([advantage, mask])
    valid = mask.astype(bool)
    centred = jnp.where(valid, jnp.where(valid, advantage, 0.0) - masked_mean(advantage, mask), 0.0)
    variance = masked_mean(jnp.square(centred), mask)
    # the root of 0 has an infinite slope, which times 0 would be NaN in a gradient
    deviation = jnp.where(variance > 0.0, jnp.sqrt(jnp.where(variance > 0.0, variance, 1.0)), 0.0)
    return centred / (deviation + 1e-10)


def _columns(mask: jax.Array, x: jax.Array) -> jax.Array:
    """Return the mask as bool in the shape of x, repeated over the column axis if x has one."""
    mask = mask.astype(bool)
    if x.ndim == mask.ndim + 1:
        mask = mask[..., None]
    chex.assert_rank(x, mask.ndim)
    chex.assert_equal_shape_prefix([x, mask], max(x.ndim - 1, 0))
    return jnp.broadcast_to(mask, x.shape)
