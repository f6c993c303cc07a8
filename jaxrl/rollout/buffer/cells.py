"""Cells of a buffer, one state of one member each, and their form in memory.

Small float columns are side by side in one float32 array: every array costs a jitted call some 3 microseconds on its
way in and out, and a kernel when it is written, and a decision of a few agents takes not much longer than that.
Integers below 2 ** 24 keep their value there. All others, images above all, have their own array and dtype. `pack` and
`unpack` raise AssertionError for shapes or names other than those of the layout.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl.types import Action, BehaviorSpec, ObservationSpec

OUTCOME = 4
"""Columns of `Cells.outcome`, the last ones."""

Extras = tuple[tuple[str, tuple[int, ...]], ...]
"""Arrays that an algorithm stores with each action: names and shapes per member, such as (("log_prob", (3,)),)."""


class Layout(NamedTuple):
    """Contents of the cells of a buffer; static and hashable."""

    spec: BehaviorSpec
    extras: Extras


class Cells(NamedTuple):
    """Unpacked cells. Leading axes `...` are T, P, A or fewer of them."""

    obs: tuple[Any, ...]  # one per sensor, its dtype [..., *shape]
    carry: Any  # memory before the decision, a pytree of arrays [..., *]; () without memory
    action_mask: Any  # bool [..., M]
    action: Action  # float32 [..., C], int32 [..., D]
    extras: dict[str, Any]  # float32 [..., *shape]
    begin: Any  # bool [...], the first decision of an episode
    present: Any  # bool [...], the member is part of the state
    acted: Any  # bool [...]
    outcome: Any  # float32 [..., 4]: own, mates' and group reward, Ending of the decision; zeros until they arrive


class Stored(NamedTuple):
    """Cells as they are in memory."""

    columns: Any  # float32 [..., K]
    sensors: tuple[Any, ...]  # observations that are no columns: their dtype [..., *shape], None for others
    carry: Any


def is_column(sensor: ObservationSpec) -> bool:
    """Return whether observations of this sensor are among the columns: float32 vectors."""
    return len(sensor.shape) == 1 and sensor.dtype == "float32"


def blank(layout: Layout, carry: Any, lead: tuple[int, ...]) -> Stored:
    """Make zeros with leading axes `lead`; `carry` is a pytree of arrays [*], one member's memory."""
    sensors = layout.spec.observations
    return Stored(
        columns=jnp.zeros((*lead, width(layout)), jnp.float32),
        sensors=tuple(None if is_column(s) else jnp.zeros((*lead, *s.shape), s.dtype) for s in sensors),
        carry=jax.tree.map(lambda x: jnp.zeros((*lead, *x.shape), x.dtype), carry),
    )


def width(layout: Layout) -> int:
    """Return K, the number of columns."""
    spec, action = layout.spec, layout.spec.action
    numbers = sum(sensor.shape[0] for sensor in spec.observations if is_column(sensor))
    beside = sum(math.prod(shape) for _, shape in layout.extras)
    return numbers + action.mask_size + action.columns + beside + 3 + OUTCOME


def pack(cells: Cells, layout: Layout) -> Stored:
    """Convert cells with leading axes `...` to their form in memory."""
    lead, action = jnp.shape(cells.present), layout.spec.action
    pairs = list(zip(layout.spec.observations, cells.obs, strict=True))
    chex.assert_equal(set(cells.extras), {name for name, _ in layout.extras})
    extras = [cells.extras[name] for name, _ in layout.extras]
    flags = (cells.begin, cells.present, cells.acted)
    chex.assert_shape(flags, lead)
    chex.assert_shape(cells.obs, [(*lead, *sensor.shape) for sensor in layout.spec.observations])
    chex.assert_shape(extras, [(*lead, *shape) for _, shape in layout.extras])
    sizes = (action.mask_size, action.continuous_size, len(action.discrete_branches), OUTCOME)
    chex.assert_shape((cells.action_mask, *cells.action, cells.outcome), [(*lead, size) for size in sizes])
    chex.assert_tree_shape_prefix(cells.carry, lead)
    parts = [*(o for s, o in pairs if is_column(s)), cells.action_mask, *cells.action, *extras, *flags, cells.outcome]
    columns = [jnp.reshape(x, (*lead, math.prod(jnp.shape(x)[len(lead) :]))) for x in parts]
    return Stored(
        columns=jnp.concatenate([jnp.asarray(x, jnp.float32) for x in columns], axis=-1),
        sensors=tuple(None if is_column(s) else jnp.asarray(o, s.dtype) for s, o in pairs),
        carry=cells.carry,
    )


def unpack(stored: Stored, layout: Layout) -> Cells:
    """Undo `pack`, bit for bit; columns that are not read cost nothing inside jit."""
    columns, action = stored.columns, layout.spec.action
    chex.assert_axis_dimension(columns, -1, width(layout))
    chex.assert_tree_shape_prefix((stored.sensors, stored.carry), columns.shape[:-1])
    begin = 0

    def read(*shape: int) -> jax.Array:
        nonlocal begin
        end = begin + math.prod(shape)
        part = columns[..., begin:end].reshape(*columns.shape[:-1], *shape)
        begin = end
        return part

    return Cells(
        obs=tuple(
            read(*sensor.shape) if array is None else array
            for sensor, array in zip(layout.spec.observations, stored.sensors, strict=True)
        ),
        carry=stored.carry,
        action_mask=read(action.mask_size) != 0,
        action=Action(
            continuous=read(action.continuous_size), discrete=read(len(action.discrete_branches)).astype(jnp.int32)
        ),
        extras={name: read(*shape) for name, shape in layout.extras},
        begin=read() != 0,
        present=read() != 0,
        acted=read() != 0,
        outcome=read(OUTCOME),
    )
