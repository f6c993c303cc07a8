"""Look up rows of constant arrays by index inside a compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def picker(columns: Any) -> Callable[[jax.Array], Any]:
    """Make the function (places int32 [...]) → rows [..., *shape] of all columns, a tree of numpy arrays [n, *shape].

    Memory-mapped arrays (`numpy.memmap`) stay in their files: the host reads the rows that a program asks for, and such
    a program is not in JAX's compilation cache. Other arrays are moved to the device.
    """
    if not any(isinstance(x, np.memmap) for x in jax.tree.leaves(columns)):
        device_columns = jax.tree.map(jnp.asarray, columns)
        return lambda places: jax.tree.map(lambda x: x[places], device_columns)

    def of_files(places: Any) -> Any:
        at = np.asarray(places)
        return jax.tree.map(lambda x: np.asarray(x[at]), columns)

    def pick(places: jax.Array) -> Any:
        form = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*places.shape, *x.shape[1:]), x.dtype), columns)
        return jax.pure_callback(of_files, form, places, vmap_method="expand_dims")

    return pick
