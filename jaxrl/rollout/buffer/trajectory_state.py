"""State of a trajectory buffer: pages of cells, the agents' memory, and a clock for each row and member.

Pages have T states. Every row begins with one; a row that fills it continues in another (`trajectory.turn`), so that a
team that is faster than the others, or the few that are left of many, has room without longer pages for all. Pages are
numbered in the order in which they were given out.

Letters: T states of a page, P pages, B rows, A members, K columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.rollout.booking.records import Ending
from jaxrl.rollout.buffer.cells import Cells, Layout, Stored, unpack
from jaxrl.rollout.rollout import Rollout, masked
from jaxrl.types import Action

NO_DECISION = -1
CLOCK = 5
"""Numbers of `TrajectoryState.clock` per row and member."""


@partial(jax.tree_util.register_dataclass, data_fields=("stored", "carry", "clock"), meta_fields=("layout",))
@dataclass(frozen=True)
class TrajectoryState:
    """The buffer. Cells at or beyond the size of a row's page are undefined."""

    stored: Stored  # [T, P, A, ...]
    carry: Any  # memory of the agents now, a pytree of arrays [B, A, *]; () without memory
    clock: jax.Array  # int32 [5, B, A]: size, open_at, age, page, mates' reward so far (bits of a float32)
    layout: Layout

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sizes T, P, A."""
        capacity, pages, members, _ = self.stored.columns.shape
        return capacity, pages, members

    @property
    def sizes(self) -> Any:
        """Sizes for which programs are compiled: rows may grow while there are pages for them."""
        return self.shape, self.clock.shape

    @property
    def cells(self) -> Cells:
        """All cells, unpacked: [T, P, A, ...]."""
        return unpack(self.stored, self.layout)

    @property
    def size(self) -> jax.Array:
        """Number of states in the row's page, int32 [B]."""
        return self.clock[0, :, 0]

    @property
    def open_at(self) -> jax.Array:
        """Index of the pending decision in the page, or NO_DECISION, int32 [B, A]."""
        return self.clock[1]

    @property
    def age(self) -> jax.Array:
        """Number of finished decisions of the current segment, int32 [B, A]."""
        return self.clock[2]

    @property
    def page(self) -> jax.Array:
        """Page that the row writes to, int32 [B]."""
        return self.clock[3, :, 0]

    @property
    def mates_reward(self) -> jax.Array:
        """Rewards of the mates since the pending decision was made, float32 [B, A]."""
        return jax.lax.bitcast_convert_type(self.clock[4], jnp.float32)


def clock_of(size: Any, open_at: Any, age: Any, page: Any, mates: Any) -> jax.Array:
    """Make a clock, int32 [5, B, A]; `size` and `page` [B] are repeated for every member to fit in one array."""

    def every(x: Any) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(x)[:, None], jnp.shape(age))

    whole = [jnp.asarray(x).astype(jnp.int32) for x in (every(size), open_at, age, every(page))]
    return jnp.stack([*whole, jax.lax.bitcast_convert_type(jnp.asarray(mates, jnp.float32), jnp.int32)])


def alive(state: TrajectoryState, *beside: TrajectoryState) -> jax.Array:
    """Return the rows with a pending decision, bool [B]; `beside`: buffers of other kinds of members of these rows."""
    waits = (state.open_at >= 0).any(-1)
    for other in beside:
        waits |= (other.open_at >= 0).any(-1)
    return waits


def rollout_of(state: TrajectoryState, size: Any = None, *, beside: Sequence[TrajectoryState] = ()) -> Rollout:
    """Return the contents of the buffer as a rollout, [T, P, A, ...].

    Only the first `size` states, int32 [B] (default: all), of the rows' current pages are included. `beside`: the
    buffers of other kinds of members of the same rows.
    """
    cells = state.cells
    time = jnp.arange(state.shape[0])[:, None, None]
    held = time < _sizes(state, state.size if size is None else size)[None, :, None]  # [T, P, 1]
    present, chose = cells.present & held, cells.acted & held
    decided = chose.any(-1, keepdims=True)  # any member, in this state
    for other in beside:
        decided |= (other.cells.acted & held).any(-1, keepdims=True)
    ending = cells.outcome[..., 3]
    acted = chose & (ending != Ending.OPEN)  # so never in the last state of a living team
    source = jax.lax.cummax(jnp.where(chose, time, 0), axis=0)  # index of each member's newest decision
    pages, members = jnp.arange(state.shape[1])[:, None], jnp.arange(state.shape[2])
    rollout = Rollout(
        obs=cells.obs,
        carry=cells.carry,
        action_mask=cells.action_mask,
        action=Action(*(x[source, pages, members] for x in cells.action)),
        extras=cells.extras,
        begin=chose & cells.begin,
        present=present,
        acted=acted,
        # A state in which no member acted is a final one: its members do not wait.
        waiting=present & ~chose & decided,
        reward=cells.outcome[..., 0],
        mates_reward=cells.outcome[..., 1],
        group_reward=cells.outcome[..., 2],
        terminated=ending == Ending.TERMINATED,
        truncated=ending == Ending.TRUNCATED,
        left=ending == Ending.LEFT,
        cut=ending == Ending.CUT,
    )
    return masked(rollout)


def _sizes(state: TrajectoryState, size: Any) -> jax.Array:
    """Return the number of states of each page, int32 [P]: `size` [B] for the rows' current pages.

    Pages are given out in order: other pages below the newest are full.
    """
    capacity, pages, _ = state.shape
    in_use = jnp.arange(pages) <= state.page.max()
    return jnp.where(in_use, capacity, 0).at[state.page].set(size)
