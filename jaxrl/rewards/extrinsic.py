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
    own, group = rollout.reward, rollout.group_reward
    if cooperative:
        own, group = own.sum(-1, keepdims=True), _group_reward_with_the_dead(rollout)
    return jnp.where(rollout.acted, (own + group) * strength, 0.0)


def _group_reward_with_the_dead(rollout: Rollout) -> jax.Array:
    """Group reward of each decision; a member that left and got none has what its team earned by that very step.

    An environment that ends an agent before it rewards the group gives the dead nothing, and the team's next value no
    longer holds that reward: without this, the one step that a sacrifice pays off at once would go uncredited.
    """
    stays = rollout.acted & ~rollout.left
    earned = jnp.where(stays, rollout.group_reward, 0.0).sum(-1, keepdims=True)
    earned = earned / jnp.maximum(stays.sum(-1, keepdims=True), 1)
    return jnp.where(rollout.left & (rollout.group_reward == 0.0), earned, rollout.group_reward)
