"""What programs are traced for: an accelerator, and whether the compiler spreads the rows of arrays over devices."""

from __future__ import annotations

import jax
from jax.sharding import AxisType


def on_accelerator() -> bool:
    """Whether programs are traced for a GPU or TPU.

    There each turn of a loop costs launches, a loop or branch that depends on numbers costs the host's waiting for
    them, and what is wide costs hardly more than what is narrow; a CPU wants what fits its caches, and nothing in vain.
    """
    return jax.default_backend() != "cpu"


def rows_are_spread() -> bool:
    """Whether the program that is traced has a mesh with an axis along which the compiler places arrays.

    Then what takes rows apart and joins them again makes devices send them to each other.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return any(size > 1 and kind is AxisType.Auto for size, kind in zip(mesh.axis_sizes, mesh.axis_types, strict=True))
