"""The environment's own reward as a reward signal (ML-Agents' extrinsic signal). It learns nothing.

Functions raise AssertionError where shapes differ from those named.
"""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxrl.rewards.interface import RewardSignal
from jaxrl.rollout.rollout import Rollout


def reward(_state: Any, rollout: Rollout, *, cooperative: bool) -> jax.Array:
    """Compute the reward of each decision: r_i = own_i + group_i (+ the mates' rewards meanwhile, when cooperative).

    MA-POCA counts the individual rewards of all members of the row; PPO, MAPPO and SAC only the agent's own.

    Args:
      rollout: arrays [T, B, A]; rewards are 0 where a member did not act.
      cooperative: True for MA-POCA and COMA.

    Returns:
      float32 [T, B, A], 0 where the member did not act.
    """
    chex.assert_equal_shape([rollout.acted, rollout.reward, rollout.mates_reward])
    individual = rollout.reward + rollout.mates_reward if cooperative else rollout.reward
    return jnp.where(rollout.acted, individual + group_reward(rollout), 0.0)


def group_reward(rollout: Rollout) -> jax.Array:
    """Compute the group reward of each decision, [T, B, A]; a member that ended gets the one its team got meanwhile.

    That is the group reward of largest magnitude among the members that acted in the same state and were paid no later
    than with the state whose value follows it. An environment may end an agent before it rewards the group, or in the
    very message in which the group ends. The dead member then gets nothing, or only the reward of every step, and a
    sacrifice that pays off at once would not be credited, since no later value of the team holds that reward. The
    later reward of a mate whose decision is still pending is part of that value, and would count twice.
    """
    endings = (rollout.left, rollout.terminated, rollout.truncated)
    chex.assert_rank(rollout.acted, 3)
    chex.assert_equal_shape([rollout.acted, rollout.waiting, rollout.group_reward, *endings])
    group = jnp.where(rollout.acted, rollout.group_reward, 0.0)
    known = _known_at(rollout.waiting)
    in_time = known[..., None, :] <= known[..., :, None]  # [T, B, member, mate]
    paid = jnp.where(in_time, group[..., None, :], 0.0)
    highest, lowest = paid.max(-1), paid.min(-1)
    earned = jnp.where(highest >= -lowest, highest, lowest)
    ended = rollout.left | rollout.terminated | rollout.truncated
    return jnp.where(ended, earned, rollout.group_reward)


def _known_at(waiting: jax.Array) -> jax.Array:
    """Return the state with which each decision's outcome arrives, int32 [T, B, A]; T if the rollout ends before.

    It is the next state in which the member does not wait.
    """
    time, end = jnp.arange(len(waiting))[:, None, None], len(waiting)
    free = jax.lax.cummin(jnp.where(waiting, end, time), axis=0, reverse=True)
    return jnp.concatenate([free[1:], jnp.full_like(free[:1], end)])


EXTRINSIC = RewardSignal(reward=reward, of_rollout=True, shared=True, replayed=lambda _, found: found.reward)


def make_extrinsic(_spec: Any, _settings: Any) -> RewardSignal:
    """Return `EXTRINSIC`, which is the same for every behavior."""
    return EXTRINSIC
