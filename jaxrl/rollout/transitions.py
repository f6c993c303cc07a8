"""What followed each decision: the transitions (s, a, r, γ, s') of a rollout.

The next state of a member is not the next index of its row: states in which it still waits for its reward lie between,
and where an environment truncates every second state is a last observation at most. Letters: T time, B rows, A members.
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
    """One for each member of each state, of which those count that are `valid`. Arrays [T, B, A, ...], or [N, ...]."""

    obs: tuple[jax.Array, ...]  # one per sensor, its dtype [..., *shape]
    carry: Any  # memory before the decision, a pytree of arrays [..., *]; () without memory
    begin: jax.Array  # bool, the first decision of an episode: `carry` is zero, and a sequence begins here
    action_mask: jax.Array  # bool [..., M]
    action: Action  # raw sample
    extras: dict[str, jax.Array]  # what the algorithm noted when it acted
    reward: jax.Array  # float32, own and group reward as they were received, before any strength
    discount: jax.Array  # float32, 0 where nothing of the member's own follows, else 1: multiply by gamma
    next_obs: tuple[jax.Array, ...]  # what the member saw next, also last of all when it was interrupted; else 0
    seen: jax.Array  # bool, `next_obs` is known: of who ended for good or left its team nothing is
    valid: jax.Array  # bool, decided here and its outcome is known


def transitions(rollout: Rollout) -> Transitions:
    """Of every member of every state, [T, B, A, ...].

    What follows a decision is the first later state of the row in which the member does not wait: that of its next
    decision, or the last that it saw of an episode that was cut off. A member that left while its team lives on has
    ended as far as it is concerned: what its team earns without it is no transition of its own.
    """
    after, over, seen = outcome(rollout)
    _, rows, members = rollout.acted.shape
    there = after, jnp.arange(rows)[:, None], jnp.arange(members)
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
    """Of each decision [T, B, A]: its next state, int32 along T; whether nothing follows; whether that state is seen.

    The next state means something only where it is seen.
    """
    length, rows, members = rollout.acted.shape
    time = jnp.arange(length)[:, None, None]
    free = jax.lax.cummin(jnp.where(rollout.waiting, length - 1, time), axis=0, reverse=True)
    after = jnp.concatenate([free[1:], free[-1:]])
    over = rollout.terminated | rollout.left
    return after, over, rollout.acted & ~over & rollout.present[after, jnp.arange(rows)[:, None], jnp.arange(members)]


def flat(found: Transitions) -> Transitions:
    """The same as N = T·B·A single ones, in the order of time."""
    return jax.tree.map(lambda x: x.reshape(math.prod(x.shape[:3]), *x.shape[3:]), found)
