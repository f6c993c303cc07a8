"""On-device trajectory buffer: rows of team states, appended in one call with acting and taken all together.

Its pure functions are `init`, `add`, `take` (after flashbax), and `turn` for full pages. A row is a stream of states;
its write index moves only when a member of its team decides, so that teams with different rhythms share one buffer. In
a state members acted, or it is a final observation that an interrupted episode bootstraps from. Rewards arrive with the
next message and are written to the decision that they belong to. The buffer holds raw samples of the policy, not the
actions sent to the environment. At the end of a page the return restarts from the value of its last state, as at
time_horizon.

Functions raise AssertionError for other shapes than documented. Letters: T states of a page, P pages, B rows, A
members.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl.masks import of_slots, where
from jaxrl.rollout.booking.records import Ending, RowsMessage
from jaxrl.rollout.buffer.cells import OUTCOME, Cells, Extras, Layout, Stored, blank, pack, unpack
from jaxrl.rollout.buffer.trajectory_state import CLOCK, NO_DECISION, TrajectoryState, alive, clock_of, rollout_of
from jaxrl.rollout.rollout import Rollout
from jaxrl.types import Action, BehaviorSpec


def init(
    spec: BehaviorSpec, extras: Extras = (), carry: Any = (), *, capacity: int, rows: int, members: int
) -> TrajectoryState:
    """Make an empty buffer for `rows` (B) teams of up to `members` (A), a page of `capacity` (T) states for each.

    `extras` are the shapes of arrays that an algorithm stores with an action, `carry` one member's memory before its
    first decision.
    """
    layout = Layout(spec, tuple(extras))
    idle = jnp.zeros((rows, members), jnp.int32)
    return TrajectoryState(
        stored=blank(layout, carry, (capacity, rows, members)),
        carry=jax.tree.map(lambda x: jnp.zeros((rows, members, *x.shape), x.dtype), carry),
        clock=clock_of(jnp.zeros(rows), idle + NO_DECISION, idle, jnp.arange(rows), jnp.zeros((rows, members))),
        layout=layout,
    )


class Rows(NamedTuple):
    """Data of a message for whole rows, with members of all kinds."""

    final: Any  # bool [B], a final state comes
    new: Any  # bool [B], a new state comes
    earned: Any  # float32 [B, 1], individual rewards that arrived now


def rows_of(*kinds: RowsMessage) -> Rows:
    """Combine the messages of all kinds of members, each [B, A of the kind], to `Rows`."""
    first, *others = (
        Rows(steps.present[0].any(-1), steps.deciding.any(-1), steps.earned.sum(-1, keepdims=True)) for steps in kinds
    )
    for other in others:
        first = Rows(first.final | other.final, first.new | other.new, first.earned + other.earned)
    return first


def begins(steps: RowsMessage) -> Any:
    """Return members whose decision is the first of an episode, bool [B, A]: no earlier one has its outcome now."""
    chex.assert_equal_shape([steps.deciding, steps.ending])
    return steps.deciding & (steps.ending != Ending.CONTINUES)


def memory(state: TrajectoryState, steps: RowsMessage, origin: Any = None) -> Any:
    """Return the members' memory before they decide now, zeros in a new episode. A pytree of [B, A, *].

    `origin`, int32 [B, A]: former slot of a member, row * A + member, or -1; None if no member has moved.
    """
    lead = steps.deciding.shape
    chex.assert_tree_shape_prefix(state.carry, lead)

    def before(x: jax.Array) -> jax.Array:
        own = where(begins(steps), jnp.zeros_like(x), x)
        if origin is None:
            return own
        return where(jnp.asarray(origin) >= 0, of_slots(x, origin), own)

    return jax.tree.map(before, state.carry)


def standing(state: TrajectoryState, deciding: Any, action: Action) -> Action:
    """Return every member's current action: `action` [B, A, ...] if deciding, else that of its pending decision."""
    cells = unpack(_at(state, jnp.maximum(state.open_at, 0)), state.layout)
    return Action(*(where(deciding, now, then) for now, then in zip(action, cells.action, strict=True)))


def add(
    state: TrajectoryState,
    steps: RowsMessage,
    action: Action,
    extras: dict[str, jax.Array],
    carry: Any = (),
    *,
    time_horizon: int,
    origin: Any = None,
    rows: Rows | None = None,
) -> TrajectoryState:
    """Credit the decisions whose reward arrived, then append final states, then new states with their actions.

    Ended members come first, as in the message: a row may get the final state of one team and the first state of the
    next in one call.

    Args:
      state: the buffer, with room for two more states in every row (the caller counts; states beyond are dropped).
      steps: one message, dense over rows.
      action, extras: the policy's actions and extras for every member, [B, A, ...]; stored where `steps.deciding`.
      carry: memory after the decision, a pytree of [B, A, *].
      time_horizon: finished decisions of a segment after which its return restarts from the value.
      origin: former slots of members that moved, as in `memory`.
      rows: `Rows` of the message if members of other kinds share them; None: they do not.

    Raises AssertionError if message, actions or carry have other rows, members or shapes than the buffer, or the extras
    other names.
    """
    capacity, _, members = state.shape
    count = _rows(state)
    chex.assert_shape((steps.deciding, steps.ending, steps.earned), (count, members))
    chex.assert_shape((steps.present, steps.reward), [(2, count, members), (count, members, 2)])
    chex.assert_trees_all_equal_shapes(carry, state.carry)
    final, new, earned = rows_of(steps) if rows is None else rows
    chex.assert_shape((final, new, earned), [(count,), (count,), (count, 1)])
    columns, open_at, age, mates = _credit(state, steps, earned, time_horizon)
    t_new = jnp.where(new, state.size + final, capacity)  # an index beyond the end drops the write
    t = jnp.stack([jnp.where(final, state.size, capacity), t_new])  # [2, B]

    def both(x: Any) -> jax.Array:  # of final and new states; a final one did not act
        return jnp.broadcast_to(x, (2, *jnp.shape(x)))

    nobody = jnp.zeros_like(steps.deciding)
    states = Cells(
        obs=steps.obs,
        carry=jax.tree.map(both, memory(state, steps, origin)),
        action_mask=both(steps.action_mask),
        action=Action(*map(both, action)),
        extras={name: both(x) for name, x in extras.items()},
        begin=jnp.stack([nobody, begins(steps)]),
        present=steps.present,
        acted=jnp.stack([nobody, steps.deciding]),
        outcome=jnp.zeros((2, count, members, OUTCOME)),
    )
    return TrajectoryState(
        stored=jax.tree.map(
            lambda into, x: into.at[t, state.page].set(x, mode="drop"),
            state.stored._replace(columns=columns),
            pack(states, state.layout),
        ),
        carry=jax.tree.map(lambda old, x: where(steps.deciding, x, old), state.carry, carry),
        clock=clock_of(
            state.size + final + new,
            jnp.where(steps.deciding, t_new[:, None], open_at),
            age,
            state.page,
            jnp.where(steps.deciding, 0.0, mates),
        ),
        layout=state.layout,
    )


def _credit(
    state: TrajectoryState, steps: RowsMessage, earned: Any, time_horizon: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Credit the rewards that arrived. Return new columns, open_at, age and mates' rewards."""
    capacity, _, members = state.shape
    arrived = steps.ending != Ending.OPEN
    continues = steps.ending == Ending.CONTINUES
    age = jnp.where(arrived, state.age + 1, state.age)
    cut = continues & (age >= time_horizon)
    told = jnp.where(steps.ending == Ending.DROPPED, Ending.OPEN, steps.ending)
    ending = jnp.where(cut, Ending.CUT, told).astype(jnp.float32)
    # A member that decides at other times than its mates is credited with their rewards while its decision is pending.
    mates = state.mates_reward + (earned - steps.earned)
    outcome = jnp.stack([steps.reward[..., 0], mates, steps.reward[..., 1], ending], axis=-1)
    t = jnp.where(arrived & (state.open_at >= 0), state.open_at, capacity)  # [B, A]
    told_at = t, state.page[:, None], jnp.arange(members), slice(-OUTCOME, None)
    return (
        state.stored.columns.at[told_at].set(outcome, mode="drop"),
        jnp.where(arrived, NO_DECISION, state.open_at),
        jnp.where(arrived & ~(continues & ~cut), 0, age),
        mates,
    )


def take(state: TrajectoryState, *beside: TrajectoryState) -> tuple[Rollout, TrajectoryState]:
    """Take all rows. Return their rollout, and a buffer that continues from the newest state of each, row b in page b.

    `beside`: the buffers of other kinds of members of the same rows.

    The states before bootstrap from the last state of a row whose team lives. It is not trained on now; it becomes
    state 0 of the new buffer, with the pending decisions, so that none is lost.
    """
    rows, living = _rows(state), alive(state, *beside)
    first = pack(_current(state, living), state.layout)
    stored = jax.tree.map(lambda into, x: into.at[0, :rows].set(x), state.stored, first)
    clock = _turned(state, living, jnp.arange(rows))
    taken = rollout_of(state, beside=beside)
    return taken, dataclasses.replace(state, stored=stored, clock=clock)


def turn(state: TrajectoryState, turning: jax.Array, page: jax.Array, *beside: TrajectoryState) -> TrajectoryState:
    """Continue the rows that turn in a fresh page, like all rows after `take`; their full page stays as it is.

    Args:
      turning: bool [B].
      page: int32 [B], the page after this call; higher than all pages before if the row turns.
      beside: as for `take`.
    """
    capacity, pages, _ = state.shape
    chex.assert_shape((turning, page), (_rows(state),))
    living = alive(state, *beside)
    stored = state.stored
    for t in (capacity - 2, capacity - 1):  # the full page may have room for one state, which is cleared
        unused = jnp.where(turning & (state.size <= t), state.page, pages)
        stored = jax.tree.map(lambda into, t=t, at=unused: into.at[t, at].set(0, mode="drop"), stored)
    first = pack(_current(state, living), state.layout)
    at = jnp.where(turning, page, pages)
    clock = jnp.where(turning[None, :, None], _turned(state, living, page), state.clock)
    stored = jax.tree.map(lambda into, x: into.at[0, at].set(x, mode="drop"), stored, first)
    return dataclasses.replace(state, stored=stored, clock=clock)


def _current(state: TrajectoryState, living: jax.Array) -> Cells:
    """Return the state from which each row continues, [B, A, ...]: its newest, with the pending decisions."""
    waits = state.open_at >= 0
    last = jnp.maximum(state.size - 1, 0)
    newest = unpack(_at(state, last[:, None]), state.layout)
    decided = unpack(_at(state, jnp.where(waits, state.open_at, last[:, None])), state.layout)
    return decided._replace(
        obs=newest.obs, present=newest.present & living[:, None], acted=waits, outcome=jnp.zeros_like(newest.outcome)
    )


def _turned(state: TrajectoryState, living: jax.Array, page: jax.Array) -> jax.Array:
    """Make the clock of rows that hold only `_current` in `page`."""
    waits = state.open_at >= 0
    return clock_of(living, jnp.where(waits, 0, NO_DECISION), jnp.zeros_like(state.age), page, state.mates_reward)


def _rows(state: TrajectoryState) -> int:
    """Return B. Raises AssertionError if clock and carry do not fit the pages."""
    rows, members = state.clock.shape[1], state.shape[2]
    chex.assert_shape(state.clock, (CLOCK, rows, members))
    chex.assert_tree_shape_prefix(state.carry, (rows, members))
    return rows


def _at(state: TrajectoryState, t: jax.Array) -> Stored:
    """Return the cells [B, A, ...] of state t [B, A] or [B, 1] in the page of each row."""
    members = jnp.arange(state.shape[2])
    return jax.tree.map(lambda x: x[t, state.page[:, None], members], state.stored)
