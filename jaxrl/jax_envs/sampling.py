"""Environment parameters that are drawn anew for each episode of each area: samplers as traced numbers.

A `Distribution` says in arrays alone what is drawn, its kind included, so that another sampler for the same parameter,
such as that of the next lesson, is the same program.

What is drawn depends on the area's key and clock, as everything in `interface.py`, and on a stream of the parameter's
own. So areas and the seeds of a run draw differently, a run that is begun again draws the same, and a parameter does
not draw otherwise because there is another one. The sampler's `seed` is that stream: another one draws other values,
and parameters with the same one are drawn from the same random bits, as two equal generators in Unity would.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.settings import Sampler
from jaxrl.settings.environment_parameters import (
    ConstantSampler,
    GaussianSampler,
    MultiRangeUniformSampler,
    UniformSampler,
)

CONSTANT, GAUSSIAN, UNIFORM = 0, 1, 2
"""Kinds of a `Distribution`; UNIFORM is over one interval or the union of several."""
_UNSEEDED = 1 << 31
"""Set in streams of samplers without a seed; seeds are below it."""


class Distribution(NamedTuple):
    """What a parameter is drawn from. Any leading axes, the same for all fields; I intervals, of which some are unused."""

    kind: Any  # int32 []
    mean: Any  # float32 [], or the value of a constant
    st_dev: Any  # float32 []
    low: Any  # float32 [I]
    high: Any  # float32 [I]
    up_to: Any  # float32 [I], chance of an interval and all before it; 1 from the last one on
    stream: Any  # uint32 []


Value = Array | float | Distribution
"""Of one parameter: constant, or drawn for each episode."""


def is_drawn(value: Sampler | float) -> bool:
    """Whether episodes differ in it."""
    return isinstance(value, Sampler) and not isinstance(value.sampler_parameters, ConstantSampler)


def intervals_of(value: Sampler | float) -> int:
    """How many intervals the distribution of this value has, at least 1."""
    options = value.sampler_parameters if isinstance(value, Sampler) else None
    return len(options.intervals) if isinstance(options, MultiRangeUniformSampler) else 1


def constant_of(value: Sampler | float) -> float:
    """The number that a value is which is not drawn."""
    return cast(ConstantSampler, value.sampler_parameters).value if isinstance(value, Sampler) else value


def distribution(name: str, value: Sampler | float, intervals: int) -> Distribution:
    """The distribution of parameter `name`, in numpy, with room for `intervals` of them."""
    if not isinstance(value, Sampler) or isinstance(value.sampler_parameters, ConstantSampler):
        return _distribution(CONSTANT, constant_of(value), 0.0, (), intervals, _stream(name, -1))
    options = value.sampler_parameters
    stream = _stream(name, options.seed)
    if isinstance(options, GaussianSampler):
        return _distribution(GAUSSIAN, options.mean, options.st_dev, (), intervals, stream)
    if isinstance(options, UniformSampler):
        bounds: tuple[tuple[float, float], ...] = ((options.min_value, options.max_value),)
    else:
        bounds = cast(MultiRangeUniformSampler, options).intervals
    return _distribution(UNIFORM, 0.0, 0.0, bounds, intervals, stream)


def drawn(parameters: Mapping[str, Value], keys: Callable[[], Array]) -> dict[str, Array | float]:
    """A value of each parameter for each of E areas; constants as they are. Distributions have the leading axis E.

    `keys` makes the keys [E] of the areas, and is called only if something is drawn: who needs none pays for none.
    """
    some = any(isinstance(value, Distribution) for value in parameters.values())
    of_areas = keys() if some else None
    return {
        name: jax.vmap(draw)(value, of_areas) if isinstance(value, Distribution) else value
        for name, value in parameters.items()
    }


def draw(of: Distribution, key: Array) -> Array:
    """One value, float32 []. An interval is chosen in proportion to its length, then a place in it uniformly."""
    which_key, place_key = jax.random.split(jax.random.fold_in(key, of.stream))
    which = jnp.sum(jax.random.uniform(which_key) >= of.up_to[:-1])
    low, high = of.low[which], of.high[which]
    place = jnp.minimum(low + jax.random.uniform(place_key) * (high - low), high)  # rounding must not pass a bound
    bell = of.mean + of.st_dev * jax.random.normal(place_key)
    return jnp.where(of.kind == CONSTANT, of.mean, jnp.where(of.kind == GAUSSIAN, bell, place))


def _distribution(
    kind: int, mean: float, st_dev: float, bounds: tuple[tuple[float, float], ...], intervals: int, stream: int
) -> Distribution:
    low, high, up_to = np.zeros(intervals), np.zeros(intervals), np.ones(intervals)
    if bounds:
        count, pairs = len(bounds), np.array(bounds, float)
        low[:count], high[:count] = pairs.T
        length = high[:count] - low[:count]
        length = length if length.any() else np.ones(count)  # of single points each is as likely
        up_to[: count - 1] = (np.cumsum(length) / length.sum())[:-1]
    numbers = (np.float32(mean), np.float32(st_dev), *(x.astype(np.float32) for x in (low, high, up_to)))
    return Distribution(np.int32(kind), *numbers, np.uint32(stream))


def _stream(name: str, seed: int) -> int:
    return zlib.crc32(name.encode()) | _UNSEEDED if seed == -1 else seed & (_UNSEEDED - 1)
