"""What states hold of their members, side by side in one float32 array.

Every array costs a jitted call some 3 microseconds on its way in and out, and a kernel when it is written; a decision
of a few agents takes not much longer than that. Whole numbers below 2 ** 24 keep their value.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.types import Action, BehaviorSpec

OUTCOME = 3
"""Columns of `Cells.outcome`, the last ones."""


class Cells(NamedTuple):
    """The parts, unpacked. Leading axes `...` are T, B, A or fewer of them."""

    obs: tuple[Any, ...]  # float32 [..., *shape]
    action_mask: Any  # bool [..., M]
    action: Action  # float32 [..., C], int32 [..., D]
    log_prob: Any  # float32 [..., C + D]
    present: Any  # bool [...], the member is part of the state
    acted: Any  # bool [...]
    outcome: Any  # float32 [..., 3]: reward, group reward, Ending of the decision; zeros until they arrive


def width(spec: BehaviorSpec) -> int:
    """K, the number of columns."""
    numbers = sum(math.prod(sensor.shape) for sensor in spec.observations)
    return numbers + spec.action.mask_size + 2 * spec.action.columns + 2 + OUTCOME


def pack(cells: Cells) -> jax.Array:
    """float32 [..., K]."""
    lead = jnp.shape(cells.present)
    parts = [jnp.reshape(x, (*lead, math.prod(jnp.shape(x)[len(lead) :]))) for x in jax.tree.leaves(cells)]
    return jnp.concatenate([jnp.asarray(x, jnp.float32) for x in parts], axis=-1)


def unpack(packed: jax.Array, spec: BehaviorSpec) -> Cells:
    """The inverse of `pack`, bit for bit; columns that are not read cost nothing inside jit."""
    begin = 0

    def read(*shape: int) -> jax.Array:
        nonlocal begin
        end = begin + math.prod(shape)
        columns = packed[..., begin:end].reshape(*packed.shape[:-1], *shape)
        begin = end
        return columns

    action = spec.action
    return Cells(
        obs=tuple(read(*sensor.shape) for sensor in spec.observations),
        action_mask=read(action.mask_size) != 0,
        action=Action(
            continuous=read(action.continuous_size), discrete=read(len(action.discrete_branches)).astype(jnp.int32)
        ),
        log_prob=read(action.columns),
        present=read() != 0,
        acted=read() != 0,
        outcome=read(OUTCOME),
    )
