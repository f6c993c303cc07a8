"""Updates that learn from whole episodes alone (`batch_mode: complete_episodes`), on the device.

The running episode of a row, of a whole team if rows hold teams, stays in the buffer at an update, with its old actions
and log-probabilities: its states move to the front of the row's page. When a page is full all of them move to the next
one. No episode is therefore on two pages, and its returns extend to its end. `buffer.running` counts on the host where
the running episodes begin. Letters as in `buffer.trajectory`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxrl.masks import select
from jaxrl.rollout.buffer.cells import Stored
from jaxrl.rollout.buffer.trajectory_state import NO_DECISION, TrajectoryState, rollout_of
from jaxrl.rollout.rollout import Rollout


def take(state: TrajectoryState, begin: Any, *beside: TrajectoryState) -> tuple[Rollout, TrajectoryState]:
    """Take all episodes that have ended. Return them, and a buffer with the running ones, row b in page b.

    `begin` is int32 [B], the index in its page of the first state of each row's running episode, or of the next one.
    `beside`: the buffers of other kinds of members of the same rows. Raises AssertionError for another B of `begin`.
    """
    rows = _check(state, begin)
    stored = jax.tree.map(lambda into, x: into.at[:, :rows].set(x), state.stored, _running(state, begin))
    return rollout_of(state, begin, beside=beside), dataclasses.replace(
        state, stored=stored, clock=_moved(state, begin, jnp.arange(rows))
    )


def turn(state: TrajectoryState, turning: jax.Array, page: jax.Array, begin: Any) -> TrajectoryState:
    """Continue the rows that turn in a fresh page, with all of their running episode; ended episodes stay.

    Args:
      turning: bool [B].
      page: int32 [B], the page after this call; higher than all pages before if the row turns.
      begin: as for `take`.
    """
    rows = _check(state, begin)
    chex.assert_shape((turning, page), (rows,))
    capacity, pages, _ = state.shape
    over = jnp.arange(capacity)[:, None] < jnp.asarray(begin)[None]  # [T, B]
    left, entered = (jnp.where(turning, at, pages) for at in (state.page, page))  # beyond the end: nothing is written

    def move(into: jax.Array, running: jax.Array) -> jax.Array:
        ended = select(over, into[:, state.page], 0)
        return into.at[:, left].set(ended.astype(into.dtype), mode="drop").at[:, entered].set(running, mode="drop")

    clock = jnp.where(turning[None, :, None], _moved(state, begin, page), state.clock)
    stored = jax.tree.map(move, state.stored, _running(state, begin))
    return dataclasses.replace(state, stored=stored, clock=clock)


def _check(state: TrajectoryState, begin: Any) -> int:
    rows = state.clock.shape[1]
    chex.assert_shape(begin, (rows,))
    return rows


def _running(state: TrajectoryState, begin: Any) -> Stored:
    """Return the running episodes as pages [T, B, A, ...] that begin with them; states behind are undefined."""
    capacity = state.shape[0]
    t = jnp.minimum(jnp.arange(capacity)[:, None] + jnp.asarray(begin)[None], capacity - 1)
    return jax.tree.map(lambda x: x[t, state.page], state.stored)


def _moved(state: TrajectoryState, begin: Any, page: jax.Array) -> jax.Array:
    """Return the clock of rows whose page holds only the running episode: size, open_at and page change."""
    back = jnp.asarray(begin, jnp.int32)[:, None]
    open_at = jnp.where(state.open_at >= 0, state.open_at - back, NO_DECISION)
    pages = jnp.broadcast_to(jnp.asarray(page, jnp.int32)[:, None], open_at.shape)
    return state.clock.at[0].add(-back).at[1].set(open_at).at[3].set(pages)
