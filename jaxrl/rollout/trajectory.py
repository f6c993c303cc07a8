"""On-device trajectory buffer: rows of team states, appended in one call with acting and taken all together.

A stateful thing in three pure functions: `init`, `add`, `take` (after flashbax). A row is a stream of states; its write
pointer moves only when a member of its team decides (M1), so that teams with different rhythms share one buffer. A
state either acted, or is a final observation that an interrupted episode bootstraps from (M3). Rewards arrive with the
next message and are written to the decision that they belong to (M7). The buffer keeps raw samples of the policy, not
what was sent to the environment (M20).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl.rollout.cells import OUTCOME, Cells, pack, unpack, width
from jaxrl.rollout.records import Ending, RowSteps
from jaxrl.types import Action, BehaviorSpec

NO_DECISION = -1


@partial(jax.tree_util.register_dataclass, data_fields=("cells", "clock"), meta_fields=("spec",))
@dataclass(frozen=True)
class TrajectoryState:
    """The buffer. Cells at or beyond a row's `size` hold rubbish. Attributes `obs`, `acted` ... unpack its parts."""

    cells: jax.Array  # float32 [T, B, A, K], see `Cells`
    clock: jax.Array  # int32 [3, B, A]: size, open_at, age
    spec: BehaviorSpec

    @property
    def shape(self) -> tuple[int, int, int]:
        """T, B, A."""
        capacity, rows, members, _ = self.cells.shape
        return capacity, rows, members

    @property
    def size(self) -> jax.Array:
        """int32 [B], number of states in the row."""
        return self.clock[0, :, 0]

    @property
    def open_at(self) -> jax.Array:
        """int32 [B, A], index of the decision that waits for its reward, or NO_DECISION."""
        return self.clock[1]

    @property
    def age(self) -> jax.Array:
        """int32 [B, A], finished decisions of the current segment."""
        return self.clock[2]

    def __getattr__(self, name: str) -> Any:
        """[T, B, A, ...], a part of the cells by its name in `Cells`."""
        if name not in Cells._fields:
            raise AttributeError(name)
        return getattr(unpack(self.cells, self.spec), name)

    def replace(self, **parts: Any) -> TrajectoryState:
        """The buffer with other contents: names of `Cells`, size, open_at and age."""
        cells = {name: parts.pop(name) for name in Cells._fields if name in parts}
        clock = {"size": self.size, "open_at": self.open_at, "age": self.age} | parts
        packed = pack(unpack(self.cells, self.spec)._replace(**cells)) if cells else self.cells
        return TrajectoryState(cells=packed, clock=_clock(**clock), spec=self.spec)


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
    return TrajectoryState(
        cells=jnp.zeros((capacity, rows, members, width(spec)), jnp.float32),
        clock=jnp.zeros((3, rows, members), jnp.int32).at[1].set(NO_DECISION),
        spec=spec,
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
    capacity, rows, members = state.shape
    chex.assert_shape(steps.deciding, (rows, members))
    cells, open_at, age = _credit(state, steps, time_horizon)
    final, new = steps.present[0].any(-1), steps.deciding.any(-1)  # [B]
    t_new = jnp.where(new, state.size + final, capacity)  # an index beyond the end drops the write
    t = jnp.stack([jnp.where(final, state.size, capacity), t_new])  # [2, B]

    def both(x: Any) -> jax.Array:  # of final and new states; a final one did not act
        return jnp.broadcast_to(x, (2, *jnp.shape(x)))

    states = Cells(
        obs=steps.obs,
        action_mask=both(steps.action_mask),
        action=Action(*map(both, action)),
        log_prob=both(log_prob),
        present=steps.present,
        acted=jnp.stack([jnp.zeros_like(steps.deciding), steps.deciding]),
        outcome=jnp.zeros((2, rows, members, OUTCOME)),
    )
    return TrajectoryState(
        cells=cells.at[t, jnp.arange(rows)].set(pack(states), mode="drop"),
        clock=_clock(state.size + final + new, jnp.where(steps.deciding, t_new[:, None], open_at), age),
        spec=state.spec,
    )


def _credit(state: TrajectoryState, steps: RowSteps, time_horizon: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Cells, open_at and age after the rewards that arrived."""
    capacity, rows, members = state.shape
    arrived = steps.ending != Ending.OPEN
    continues = steps.ending == Ending.CONTINUES
    age = jnp.where(arrived, state.age + 1, state.age)
    cut = continues & (age >= time_horizon)
    ending = jnp.where(cut, Ending.CUT, steps.ending).astype(jnp.float32)
    outcome = jnp.concatenate([steps.reward, ending[..., None]], axis=-1)
    t = jnp.where(arrived & (state.open_at >= 0), state.open_at, capacity)  # [B, A]
    where = t, jnp.arange(rows)[:, None], jnp.arange(members), slice(-OUTCOME, None)
    return (
        state.cells.at[where].set(outcome, mode="drop"),
        jnp.where(arrived, NO_DECISION, state.open_at),
        jnp.where(arrived & ~(continues & ~cut), 0, age),
    )


def _clock(size: Any, open_at: Any, age: Any) -> jax.Array:
    """int32 [3, B, A]; `size` [B] stands in every member, so that one array holds all three."""
    size = jnp.broadcast_to(jnp.asarray(size)[:, None], jnp.shape(age))
    return jnp.stack([size, jnp.asarray(open_at), jnp.asarray(age)]).astype(jnp.int32)


def take(state: TrajectoryState) -> tuple[Rollout, TrajectoryState]:
    """All rows as they stand, and a buffer that goes on from the current state of each.

    The last state of a row whose team lives is the state that the others bootstrap from. It is not trained on now; it
    becomes state 0 of the new buffer, with the decisions that still wait for their reward, so that none is lost (U10).
    """
    capacity, _, _ = state.shape
    alive = (state.open_at >= 0).any(-1)  # [B]
    time = jnp.arange(capacity)[:, None, None]
    held = time < state.size[None, :, None]  # [T, B, 1]
    cells = unpack(state.cells, state.spec)
    present, chose = cells.present & held, cells.acted & held
    ending = cells.outcome[..., 2]
    acted = chose & (ending != Ending.OPEN)  # so never in the last state of a living team
    source = jax.lax.cummax(jnp.where(chose, time, 0), axis=0)  # index of each member's newest decision
    rollout = Rollout(
        obs=tuple(_where(present, o, 0.0) for o in cells.obs),
        action_mask=cells.action_mask,
        action=Action(*(_where(present, _at(x, source), 0) for x in cells.action)),
        log_prob=_where(acted, cells.log_prob, 0.0),
        present=present,
        acted=acted,
        # A state in which nobody acted is a final one: its members wait for nothing.
        waiting=present & ~chose & chose.any(-1, keepdims=True),
        reward=jnp.where(acted, cells.outcome[..., 0], 0.0),
        group_reward=jnp.where(acted, cells.outcome[..., 1], 0.0),
        terminated=acted & (ending == Ending.TERMINATED),
        truncated=acted & (ending == Ending.TRUNCATED),
        left=acted & (ending == Ending.LEFT),
        cut=acted & (ending == Ending.CUT),
    )
    return rollout, _carry_over(state, alive)


def _carry_over(state: TrajectoryState, alive: jax.Array) -> TrajectoryState:
    waits = state.open_at >= 0
    last = jnp.maximum(state.size - 1, 0)
    newest = unpack(state.cells[last, jnp.arange(len(last))], state.spec)  # [B, A, ...]
    decided = unpack(_at(state.cells, jnp.where(waits, state.open_at, last[:, None])[None])[0], state.spec)
    first = decided._replace(
        obs=newest.obs,
        present=newest.present & alive[:, None],
        acted=waits,
        outcome=jnp.zeros_like(newest.outcome),
    )
    return TrajectoryState(
        cells=state.cells.at[0].set(pack(first)),
        clock=_clock(alive, jnp.where(waits, 0, NO_DECISION), jnp.zeros_like(state.age)),
        spec=state.spec,
    )


def resize(state: TrajectoryState, *, capacity: int, rows: int, members: int) -> TrajectoryState:
    """The same buffer with other room; contents keep their place. No row may hold more than `capacity` states."""
    states, old_rows, old_members = state.shape
    more_rows, more_members = (0, rows - old_rows), (0, members - old_members)
    cells = jnp.pad(state.cells[:capacity], [(0, max(capacity - states, 0)), more_rows, more_members, (0, 0)])
    return TrajectoryState(
        cells=cells,
        clock=_clock(
            jnp.pad(state.size, more_rows),
            jnp.pad(state.open_at, (more_rows, more_members), constant_values=NO_DECISION),
            jnp.pad(state.age, (more_rows, more_members)),
        ),
        spec=state.spec,
    )


def _where(mask: jax.Array, x: jax.Array, fill: float) -> jax.Array:
    """`x` where the mask [T, B, A] holds; `fill` elsewhere, whatever stands there."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, fill)


def _at(x: jax.Array, t: jax.Array) -> jax.Array:
    """`x[t[k, b, a], b, a]` for x [T, B, A, ...] and t [K, B, A]."""
    _, rows, members = x.shape[:3]
    return x[t, jnp.arange(rows)[:, None], jnp.arange(members)]
