"""Target of traced programs: an accelerator, and whether the compiler spreads the rows of arrays over devices."""

from __future__ import annotations

import jax
from jax.sharding import AxisType


def on_accelerator() -> bool:
    """Return whether programs are traced for a GPU or TPU.

    There each iteration of a loop costs launches, a loop or branch that depends on values makes the host wait for them,
    and wide operations cost hardly more than narrow ones; a CPU wants data that fit its caches, and no wasted work.
    """
    return jax.default_backend() != "cpu"


def rows_are_spread() -> bool:
    """Return whether the traced program has a mesh with an axis along which the compiler places arrays.

    Then operations that take rows apart and join them again make devices send them to each other.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return any(size > 1 and kind is AxisType.Auto for size, kind in zip(mesh.axis_sizes, mesh.axis_types, strict=True))
