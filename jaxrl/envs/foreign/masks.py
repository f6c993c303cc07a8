"""Finds masks of discrete actions in foreign environments, and converts them to bool [M].

A mask is 1 where a choice is allowed and 0 where it is forbidden, in one of these forms:

| action space | mask |
|---|---|
| Discrete(n) | n numbers |
| MultiDiscrete | a tuple or list of an array for each branch, all numbers in one array, or [branches, n] |
| MultiBinary | as MultiDiscrete, two numbers for each entry |
| Box | nothing |
| Dict, Tuple | a mask for each part, in the form of the space; or all numbers of the parts in one array |

It stands in the observation, in a Dict under the key `action_mask` at any depth, or in the infos.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.envs.foreign.observations import MASK, Path, SpaceError


class MaskError(ValueError):
    """A mask does not fit the discrete actions."""


def find_mask(observation: spaces.Space, action: spaces.Space) -> Path | None:
    """Return the path of the actions' mask in an observation; None: there is none.

    Raises:
        SpaceError: there are several masks, or one that does not fit the actions.
    """
    places = dict(_masks(observation))
    if not places:
        return None
    names = ["/".join(map(str, path)) for path in places]
    if len(places) > 1:
        raise SpaceError(f"observation space: {' and '.join(names)} are masks, expected one for the whole action space")
    ((path, space),) = places.items()
    try:
        read_mask(action, _zeros(space))
    except MaskError as error:
        raise SpaceError(
            f"observation space {names[0]!r}: {space} is no mask of the action space {action}: {error}. Give it that "
            "form, or another key if it is no mask"
        ) from error
    return path


def read_mask(action: spaces.Space, mask: Any) -> np.ndarray:
    """Return a mask in one of the forms above as bool [M]. Raises MaskError."""
    branches, parts = list(_branches(action)), []
    open_branches = branches.copy()
    for where, part in _arrays(action, mask, MASK):
        sizes = [open_branches.pop(0)] if open_branches else []
        while sum(sizes) < part.size and open_branches:
            sizes.append(open_branches.pop(0))
        parts.append(_allowed(part, sizes or branches, where))
    if open_branches:
        raise MaskError(_miscounted(MASK, sum(map(len, parts)), branches))
    return np.concatenate([*parts, np.zeros(0, bool)])


def closed_branches(branches: tuple[int, ...], mask: np.ndarray) -> list[int]:
    """Return the numbers of branches in which a mask [M] forbids every choice."""
    if not branches:
        return []
    starts = np.cumsum((0, *branches[:-1]))
    return np.flatnonzero(~np.logical_or.reduceat(mask, starts)).tolist()


def _masks(space: spaces.Space, path: Path = ()) -> Iterator[tuple[Path, spaces.Space]]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            if key == MASK:
                yield (*path, key), part
            else:
                yield from _masks(part, (*path, key))


def _zeros(space: spaces.Space) -> Any:
    """Return an element of zeros, which the space may not contain."""
    if isinstance(space, spaces.Dict):
        return {key: _zeros(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_zeros, space.spaces))
    return np.zeros(space.shape or ())


def _branches(space: spaces.Space) -> Iterator[int]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            yield from _branches(part)
    elif isinstance(space, spaces.Discrete):
        yield int(space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        yield from space.nvec.ravel().tolist()
    elif isinstance(space, spaces.MultiBinary):
        yield from [2] * prod(space.shape)


def _arrays(action: spaces.Space | None, mask: Any, where: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield arrays of a mask in the order of the action space, each with the name of its place."""
    if isinstance(mask, Mapping):
        parts = action.spaces if isinstance(action, spaces.Dict) else {}
        discrete = {key for key, part in parts.items() if any(_branches(part))}
        if not discrete <= mask.keys() <= parts.keys():
            raise MaskError(f"{where}: got the parts {[*mask]}, expected those of the action space, {[*parts]}")
        for key, part in parts.items():
            yield from _arrays(part, mask.get(key), f"{where}/{key}")
    elif isinstance(mask, tuple | list) and not all(isinstance(part, int | np.generic) for part in mask):
        parts = action.spaces if isinstance(action, spaces.Tuple) and len(action.spaces) == len(mask) else ()
        for number, (part, of_part) in enumerate(zip_longest(parts, mask)):
            yield from _arrays(part, of_part, f"{where}/{number}")
    elif mask is not None:
        yield where, np.asarray(mask)


def _allowed(mask: np.ndarray, branches: list[int], where: str) -> np.ndarray:
    """Return one array for all of these branches as bool [sum of them]."""
    if mask.size != sum(branches):
        raise MaskError(_miscounted(where, mask.size, branches))
    rows = len(set(branches)) == 1 and mask.shape == (len(branches), branches[0])
    if max(mask.shape, default=1) < mask.size and not rows:
        raise MaskError(f"{where}: got shape {mask.shape}, expected one axis: all choices, branch by branch")
    if not np.isin(mask, (0, 1)).all():
        raise MaskError(f"{where}: got {mask.ravel().tolist()}, expected 1 where allowed and 0 where forbidden")
    return mask.astype(bool).reshape(-1)


def _miscounted(where: str, count: int, branches: list[int]) -> str:
    joint = (
        ". Combinations of choices cannot be forbidden: make them one Discrete"
        if branches and count == prod(branches)
        else ""
    )
    return f"{where}: got {count} entries, expected {sum(branches)}, one for each choice of the discrete actions{joint}"
