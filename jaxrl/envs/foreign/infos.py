"""What an environment says beside the numbers: the part of it that is worth sending to another process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

LARGEST = 1024
"""Numbers in an array, or entries in a list; letters in a text."""
DEEPEST = 3
"""Dictionaries in dictionaries."""


def plain(infos: Mapping[Any, Any], deepest: int = DEEPEST) -> dict[str, Any]:
    """The entries of `infos` that are small and plain: numbers, truth values, texts, None, and arrays, lists and
    dictionaries of them. The others are left out; keys become texts. Arrays are copied.
    """
    kept = {}
    for key, value in infos.items():
        known, small = _kept(value, deepest)
        if known:
            kept[str(key)] = small
    return kept


def _kept(value: Any, deepest: int) -> tuple[bool, Any]:
    """Whether it is kept, and as what."""
    if value is None or isinstance(value, bool | int | float):
        return True, value
    if isinstance(value, str):
        return len(value) <= LARGEST, value
    if isinstance(value, np.generic):
        return value.dtype.kind in "biufU", value.item()
    if isinstance(value, np.ndarray):
        small = value.dtype.kind in "biuf" and value.size <= LARGEST
        return small, value.copy() if small else None
    if isinstance(value, list | tuple) and len(value) <= LARGEST:
        parts = [_kept(part, 0) for part in value]
        return all(known for known, _ in parts), [part for _, part in parts]
    if isinstance(value, Mapping) and deepest:
        return True, plain(value, deepest - 1)
    return False, None
