"""The environment's own reward as a reward stream (ML-Agents' extrinsic signal)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.rollout.trajectory import Rollout


def extrinsic(rollout: Rollout, *, strength: float, cooperative: bool) -> jax.Array:
    """Reward of each decision, times strength: r_i = own_i + group_i (+ Σ_{j≠i} own_j when cooperative).

    MA-POCA counts the individual rewards of all members that acted in the same state; PPO and SAC only the agent's own.

    Args:
      rollout: arrays [T, B, A]; rewards are 0 where a member did not act.
      strength: factor from the settings.
      cooperative: True for MA-POCA.

    Returns:
      float32 [T, B, A], 0 where the member did not act.
    """
    own = rollout.reward.sum(-1, keepdims=True) if cooperative else rollout.reward
    return jnp.where(rollout.acted, (own + rollout.group_reward) * strength, 0.0)
