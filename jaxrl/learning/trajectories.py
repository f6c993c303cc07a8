"""Means over trajectories: each counts once, however long it is, as in the statistics of ML-Agents."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def trajectory_weights(acted: jax.Array, last: jax.Array) -> jax.Array:
    """1 / length of the trajectory that a decision belongs to, float32 [T, ...]; 0 where not acted.

    Their sum is the number of trajectories.

    Args:
      acted: bool [T, ...], a decision.
      last: bool [T, ...], the last one of its trajectory. What follows the last of all is one that was not over.
    """
    chex.assert_equal_shape([acted, last])
    ends = (acted & last).astype(jnp.int32)
    number = jnp.cumsum(ends, axis=0) - ends  # trajectories of the same member that ended before
    flat, decisions = (x.reshape(len(acted), -1) for x in (number, acted))
    column = jnp.arange(flat.shape[1])[None]
    # Counts are whole numbers, so that the order in which an accelerator adds them does not show.
    length = jnp.zeros_like(flat).at[flat, column].add(decisions)[flat, column]
    return jnp.where(decisions, 1.0 / jnp.maximum(length, 1), 0.0).reshape(acted.shape)


def mean_over_trajectories(x: jax.Array, acted: jax.Array, last: jax.Array) -> jax.Array:
    """Mean over trajectories of the mean of x [T, ...] over a trajectory's decisions; 0 where there are none.

    x is not read where nobody acted.
    """
    chex.assert_equal_shape([x, acted])
    weights = trajectory_weights(acted, last)
    return jnp.sum(jnp.where(acted, x, 0.0) * weights) / jnp.maximum(jnp.sum(weights), 1.0)
