"""Converts action spaces of Gymnasium to continuous dimensions and discrete branches, and actions back.

| space | action |
|---|---|
| Discrete(n, start), MultiDiscrete | a branch of n choices each; `start` is added |
| MultiBinary | a branch of 2 for each number |
| Box | a continuous dimension for each number |
| Dict, Tuple | those of the parts, in the order of the space: hybrid actions |

Policies send numbers from -1 to 1. -1 is the lower and 1 the upper bound of a dimension of a Box, with linear values
between them. A Box of integers gets rounded numbers. A Box without a bound on a side is refused, unless `bounded` gives
it one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from jaxrl.envs.foreign.observations import Path, SpaceError, leaves, part_at
from jaxrl.types import ActionSpec

_ENDLESS, _ENDLESS_INTEGER = 1e30, 2.0**31 - 1
"""Size from which a bound counts as none: many spaces write the largest float32 or integer for infinity."""

Pair = tuple[np.ndarray, np.ndarray]
"""Continuous float32 [C] and discrete int32 [D] of one agent."""


class _Part(NamedTuple):
    """Space without parts: its numbers of columns, and both conversions."""

    continuous: int
    branches: tuple[int, ...]
    value: Callable[[np.ndarray, np.ndarray], Any]  # its continuous and discrete columns → element of the space
    columns: Callable[[Any], Pair]  # the inverse


class ActionWriter:
    """Writes actions into one space, and reads back actions that an environment took itself.

    Raises:
        SpaceError: a part of the space is not in the table above; the text names it by its path.
    """

    def __init__(self, space: spaces.Space) -> None:
        self._space = space
        self._parts = {path: _part(part, path) for path, part in leaves(space)}
        self.spec = ActionSpec(
            continuous_size=sum(part.continuous for part in self._parts.values()),
            discrete_branches=tuple(size for part in self._parts.values() for size in part.branches),
        )
        if not self.spec.columns:
            raise SpaceError(f"action space {space} holds nothing to choose")

    def value(self, continuous: np.ndarray, discrete: np.ndarray) -> Any:
        """Return float32 [C] from -1 to 1 and int32 [D] as an element of the space."""
        values, c, d = [], 0, 0
        for part in self._parts.values():
            columns = continuous[c : c + part.continuous], discrete[d : d + len(part.branches)]
            values.append(part.value(*columns))
            c, d = c + part.continuous, d + len(part.branches)
        return _assembled(self._space, iter(values))

    def columns(self, value: Any) -> Pair:
        """Invert `value`: return the columns of an element.

        Raises:
            ValueError, TypeError, LookupError: it is no element of the space.
        """
        pairs = [part.columns(part_at(value, path)) for path, part in self._parts.items()]
        continuous = np.concatenate([pair[0] for pair in pairs]).astype(np.float32)
        discrete = np.concatenate([pair[1] for pair in pairs]).astype(np.int32)
        branches = np.array(self.spec.discrete_branches)
        wrong = ((discrete < 0) | (discrete >= branches)).any() or not np.isfinite(continuous).all()
        if len(continuous) != self.spec.continuous_size or len(discrete) != len(branches) or wrong:
            raise ValueError(f"{value!r} is no element of {self._space}")
        return continuous, discrete


def _part(space: spaces.Space, path: Path) -> _Part:
    if isinstance(space, spaces.Discrete):
        return _choices((int(space.n),), np.array([space.start]), lambda numbers: space.dtype.type(numbers[0]))
    if isinstance(space, spaces.MultiDiscrete):
        shape, start = space.nvec.shape, np.asarray(space.start).ravel()
        sizes = tuple(space.nvec.ravel().tolist())
        return _choices(sizes, start, lambda numbers: numbers.astype(space.dtype).reshape(shape))
    if isinstance(space, spaces.MultiBinary):
        size = prod(space.shape)
        start = np.zeros(size, np.int64)
        return _choices((2,) * size, start, lambda numbers: numbers.astype(space.dtype).reshape(space.shape))
    if isinstance(space, spaces.Box):
        return _numbers(space, path)
    raise SpaceError(
        f"{_place(path)}: {space} is no Box, Discrete, MultiDiscrete, MultiBinary, Dict "
        "or Tuple, which are those that policies can act in; wrap the environment so that it takes one of them"
    )


def _place(path: Path) -> str:
    return f"{'/'.join(map(str, ('action', *path)))} space"


def _choices(branches: tuple[int, ...], start: np.ndarray, shaped: Callable[[np.ndarray], Any]) -> _Part:
    nothing = np.zeros(0, np.float32)
    return _Part(
        continuous=0,
        branches=branches,
        value=lambda _, discrete: shaped(discrete.astype(np.int64) + start),
        columns=lambda value: (nothing, np.asarray(value).reshape(-1).astype(np.int64) - start),
    )


def bounded(space: spaces.Space, scale: float) -> spaces.Space:
    """Return the action space with bounds where its Boxes have none: `scale` away from the other bound, or from 0."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, bounded(part, scale)) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([bounded(part, scale) for part in space.spaces])
    if not isinstance(space, spaces.Box):
        return space
    low, high = (bound.astype(np.float64) for bound in (space.low, space.high))
    below, above = _missing_bounds(space)
    least = np.where(below, np.where(above, 0.0, high) - scale, low)
    most = np.where(above, np.where(below, 0.0, low) + scale, high)
    return spaces.Box(least.astype(space.dtype), most.astype(space.dtype), dtype=space.dtype.type)


def _missing_bounds(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """Return where a Box has no lower and no upper bound, bool [*shape]."""
    endless = _ENDLESS_INTEGER if space.dtype.kind in "iub" else _ENDLESS
    return space.low.astype(np.float64) <= -endless, space.high.astype(np.float64) >= endless


def _numbers(space: spaces.Box, path: Path) -> _Part:
    below, above = _missing_bounds(space)
    if below.any() or above.any():
        raise SpaceError(
            f"{_place(path)}: {space} has no {'lower' if below.any() else 'upper'} bound, so what -1 and 1 of a policy "
            "stand for is not known: give the space finite bounds, or say --env-args action_scale=S: S is the largest "
            "action where there is no bound, from the bound on the other side or from 0"
        )
    low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
    whole = space.dtype.kind in "iub"
    middle, half = (high + low) / 2, (high - low) / 2

    def value(continuous: np.ndarray, _: np.ndarray) -> np.ndarray:
        numbers = np.clip(continuous.astype(np.float64) * half + middle, low, high)
        return (np.rint(numbers) if whole else numbers).astype(space.dtype).reshape(space.shape)

    def columns(given: Any) -> Pair:
        numbers = np.asarray(given, np.float64).reshape(-1)
        scale = np.where(half > 0, half, 1.0)  # a dimension with equal bounds has no choice
        return ((numbers - middle) / scale).astype(np.float32), np.zeros(0, np.int64)

    return _Part(continuous=len(low), branches=(), value=value, columns=columns)


def _assembled(space: spaces.Space, values: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _assembled(part, values) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_assembled(part, values) for part in space.spaces)
    return next(values)
