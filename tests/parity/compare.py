"""How far our arrays are from the reference's.

Scaled error of an array: max |ours - theirs| / max(max |theirs|, floor): relative to the array's largest element, or to
the floor where the whole array is almost zero. Floors: 0.1 for outputs of networks and losses (sums of terms of order
1, whose rounding does not shrink when they happen to cancel), 1e-3 for gradients and weights (the gradient of an
attention key bias is rounding noise), 0 where a case asks for it. elementwise=True divides each element by its own
size instead.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

FLOOR = 0.1
GRADIENT_FLOOR = 1e-3
TINY = 1e-7
"""A gradient below it is rounding noise."""


class Comparison:
    """Errors of one case by array name."""

    def __init__(self) -> None:
        self.errors: dict[str, float] = {}

    def add(self, name: str, ours, theirs, *, floor: float = FLOOR, elementwise: bool = False) -> None:
        """Compare one array; a different shape or a value that is not finite counts as an infinite error."""
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        if ours.shape != theirs.shape or not np.isfinite(ours).all():
            self.errors[name] = np.inf
            return
        if ours.size == 0:
            self.errors[name] = 0.0
            return
        size = np.abs(theirs) if elementwise else np.abs(theirs).max()
        self.errors[name] = float((np.abs(ours - theirs) / np.maximum(size, floor)).max())

    def add_from(self, arrays: Mapping[str, np.ndarray], name: str, ours, *, floor: float = FLOOR) -> None:
        """Compare with the array of that name, if the case has it: large cases leave some out."""
        if name in arrays:
            self.add(name, ours, arrays[name], floor=floor)

    def add_exact(self, name: str, ours, theirs) -> None:
        """Compare one array to the last bit."""
        self.errors[name] = 0.0 if np.array_equal(np.asarray(ours), np.asarray(theirs)) else np.inf

    def add_after_adam(self, name: str, ours, theirs, noise, bound: float) -> None:
        """Weights after Adam: where the first gradient is `noise` (below `TINY`), that is amplified up to `bound`."""
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        if ours.shape != theirs.shape or ours.shape != noise.shape:
            self.errors[name] = np.inf
            return
        beyond = np.abs(ours - theirs) > 1.001 * bound + 1e-6 * np.abs(theirs)
        if (noise & beyond).any():
            self.errors[name] = np.inf
            return
        self.add(name, np.where(noise, 0.0, ours), np.where(noise, 0.0, theirs), floor=GRADIENT_FLOOR)

    @property
    def worst(self) -> tuple[str, float]:
        """The array with the largest scaled error."""
        return max(self.errors.items(), key=lambda item: item[1], default=("nothing was compared", np.inf))
