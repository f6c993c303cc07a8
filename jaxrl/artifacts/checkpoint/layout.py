"""Checkpoints of earlier versions, read as if they had been written today: leaves that were moved, dropped or added.

Format 1 (jaxrl 0.1.0) kept the largest team beside the weights of every learner; it now belongs to the algorithms that
have one. Sums over the episode under way that were added since start at zero, so that the first episode that ends in
each area after a resume shows a part of its "Policy/Extrinsic Reward".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxrl.artifacts.checkpoint.document import FORMAT
from jaxrl.artifacts.checkpoint.tree import Leaves

MOVED = {"train/max_team": "train/own/max_team"}
"""Format 1: old path to new. A learner that has the leaf under neither path does without it."""
ADDED = frozenset({"play/sums/received", "play/sums/mates_reward", "fresh"})
"""Leaves that format 1 does not have: they stay as they are in a fresh state."""


class Layout(NamedTuple):
    """How the leaves of one checkpoint fill a state of today."""

    saved: Leaves  # under the names of today
    wanted: Leaves  # of the state, without what stays as it is
    rename: Callable[[Mapping[str, Any]], dict[str, Any]]  # values by saved path → by today's


def layout(written: int, saved: Leaves, wanted: Leaves) -> Layout:
    """The layout of a checkpoint that was `written` in one of the readable formats and holds the leaves `saved`.

    `wanted` are the leaves of the state to fill. One that still has a leaf under its old path keeps it there.
    """
    if written == FORMAT:
        return Layout(saved, wanted, dict)
    moved = {old: new for old, new in MOVED.items() if old in saved and old not in wanted}
    names = {path: moved.get(path, path) for path in saved if moved.get(path, path) in wanted or path not in moved}

    def rename(values: Mapping[str, Any]) -> dict[str, Any]:
        return {names[path]: value for path, value in values.items() if path in names}

    missing = {path for path in ADDED if path not in saved}
    return Layout(rename(saved), {path: entry for path, entry in wanted.items() if path not in missing}, rename)
