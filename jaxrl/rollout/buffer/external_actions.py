"""Decisions with another action than the policy's, and decisions that are not learned from, in the trajectory buffer.

These are separate programs, called before `decide` only for the few messages that need them. Letters: B rows, A
members.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxrl.rollout.buffer.cells import pack, unpack
from jaxrl.rollout.buffer.trajectory_state import NO_DECISION, TrajectoryState
from jaxrl.types import Action

ScoreAction = Callable[[Any, tuple[Any, ...], Any, Any, Action], tuple[Action, dict[str, jax.Array]]]
"""(policy, obs, action_mask, carry, action as the environment has it) → the raw action, and the extras of `act`."""


def replace_actions(
    score_action: ScoreAction, policy: Any, state: TrajectoryState, members: Any, action: Action
) -> tuple[TrajectoryState, Action]:
    """Replace the actions of pending decisions of `members` by `action`, with the extras of the policy for it.

    Args:
      members: bool [B, A]; one without a pending decision stays as it is.
      action: as the environment has it, float32 [B, A, C] and int32 [B, A, D].

    Returns the buffer, and the raw actions [B, A, ...], valid for `members`.

    Raises AssertionError for shapes that do not fit the buffer.
    """
    chex.assert_shape(members, state.open_at.shape)
    chex.assert_tree_shape_prefix(action, state.open_at.shape)
    capacity = state.shape[0]
    page, member = state.page[:, None], jnp.arange(state.shape[2])
    at = jnp.maximum(state.open_at, 0), page, member
    cells = unpack(jax.tree.map(lambda x: x[at], state.stored), state.layout)
    raw, extras = score_action(policy, cells.obs, cells.action_mask, cells.carry, action)
    packed = pack(cells._replace(action=raw, extras=extras), state.layout)
    t = jnp.where(jnp.asarray(members) & (state.open_at >= 0), state.open_at, capacity)  # beyond the end: dropped
    columns = state.stored.columns.at[t, page, member].set(packed.columns, mode="drop")
    return TrajectoryState(state.stored._replace(columns=columns), state.carry, state.clock, state.layout), raw


def leave_out(state: TrajectoryState, members: Any) -> TrajectoryState:
    """Exclude the pending decisions of `members` [B, A] from learning: their outcome will not be written.

    The state and the action stay, since the mates need them. The return of a decision before it restarts from the value
    of the state, as at time_horizon. Call it with the message that brings the outcome, before that is added: until then
    the row needs the pending decision. Raises AssertionError if `members` has other rows than the buffer.
    """
    chex.assert_shape(members, state.open_at.shape)
    open_at = jnp.where(members, NO_DECISION, state.open_at)
    return TrajectoryState(state.stored, state.carry, state.clock.at[1].set(open_at), state.layout)
