"""Schedules of learning rate, clipping range and entropy weight.

linear: value(step) = (initial - minimum) (1 - min(step, max_steps) / max_steps) + minimum; constant: initial.
The step is the trainer's step at the update. It is traced: a Python number would compile a program per value.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.types import JaxrlError

LEARNING_RATE_MINIMUM = 1e-10
EPSILON_MINIMUM = 0.1
BETA_MINIMUM = 1e-5

Schedule = Callable[[jax.Array], jax.Array]
"""(step, int32 scalar) → value, float32 scalar."""


def linear(initial: float, minimum: float, max_steps: int) -> Schedule:
    """Make the straight line from `initial` at step 0 to `minimum` at `max_steps`, then `minimum`.

    Raises `JaxrlError` unless 0 < max_steps < 2³¹.
    """
    if not 0 < max_steps < 2**31:
        raise JaxrlError(f"max_steps: {max_steps} is out of range, a linear schedule needs 1 to {2**31 - 1}")

    def value(step: jax.Array) -> jax.Array:
        # subtracted as integers: 1 - step / max_steps would lose all digits of a float32 towards the end
        remaining = jnp.maximum(jnp.int32(max_steps) - jnp.asarray(step, jnp.int32), 0)
        fraction = remaining.astype(jnp.float32) / jnp.float32(max_steps)
        return jnp.float32(initial - minimum) * fraction + jnp.float32(minimum)

    return value


def constant(initial: float) -> Schedule:
    """Make the schedule that is `initial` at every step."""
    return lambda step: jnp.full(jnp.shape(step), initial, jnp.float32)


def make_schedule(kind: str, initial: float, minimum: float, max_steps: int) -> Schedule:
    """Make the schedule that settings call `linear` or `constant`; raises `JaxrlError` for any other word."""
    if kind == "linear":
        return linear(initial, minimum, max_steps)
    if kind == "constant":
        return constant(initial)
    raise JaxrlError(f"schedule: '{kind}' is unknown, use linear or constant")
