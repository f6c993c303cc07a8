"""What agents of a probe see: sensors of every kind, each of which shows one digit and nothing else that matters.

A digit is a whole number 0 .. `values` - 1, drawn evenly. Whoever cannot read the sensor can only guess it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.types import DimensionProperty, ObservationSpec, ObservationType

_EVEN = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE


class Sensor(NamedTuple):
    """A sensor and how it shows a digit."""

    spec: ObservationSpec
    values: int  # digits that it can show
    show: Callable[[Array, Array], Array]  # (key, digit int32 []) → one observation [*shape]; the key is consumed

    @property
    def is_goal(self) -> bool:
        """Whether it is a goal signal."""
        return self.spec.observation_type == ObservationType.GOAL_SIGNAL


def vector(name: str, values: int = 2, *, goal: bool = False) -> Sensor:
    """The digit as a one-hot vector."""
    kind = ObservationType.GOAL_SIGNAL if goal else ObservationType.DEFAULT
    spec = ObservationSpec(name, (values,), (DimensionProperty.NONE,), kind)
    return Sensor(spec, values, lambda key, digit: jax.nn.one_hot(digit, values, dtype=jnp.float32))


def image(
    name: str,
    shape: tuple[int, int, int],
    *,
    by: Literal["place", "channel"] = "place",
    dtype: Literal["uint8", "float32"] = "uint8",
) -> Sensor:
    """An image or grid [C, H, W], of bytes or of numbers 0 to 1.

    by "place": one of its four quarters is bright in all channels, the rest dim and uneven; 4 values.
    by "channel": one cell anywhere is lit, in one channel; C values.
    """
    spec = ObservationSpec(name, shape, (DimensionProperty.NONE, _EVEN, _EVEN), dtype=dtype)

    def show(key: Array, digit: Array) -> Array:
        bright = _quarter(key, digit, shape) if by == "place" else _cell(key, digit, shape)
        return jnp.round(255.0 * bright).astype(jnp.uint8) if dtype == "uint8" else bright.astype(jnp.float32)

    return Sensor(spec, 4 if by == "place" else shape[0], show)


def _quarter(key: Array, digit: Array, shape: tuple[int, int, int]) -> Array:
    _, height, width = shape
    lower = (np.arange(height) >= height / 2)[:, None]
    right = (np.arange(width) >= width / 2)[None]
    lit = (2 * lower + right) == digit
    noise = jax.random.uniform(key, shape)
    return jnp.where(lit, 0.6 + 0.4 * noise, 0.3 * noise)


def _cell(key: Array, digit: Array, shape: tuple[int, int, int]) -> Array:
    channels, height, width = shape
    at = jax.random.randint(key, (), 0, height * width)
    place = (jnp.arange(height * width) == at).reshape(height, width)
    return ((jnp.arange(channels) == digit)[:, None, None] & place).astype(jnp.float32)


def entities(name: str, capacity: int = 3, colours: int = 2) -> Sensor:
    """A variable number of entities, [capacity, colours + 1]: a one-hot colour, of which the last is grey.

    Digit 0: there is none at all. Digit d: 1 to `capacity`, one of colour d - 1, all others grey. They begin at any row
    and go round; rows without entity are zeros. Values: 1 + colours.
    """
    properties = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)

    def show(key: Array, digit: Array) -> Array:
        count_key, turn_key = jax.random.split(key)
        index = jnp.arange(capacity)
        count = jnp.where(digit == 0, 0, jax.random.randint(count_key, (), 1, capacity + 1))
        rows = jax.nn.one_hot(jnp.where(index == 0, digit - 1, colours), colours + 1)
        turn = jax.random.randint(turn_key, (), 0, capacity)
        return jnp.where((index < count)[:, None], rows, 0.0)[(index + turn) % capacity]

    return Sensor(ObservationSpec(name, (capacity, colours + 1), properties), 1 + colours, show)
