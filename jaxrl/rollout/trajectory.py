"""On-device trajectory buffer: rows of team states, appended in one call with acting and taken all together.

A stateful thing in three pure functions: `init`, `add`, `take` (after flashbax). A row is a stream of states; its write
pointer moves only when a member of its team decides (M1), so that teams with different rhythms share one buffer. A
state either acted, or is a final observation that an interrupted episode bootstraps from (M3). Rewards arrive with the
next message and are written to the decision that they belong to (M7). The buffer keeps raw samples of the policy, not
what was sent to the environment (M20).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.rollout.records import Ending, RowSteps
from jaxrl.types import Action, BehaviorSpec

NO_DECISION = -1


class TrajectoryState(struct.PyTreeNode):
    """The buffer. Cells at or beyond a row's `size` hold rubbish, except `present`, `acted` and `outcome`: zeros."""

    obs: tuple[jax.Array, ...]  # float32 [T, B, A, *shape]
    action_mask: jax.Array  # bool [T, B, A, M]
    action: Action  # float32 [T, B, A, C], int32 [T, B, A, D]
    log_prob: jax.Array  # float32 [T, B, A, C + D]
    present: jax.Array  # bool [T, B, A]
    acted: jax.Array  # bool [T, B, A]
    outcome: jax.Array  # float32 [T, B, A, 3]: reward, group reward, Ending of the decision
    size: jax.Array  # int32 [B], number of states in the row
    open_at: jax.Array  # int32 [B, A], index of the decision that waits for its reward, or NO_DECISION
    age: jax.Array  # int32 [B, A], finished decisions of the current segment


class Rollout(NamedTuple):
    """What an update learns from. Every array is [T, B, A, ...], time-major."""

    obs: tuple[jax.Array, ...]  # float32 [T, B, A, *shape]; 0 where the member is absent
    action_mask: jax.Array  # bool [T, B, A, M]
    action: Action  # the last action of each member (persists through states in which it did not act, M11)
    log_prob: jax.Array  # float32 [T, B, A, C + D]
    present: jax.Array  # bool, the member is part of the state
    acted: jax.Array  # bool, decided here and its reward is known: trained on
    waiting: jax.Array  # bool, present, but its decision of an earlier state is still open
    reward: jax.Array  # float32
    group_reward: jax.Array  # float32
    terminated: jax.Array  # bool, nothing follows
    truncated: jax.Array  # bool, interrupted: the next state of the row is its true last observation
    left: jax.Array  # bool, the member ended and its team goes on
    cut: jax.Array  # bool, the segment reached time_horizon


def init(spec: BehaviorSpec, *, capacity: int, rows: int, members: int) -> TrajectoryState:
    """An empty buffer for `rows` (B) teams of up to `members` (A) with `capacity` (T) states each."""
    lead = (capacity, rows, members)
    action = spec.action
    return TrajectoryState(
        obs=tuple(jnp.zeros((*lead, *sensor.shape), jnp.float32) for sensor in spec.observations),
        action_mask=jnp.zeros((*lead, action.mask_size), bool),
        action=Action(
            continuous=jnp.zeros((*lead, action.continuous_size), jnp.float32),
            discrete=jnp.zeros((*lead, len(action.discrete_branches)), jnp.int32),
        ),
        log_prob=jnp.zeros((*lead, action.columns), jnp.float32),
        present=jnp.zeros(lead, bool),
        acted=jnp.zeros(lead, bool),
        outcome=jnp.zeros((*lead, 3), jnp.float32),
        size=jnp.zeros((rows,), jnp.int32),
        open_at=jnp.full((rows, members), NO_DECISION, jnp.int32),
        age=jnp.zeros((rows, members), jnp.int32),
    )


def add(
    state: TrajectoryState, steps: RowSteps, action: Action, log_prob: jax.Array, *, time_horizon: int
) -> TrajectoryState:
    """Credit the decisions whose reward arrived, then append final states, then new states with their actions.

    Ended members come first, as in the message (M6): a row may get the final state of one team and the first state of
    the next in one call.

    Args:
      state: the buffer, capacity for two more states in every row (the caller counts; beyond it states are dropped).
      steps: one message, dense over rows.
      action, log_prob: what the policy chose for every member, [B, A, ...]; kept where `steps.deciding`.
      time_horizon: finished decisions of a segment after which its return restarts from the value.
    """
    capacity, rows, members = state.present.shape
    chex.assert_shape(steps.deciding, (rows, members))
    row = jnp.arange(rows)
    state = _credit(state, steps, time_horizon)

    final, new = steps.present[0].any(-1), steps.deciding.any(-1)  # [B]
    t_new = jnp.where(new, state.size + final, capacity)  # an index beyond the end drops the write
    t = jnp.stack([jnp.where(final, state.size, capacity), t_new])  # [2, B]

    def write(buffer: Any, value: Any) -> jax.Array:
        return buffer.at[t_new, row].set(value, mode="drop")

    return state.replace(
        obs=tuple(o.at[t, row].set(x, mode="drop") for o, x in zip(state.obs, steps.obs, strict=True)),
        action_mask=write(state.action_mask, steps.action_mask),
        action=Action(
            continuous=write(state.action.continuous, action.continuous),
            discrete=write(state.action.discrete, action.discrete),
        ),
        log_prob=write(state.log_prob, log_prob),
        present=state.present.at[t, row].set(steps.present, mode="drop"),
        acted=write(state.acted, steps.deciding),
        size=state.size + final + new,
        open_at=jnp.where(steps.deciding, t_new[:, None], state.open_at),
    )


def _credit(state: TrajectoryState, steps: RowSteps, time_horizon: int) -> TrajectoryState:
    capacity, rows, members = state.present.shape
    arrived = steps.ending != Ending.OPEN
    continues = steps.ending == Ending.CONTINUES
    age = jnp.where(arrived, state.age + 1, state.age)
    cut = continues & (age >= time_horizon)
    ending = jnp.where(cut, Ending.CUT, steps.ending).astype(jnp.float32)
    outcome = jnp.concatenate([steps.reward, ending[..., None]], axis=-1)
    t = jnp.where(arrived & (state.open_at >= 0), state.open_at, capacity)  # [B, A]
    return state.replace(
        outcome=state.outcome.at[t, jnp.arange(rows)[:, None], jnp.arange(members)].set(outcome, mode="drop"),
        open_at=jnp.where(arrived, NO_DECISION, state.open_at),
        age=jnp.where(arrived & ~(continues & ~cut), 0, age),
    )


def take(state: TrajectoryState) -> tuple[Rollout, TrajectoryState]:
    """All rows as they stand, and a buffer that goes on from the current state of each.

    The last state of a row whose team lives is the state that the others bootstrap from. It is not trained on now; it
    becomes state 0 of the new buffer, with the decisions that still wait for their reward, so that none is lost (U10).
    """
    capacity, rows, _ = state.present.shape
    row = jnp.arange(rows)
    alive = (state.open_at >= 0).any(-1)  # [B]
    last = jnp.maximum(state.size - 1, 0)
    time = jnp.arange(capacity)[:, None, None]
    ending = state.outcome[..., 2]
    acted = state.acted & (ending != Ending.OPEN)  # so never in the last state of a living team
    source = jax.lax.cummax(jnp.where(state.acted, time, 0), axis=0)  # index of each member's newest decision
    rollout = Rollout(
        obs=tuple(_where(state.present, o, 0.0) for o in state.obs),
        action_mask=state.action_mask,
        action=Action(*(_where(state.present, _at(x, source), 0) for x in state.action)),
        log_prob=_where(acted, state.log_prob, 0.0),
        present=state.present,
        acted=acted,
        # A state in which nobody acted is a final one: its members wait for nothing.
        waiting=state.present & ~state.acted & state.acted.any(-1, keepdims=True),
        reward=jnp.where(acted, state.outcome[..., 0], 0.0),
        group_reward=jnp.where(acted, state.outcome[..., 1], 0.0),
        terminated=acted & (ending == Ending.TERMINATED),
        truncated=acted & (ending == Ending.TRUNCATED),
        left=acted & (ending == Ending.LEFT),
        cut=acted & (ending == Ending.CUT),
    )
    return rollout, _carry_over(state, row, last, alive)


def _carry_over(state: TrajectoryState, row: jax.Array, last: jax.Array, alive: jax.Array) -> TrajectoryState:
    waits = state.open_at >= 0
    decision = jnp.where(waits, state.open_at, last[:, None])[None]  # [1, B, A]

    def first(buffer: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.zeros_like(buffer).at[0].set(value)

    def keep(buffer: jax.Array, value: jax.Array) -> jax.Array:
        return buffer.at[0].set(value)

    return state.replace(
        obs=tuple(keep(o, o[last, row]) for o in state.obs),
        action_mask=keep(state.action_mask, _at(state.action_mask, decision)[0]),
        action=Action(*(keep(x, _at(x, decision)[0]) for x in state.action)),
        log_prob=keep(state.log_prob, _at(state.log_prob, decision)[0]),
        present=first(state.present, state.present[last, row] & alive[:, None]),
        acted=first(state.acted, waits),
        outcome=jnp.zeros_like(state.outcome),
        size=alive.astype(jnp.int32),
        open_at=jnp.where(waits, 0, NO_DECISION).astype(jnp.int32),  # not weakly typed, which would compile again
        age=jnp.zeros_like(state.age),
    )


def resize(state: TrajectoryState, *, capacity: int, rows: int, members: int) -> TrajectoryState:
    """The same buffer with other room; contents keep their place. No row may hold more than `capacity` states."""

    def pad(x: jax.Array, lead: int, fill: int = 0) -> jax.Array:
        widths = [(0, 0)] * x.ndim
        widths[lead] = (0, rows - x.shape[lead])
        if x.ndim > lead + 1:
            widths[lead + 1] = (0, members - x.shape[lead + 1])
        return jnp.pad(x, widths, constant_values=fill)

    def room(x: jax.Array) -> jax.Array:  # [T, B, A, ...]
        x = pad(x, 1)[:capacity]
        return jnp.pad(x, [(0, capacity - x.shape[0])] + [(0, 0)] * (x.ndim - 1))

    resized = jax.tree.map(lambda x: room(x) if x.ndim > 2 else x, state)
    return resized.replace(size=pad(state.size, 0), open_at=pad(state.open_at, 0, NO_DECISION), age=pad(state.age, 0))


def _where(mask: jax.Array, x: jax.Array, fill: float) -> jax.Array:
    """`x` where the mask [T, B, A] holds; `fill` elsewhere, whatever stands there."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, fill)


def _at(x: jax.Array, t: jax.Array) -> jax.Array:
    """`x[t[k, b, a], b, a]` for x [T, B, A, ...] and t [K, B, A]."""
    _, rows, members = x.shape[:3]
    return x[t, jnp.arange(rows)[:, None], jnp.arange(members)]
