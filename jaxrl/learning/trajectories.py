"""Means over trajectories: each trajectory counts once, however long it is, as in the statistics of ML-Agents."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def trajectory_weights(acted: jax.Array, last: jax.Array) -> jax.Array:
    """Compute 1 / length of each decision's trajectory, float32 [T, ...]; 0 where not acted.

    The sum of the weights is the number of trajectories.

    Args:
      acted: bool [T, ...], the states with a decision.
      last: bool [T, ...], the last decision of its trajectory. Decisions behind all of these are one more trajectory.
    """
    chex.assert_equal_shape([acted, last])
    ends = (acted & last).astype(jnp.int32)
    number = jnp.cumsum(ends, axis=0) - ends  # trajectories of the same member that ended before
    flat, decisions = (x.reshape(len(acted), -1) for x in (number, acted))
    column = jnp.arange(flat.shape[1])[None]
    # Counts are integers: the order in which an accelerator adds them does not change the result.
    length = jnp.zeros_like(flat).at[flat, column].add(decisions)[flat, column]
    return jnp.where(decisions, 1.0 / jnp.maximum(length, 1), 0.0).reshape(acted.shape)


def mean_over_trajectories(x: jax.Array, acted: jax.Array, last: jax.Array) -> jax.Array:
    """Compute the mean over trajectories of the mean of x [T, ...] over their decisions; 0 without trajectories.

    x is not read where nobody acted.
    """
    chex.assert_equal_shape([x, acted])
    weights = trajectory_weights(acted, last)
    return jnp.sum(jnp.where(acted, x, 0.0) * weights) / jnp.maximum(jnp.sum(weights), 1.0)
