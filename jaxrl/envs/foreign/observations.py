"""Converts observation spaces of Gymnasium to sensors, and one agent's observation to one array for each.

| space | sensor |
|---|---|
| Box, uint8 from 0 to 255, 2 or 3 axes | an image, uint8 [C, H, W] (one of 2 axes gets C = 1) |
| the same with 4 axes | the images of its first axis as one, their channels one after the other |
| any other Box | float32 [F], flattened |
| Discrete, MultiDiscrete | one-hot, float32 [n], or all of them one after the other |
| MultiBinary | float32 [F], flattened |
| Dict, Tuple | a sensor for each part, named by its path (`hand/left`), a Dict's in the order of the space |

The entry `action_mask` of a Dict is no sensor, unless it is the only one (see `masks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.sensors import IMAGE_PROPERTIES
from jaxrl.types import DimensionProperty, ObservationSpec

MASK = "action_mask"
_WHOLE = "observation"  # the name of the sensor of a space without parts

Path = tuple[Any, ...]
Encode = Callable[[Any], np.ndarray]


class SpaceError(EnvironmentFailure):
    """A space that policies of jaxrl cannot use. The text names it."""


class ObservationError(ValueError):
    """An observation does not fit its space. The reader adds worker, area and agent."""


class _Leaf(NamedTuple):
    path: Path
    spec: ObservationSpec
    encode: Encode


class ObservationReader:
    """Reads the observations of one space. `mask`: path of the actions' mask in it; None: there is none.

    Raises:
        SpaceError: a part of the space is not in the table above; the text names it by its path.
    """

    def __init__(self, space: spaces.Space, mask: Path | None = None) -> None:
        self._mask = mask
        parts = list(leaves(space))
        seen = parts if mask is None else [(path, part) for path, part in parts if path[: len(mask)] != mask]
        self._leaves = tuple(_leaf(part, path) for path, part in seen or parts)
        if not self._leaves:
            raise SpaceError(f"observation space {space} holds nothing that an agent could see")
        self.specs = tuple(leaf.spec for leaf in self._leaves)

    def read(self, observation: Any) -> list[np.ndarray]:
        """Return one new array [*shape] per sensor, of the sensor's dtype; values need not be finite.

        Raises:
            ObservationError: a part is missing or of another shape, or a number is none of its n choices.
        """
        return [self._encoded(leaf, observation) for leaf in self._leaves]

    def mask(self, observation: Any) -> Any:
        """Return the mask in an observation, or None. Raises ObservationError."""
        if self._mask is None:
            return None
        try:
            return part_at(observation, self._mask)
        except (LookupError, TypeError) as error:
            raise ObservationError(f"{MASK}: there is no part {error}") from error

    def _encoded(self, leaf: _Leaf, observation: Any) -> np.ndarray:
        try:
            return leaf.encode(part_at(observation, leaf.path))
        except LookupError as error:
            raise ObservationError(f"sensor {leaf.spec.name!r}: there is no part {error}") from error
        except (ArithmeticError, TypeError, ValueError) as error:
            raise ObservationError(f"sensor {leaf.spec.name!r}: {error}") from error


def leaves(space: spaces.Space, path: Path = ()) -> Iterator[tuple[Path, spaces.Space]]:
    """Yield the spaces without parts in a Dict or Tuple with their paths, in its order; another space itself."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield path, space
        return
    for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
        yield from leaves(part, (*path, key))


def part_at(value: Any, path: Path) -> Any:
    """Return the part of an element of a space at a path. Raises LookupError, TypeError."""
    for key in path:
        value = value[key]
    return value


def _leaf(space: spaces.Space, path: Path) -> _Leaf:
    name = "/".join(map(str, path)) or _WHOLE
    if isinstance(space, spaces.Box) and _is_image(space):
        return _image(space, path, name)
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        size, encode = prod(space.shape), _flat(space.shape)
    elif isinstance(space, spaces.Discrete):
        sizes, starts = np.array([space.n]), np.array([space.start])
        size, encode = int(space.n), _one_hot(sizes, starts)
    elif isinstance(space, spaces.MultiDiscrete):
        size, encode = int(space.nvec.sum()), _one_hot(space.nvec.ravel(), np.asarray(space.start).ravel())
    else:
        raise SpaceError(
            f"observation space {name!r}: {space} is no Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, "
            "which are those that policies can read; wrap the environment so that it gives one of them"
        )
    if not size:
        raise SpaceError(f"observation space {name!r}: {space} has no numbers in it; leave it out of the space")
    return _Leaf(path, ObservationSpec(name, (size,), (DimensionProperty.NONE,)), encode)


def _flat(shape: tuple[int, ...]) -> Encode:
    def encode(value: Any) -> np.ndarray:
        array = np.array(value, np.float32)
        if array.shape != shape:
            raise ValueError(f"got shape {array.shape}, expected {shape}")
        return array.reshape(-1)

    return encode


def _one_hot(sizes: np.ndarray, starts: np.ndarray) -> Encode:
    """Return the one-hot encoder of K numbers from starts[k] to starts[k] + sizes[k] - 1, one after the other."""
    sizes, starts = sizes.astype(np.int64), starts.astype(np.int64)  # uint8 and int64 would mix to floats
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]) - starts
    total = int(sizes.sum())

    def encode(value: Any) -> np.ndarray:
        numbers = np.asarray(value)
        if numbers.dtype.kind not in "iub" or numbers.size != len(sizes):
            raise ValueError(f"got {value!r}, expected {len(sizes)} whole number(s)")
        numbers = numbers.reshape(-1).astype(np.int64)
        if (numbers < starts).any() or (numbers >= starts + sizes).any():
            raise ValueError(f"got {value}, expected from {starts.tolist()} to {(starts + sizes - 1).tolist()}")
        array = np.zeros(total, np.float32)
        array[numbers + offsets] = 1.0
        return array

    return encode


def _is_image(space: spaces.Box) -> bool:
    whole = space.dtype == np.uint8 and len(space.shape) in (2, 3, 4)
    return whole and bool((space.low == 0).all() and (space.high == 255).all())


def _image(space: spaces.Box, path: Path, name: str) -> _Leaf:
    """Return an image's leaf. The smaller of first and last axis of a picture is C, as in stacked gray frames."""
    size = space.shape
    frames, picture = (size[0] if len(size) == 4 else 1), (1, *size)[-3:]
    last = len(size) > 2 and picture[0] >= picture[2]
    channels, *sides = (picture[2], *picture[:2]) if last else picture
    shape = (frames * channels, *sides)

    def encode(value: Any) -> np.ndarray:
        array = np.asarray(value)
        if array.shape != size or array.dtype != np.uint8:
            raise ValueError(f"got shape {array.shape} of {array.dtype}, expected {size} of uint8")
        array = array.reshape(frames, *picture)
        return (array.transpose(0, 3, 1, 2) if last else array).reshape(shape).copy()

    return _Leaf(path, ObservationSpec(name, shape, IMAGE_PROPERTIES, dtype="uint8"), encode)
