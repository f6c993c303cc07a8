"""Environment parameters that are drawn anew for each episode of each area: samplers as traced numbers.

A `Distribution` says in arrays alone what is drawn, its kind included, so that another sampler for the same parameter,
such as that of the next lesson, is the same program.

What is drawn depends on the area's key and clock, as everything in `interface.py`, and on the sampler's `seed`. So
areas and the seeds of a run draw differently, and a run that is begun again draws the same. Another `seed` draws other
values; two parameters with the same one are drawn from the same random bits, as from two equal generators in Unity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.types import ParameterValue, SamplerSpec

CONSTANT, GAUSSIAN, UNIFORM = 0, 1, 2
"""Kinds of a `Distribution`; UNIFORM is over one interval or the union of several."""
_PARAMETERS = 0x70617261
"""Number folded into an episode's key for its parameters, so that its other draws do not change."""


class Distribution(NamedTuple):
    """Distribution of a parameter. Fields have the same leading axes, if any; I intervals, some of them unused."""

    kind: Any  # int32 []
    mean: Any  # float32 [], or the value of a constant
    st_dev: Any  # float32 []
    low: Any  # float32 [I]
    high: Any  # float32 [I]
    up_to: Any  # float32 [I], chance of an interval and all before it; 1 from the last one on
    seed: Any  # int32 []


Value = Array | float | Distribution
"""Value of one parameter: constant, or drawn for each episode."""


def intervals_of(values: Sequence[ParameterValue]) -> int:
    """Return the largest number of intervals of any value, to which the others are padded; 0 where none is drawn."""
    counts = (len(value.values) // 2 for value in values if isinstance(value, SamplerSpec))
    return max(counts, default=0)


def distribution(value: ParameterValue, intervals: int) -> Distribution:
    """Convert a number or a sampler to numpy numbers, padded to `intervals` intervals, at least 1."""
    kind, bell, bounds, seed = CONSTANT, (value, 0.0), np.zeros((0, 2)), 0
    if isinstance(value, SamplerSpec):
        seed = value.seed
        if value.kind == "gaussian":
            kind, bell = GAUSSIAN, value.values
        else:
            kind, bell, bounds = UNIFORM, (0.0, 0.0), np.array(value.values).reshape(-1, 2)
    low, high, up_to = (np.full(intervals, unused, np.float32) for unused in (0, 0, 1))
    if count := len(bounds):
        low[:count], high[:count] = bounds.T
        length = bounds[:, 1] - bounds[:, 0]
        length = length if length.any() else np.ones(count)  # of single points each is as likely
        up_to[: count - 1] = (np.cumsum(length) / length.sum())[:-1]
    mean, st_dev = np.array(bell, np.float32)
    return Distribution(np.int32(kind), mean, st_dev, low, high, up_to, np.int32(seed))


def of_seeds(values: Sequence[ParameterValue], intervals: int) -> np.ndarray | Distribution:
    """Return one parameter in each of S runs: float32 [S], or a distribution [S] where there are `intervals`."""
    if not intervals:
        return np.array(values, np.float32)
    every = [distribution(value, intervals) for value in values]
    return Distribution(*(np.stack(field) for field in zip(*every, strict=True)))


def of_one(values: Mapping[str, ParameterValue]) -> dict[str, Any]:
    """Convert parameters for a single area: float32 [], or a distribution without leading axes, traced as they are."""
    return {
        name: distribution(value, intervals_of([value])) if isinstance(value, SamplerSpec) else np.float32(value)
        for name, value in values.items()
    }


def of_first_seed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the first seed, in the form of `of_one`, from numbers, arrays [S] and distributions [S]."""
    return {
        name: jax.tree.map(lambda x: x[0], value) if isinstance(value, Distribution) else np.ravel(value)[0]
        for name, value in parameters.items()
    }


def of_episode(parameters: Mapping[str, Any], key: Array) -> dict[str, Any]:
    """Draw the parameters of one episode from its key, which is not consumed. No result is a distribution.

    `parameters` have the form that `of_one` returns.
    """
    return {
        name: draw(jax.tree.map(jnp.asarray, value), jax.random.fold_in(key, _PARAMETERS))
        if isinstance(value, Distribution)
        else value
        for name, value in parameters.items()
    }


def drawn(parameters: Mapping[str, Value], keys: Callable[[], Array]) -> dict[str, Array | float]:
    """Draw a value of each parameter for each of E areas; constants stay. Distributions have the leading axis E.

    `keys` makes the keys [E] of the areas, and is called only if something is drawn: who needs none pays for none.
    """
    values: dict[str, Any] = dict(parameters)
    random = [name for name, value in values.items() if isinstance(value, Distribution)]
    if random:
        of_areas = keys()
        values |= {name: jax.vmap(draw)(values[name], of_areas) for name in random}
    return values


def draw(of: Distribution, key: Array) -> Array:
    """Draw one value, float32 []. An interval is chosen in proportion to its length, then a place in it uniformly."""
    which_key, place_key = jax.random.split(jax.random.fold_in(key, of.seed))
    which = jnp.sum(jax.random.uniform(which_key) >= of.up_to[:-1])
    low, high = of.low[which], of.high[which]
    place = jnp.minimum(low + jax.random.uniform(place_key) * (high - low), high)  # rounding must not pass a bound
    bell = of.mean + of.st_dev * jax.random.normal(place_key)
    return jnp.where(of.kind == CONSTANT, of.mean, jnp.where(of.kind == GAUSSIAN, bell, place))
