"""Whether the rows of arrays are spread over several devices by the compiler."""

from __future__ import annotations

import jax
from jax.sharding import AxisType


def rows_are_spread() -> bool:
    """Whether the program that is traced has a mesh with an axis along which the compiler places arrays.

    Then what takes rows apart and joins them again makes devices send them to each other.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return any(size > 1 and kind is AxisType.Auto for size, kind in zip(mesh.axis_sizes, mesh.axis_types, strict=True))
