"""Rows of arrays that do not change, by place, inside a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def picker(columns: Any) -> Callable[[jax.Array], Any]:
    """The function (places int32 [...]) → the rows [..., *shape] of all columns, a tree of numpy arrays [n, *shape].

    Arrays that are mapped (`numpy.memmap`) stay in their files, out of which the host takes the rows that a program
    asks for: a program that does so is not in JAX's compilation cache. Others become arrays of the device.
    """
    if not any(isinstance(x, np.memmap) for x in jax.tree.leaves(columns)):
        held = jax.tree.map(jnp.asarray, columns)
        return lambda places: jax.tree.map(lambda x: x[places], held)

    def of_files(places: Any) -> Any:
        at = np.asarray(places)
        return jax.tree.map(lambda x: np.asarray(x[at]), columns)

    def pick(places: jax.Array) -> Any:
        form = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*places.shape, *x.shape[1:]), x.dtype), columns)
        return jax.pure_callback(of_files, form, places, vmap_method="expand_dims")

    return pick
