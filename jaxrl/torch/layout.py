"""Describes how our arrays are made of ML-Agents' PyTorch arrays: one `Entry` for each of ours.

The rules are linear, so gradients translate as well:
    kernel   [inputs, outputs]: torch stores (outputs, inputs); several layers side by side become one;
    filters  [kh, kw, inputs, outputs]: torch stores (outputs, inputs, kh, kw);
    bias     [outputs]: several become one;
    row      [size]: torch stores (1, size).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

KERNEL, FILTERS, BIAS, ROW = "kernel", "filters", "bias", "row"
_AXES = {KERNEL: (1, 0), FILTERS: (2, 3, 1, 0), BIAS: (0,)}
"""Torch's axes in our order."""


class Entry(NamedTuple):
    """One of our arrays and the torch arrays it consists of, in order."""

    path: tuple[str, ...]
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # as torch stores them
    kind: str  # kernel, filters, bias or row


Layout = tuple[Entry, ...]


def linear(path: tuple[str, ...], names: tuple[str, ...], inputs: int, outputs: Iterable[int]) -> Layout:
    """Return the layout of one of our linear layers, made of one or more of ML-Agents' with equal inputs."""
    outputs = tuple(outputs)
    kernels = tuple((size, inputs) for size in outputs)
    return (
        Entry((*path, "kernel"), tuple(f"{name}.weight" for name in names), kernels, KERNEL),
        Entry((*path, "bias"), tuple(f"{name}.bias" for name in names), tuple((size,) for size in outputs), BIAS),
    )


def filters(path: tuple[str, ...], name: str, inputs: int, outputs: int, side: int) -> Layout:
    """Return the layout of one layer of square filters."""
    return (
        Entry((*path, "kernel"), (f"{name}.weight",), ((outputs, inputs, side, side),), FILTERS),
        Entry((*path, "bias"), (f"{name}.bias",), ((outputs,),), BIAS),
    )


def to_ours(entry: Entry, parts: list[np.ndarray]) -> np.ndarray:
    """Return our array of an entry, made of its torch arrays in order."""
    if entry.kind == ROW:
        return parts[0][0]
    return np.transpose(np.concatenate(parts, axis=0), _AXES[entry.kind])


def to_theirs(entry: Entry, array: np.ndarray) -> list[np.ndarray]:
    """Invert `to_ours`."""
    if entry.kind == ROW:
        return [array.reshape(entry.shapes[0])]
    joined = np.transpose(array, np.argsort(_AXES[entry.kind]))
    return np.split(joined, np.cumsum([shape[0] for shape in entry.shapes])[:-1])
