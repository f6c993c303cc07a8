"""What an update learns from: the states that stand in a trajectory buffer, or that were stacked, time-major.

Algorithms and rewards know `Rollout` and no buffer. Letters: T time, B rows, A members, M numbers of an action
mask; P pages of a buffer, which become the rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.rollout.masks import where
from jaxrl.rollout.records import Ending
from jaxrl.rollout.trajectory_state import TrajectoryState
from jaxrl.types import Action


class EverySecond(NamedTuple):
    """Mark of a rollout whose states 1, 3, 5, ... are last observations at most. No array: known while it is traced."""


class Rollout(NamedTuple):
    """What an update learns from. Every array is [T, B, A, ...], time-major; B stands for pages here."""

    obs: tuple[jax.Array, ...]  # one per sensor, its dtype [T, B, A, *shape]; 0 where the member is absent
    carry: (
        Any  # memory before each state, also where the member does not decide: a pytree of arrays [T, B, A, *]; or ()
    )
    action_mask: jax.Array  # bool [T, B, A, M]
    action: Action  # the last action of each member (persists through states in which it did not act, M11)
    extras: dict[str, jax.Array]  # float32 [T, B, A, *shape], what the algorithm noted when it acted
    begin: jax.Array  # bool, the first decision of an episode
    present: jax.Array  # bool, the member is part of the state
    acted: jax.Array  # bool, decided here and its reward is known: trained on
    waiting: jax.Array  # bool, present, but its decision of an earlier state is still open
    reward: jax.Array  # float32, individual reward
    mates_reward: jax.Array  # float32, individual rewards of the others in the row while this decision was open
    group_reward: jax.Array  # float32
    terminated: jax.Array  # bool, nothing follows
    truncated: jax.Array  # bool, interrupted: the next state of the row is its true last observation
    left: jax.Array  # bool, the member ended and its team goes on
    cut: jax.Array  # bool, the segment reached time_horizon
    between: EverySecond | tuple[()] = ()  # states in which nobody acts, by their place alone


def rollout_of(state: TrajectoryState, size: Any = None) -> Rollout:
    """What stands in the buffer now as something to learn from, [T, P, A, ...].

    Of the pages that rows write to only the first `size` states, int32 [B]; by default all of them.
    """
    cells = state.cells
    time = jnp.arange(state.shape[0])[:, None, None]
    held = time < _sizes(state, state.size if size is None else size)[None, :, None]  # [T, P, 1]
    present, chose = cells.present & held, cells.acted & held
    ending = cells.outcome[..., 3]
    acted = chose & (ending != Ending.OPEN)  # so never in the last state of a living team
    source = jax.lax.cummax(jnp.where(chose, time, 0), axis=0)  # index of each member's newest decision
    pages, members = jnp.arange(state.shape[1])[:, None], jnp.arange(state.shape[2])
    return Rollout(
        obs=tuple(where(present, o, 0) for o in cells.obs),
        carry=jax.tree.map(lambda x: where(held[..., None], x, 0), cells.carry),
        action_mask=cells.action_mask,
        action=Action(*(where(present, x[source, pages, members], 0) for x in cells.action)),
        extras={name: where(acted, x, 0.0) for name, x in cells.extras.items()},
        begin=chose & cells.begin,
        present=present,
        acted=acted,
        # A state in which nobody acted is a final one: its members wait for nothing.
        waiting=present & ~chose & chose.any(-1, keepdims=True),
        reward=jnp.where(acted, cells.outcome[..., 0], 0.0),
        mates_reward=jnp.where(acted, cells.outcome[..., 1], 0.0),
        group_reward=jnp.where(acted, cells.outcome[..., 2], 0.0),
        terminated=acted & (ending == Ending.TERMINATED),
        truncated=acted & (ending == Ending.TRUNCATED),
        left=acted & (ending == Ending.LEFT),
        cut=acted & (ending == Ending.CUT),
    )


def _sizes(state: TrajectoryState, size: Any) -> jax.Array:
    """int32 [P]: states of each page, `size` [B] of those that rows write to.

    Pages are given out in order: one below the newest that no row writes is full.
    """
    capacity, pages, _ = state.shape
    given = jnp.arange(pages) <= state.page.max()
    return jnp.where(given, capacity, 0).at[state.page].set(size)
