"""The transitions (s, a, r, γ, s') of a rollout.

The next state of a member is not the next index of its row: between them are states in which it waits for its reward,
and in environments that truncate every second state holds only last observations. Letters: T time, B rows, A members.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.masks import where
from jaxrl.rollout.rollout import Rollout
from jaxrl.types import Action


class Transitions(NamedTuple):
    """Transition for each member of each state, used if `valid`. Arrays [T, B, A, ...], or [N, ...]."""

    obs: tuple[jax.Array, ...]  # one per sensor, its dtype [..., *shape]
    carry: Any  # memory before the decision, a pytree of arrays [..., *]; () without memory
    begin: jax.Array  # bool, the first decision of an episode: `carry` is zero, and a sequence begins here
    action_mask: jax.Array  # bool [..., M]
    action: Action  # raw sample
    extras: dict[str, jax.Array]  # arrays that the algorithm stored when it acted
    reward: jax.Array  # float32, own and group reward as received, before any strength
    discount: jax.Array  # float32, 0 where the member's episode ends, else 1: multiply by gamma
    next_obs: tuple[jax.Array, ...]  # next observation of the member, also the last if it was interrupted; else 0
    seen: jax.Array  # bool, `next_obs` is known: False for a member that ended for good or left its team
    valid: jax.Array  # bool, decided here and its outcome is known


def transitions(rollout: Rollout) -> Transitions:
    """Make the transitions of every member of every state, [T, B, A, ...].

    The next state of a decision is the first later state of the row in which the member does not wait: that of its next
    decision, or the last of an interrupted episode. For a member that left while its team lives on the episode is over:
    rewards of its team without it are no transitions of its own.
    """
    next_state, over, seen = outcome(rollout)
    _, rows, members = rollout.acted.shape
    there = next_state, jnp.arange(rows)[:, None], jnp.arange(members)
    return Transitions(
        obs=rollout.obs,
        carry=rollout.carry,
        begin=rollout.begin,
        action_mask=rollout.action_mask,
        action=rollout.action,
        extras=rollout.extras,
        reward=rollout.reward + rollout.group_reward,
        discount=jnp.where(over, 0.0, 1.0),
        next_obs=tuple(where(seen, x[there], 0) for x in rollout.obs),
        seen=seen,
        valid=rollout.acted,
    )


def outcome(rollout: Rollout) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Find for each decision [T, B, A] its next state, int32 along T; whether its episode is over; whether it is seen.

    The next state is valid only where it is seen.
    """
    length, rows, members = rollout.acted.shape
    time = jnp.arange(length)[:, None, None]
    free = jax.lax.cummin(jnp.where(rollout.waiting, length - 1, time), axis=0, reverse=True)
    after = jnp.concatenate([free[1:], free[-1:]])
    over = rollout.terminated | rollout.left
    return after, over, rollout.acted & ~over & rollout.present[after, jnp.arange(rows)[:, None], jnp.arange(members)]


def flat(found: Transitions) -> Transitions:
    """Flatten transitions to N = T·B·A single ones, in the order of time."""
    return jax.tree.map(lambda x: x.reshape(math.prod(x.shape[:3]), *x.shape[3:]), found)
