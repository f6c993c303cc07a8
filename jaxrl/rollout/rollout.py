"""Rollouts, from which updates learn: states from a trajectory buffer, or stacked ones, time-major.

Algorithms and rewards depend on `Rollout` and on no buffer. Letters: T time, B rows, A members, M numbers of an action
mask; P pages of a buffer, which become the rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import chex
import jax

from jaxrl.masks import where
from jaxrl.types import Action


class EverySecond(NamedTuple):
    """Mark of a rollout whose states 1, 3, 5, ... hold only last observations. No array: known while it is traced."""


class Rollout(NamedTuple):
    """States from which an update learns. Every array is [T, B, A, ...], time-major; B may be pages."""

    obs: tuple[jax.Array, ...]  # one per sensor, its dtype [T, B, A, *shape]; 0 where the member is absent
    carry: (
        Any  # memory before each state, also where the member does not decide: a pytree of arrays [T, B, A, *]; or ()
    )
    action_mask: jax.Array  # bool [T, B, A, M]
    action: Action  # the last action of each member (persists through states in which it did not act)
    extras: dict[str, jax.Array]  # float32 [T, B, A, *shape], arrays that the algorithm stored when it acted
    begin: jax.Array  # bool, the first decision of an episode
    present: jax.Array  # bool, the member is part of the state
    acted: jax.Array  # bool, decided here and its reward is known: trained on
    waiting: jax.Array  # bool, present, but its decision of an earlier state is still pending
    reward: jax.Array  # float32, individual reward
    mates_reward: jax.Array  # float32, individual rewards of the others in the row while this decision was pending
    group_reward: jax.Array  # float32
    terminated: jax.Array  # bool, nothing follows
    truncated: jax.Array  # bool, interrupted: the next state of the row is its true last observation
    left: jax.Array  # bool, the member ended and its team goes on
    cut: jax.Array  # bool, the segment reached time_horizon
    between: EverySecond | tuple[()] = ()  # states in which no member acts, known by their index


def masked(rollout: Rollout) -> Rollout:
    """Return the rollout with zeros in all masked elements, so that their contents, even NaN, have no effect.

    Through later masks a gradient would still be 0 * NaN. Raises AssertionError unless all arrays have the same axes
    [T, B, A].
    """
    chex.assert_equal_shape_prefix(jax.tree.leaves(rollout), 3)
    present, acted = partial(where, rollout.present, fill=0), partial(where, rollout.acted, fill=0)
    names = ("reward", "mates_reward", "group_reward", "terminated", "truncated", "left", "cut")
    return rollout._replace(
        obs=tuple(map(present, rollout.obs)),
        carry=jax.tree.map(present, rollout.carry),
        action=Action(*map(present, rollout.action)),
        extras={name: acted(x) for name, x in rollout.extras.items()},
        begin=present(rollout.begin),
        **{name: acted(getattr(rollout, name)) for name in names},
    )
