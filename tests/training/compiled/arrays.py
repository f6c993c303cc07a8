"""Every array of a checkpoint, by path, without knowing what wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint import tree as trees


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """Path in the state → array; typed keys as their data."""
    return trees.to_arrays(state_of(path))


def state_of(path: Path) -> dict[str, Any]:
    """The state as nested dictionaries."""

    def blank(entry: dict) -> np.ndarray | jax.Array:
        zeros = np.zeros(entry["shape"], jnp.dtype(entry["dtype"]))
        return jax.random.wrap_key_data(jnp.asarray(zeros)) if "key" in entry else zeros

    leaves = checkpoint.read_info(path).leaves
    return checkpoint.restore(path, unflatten_dict({name: blank(dict(e)) for name, e in leaves.items()}, sep="/"))
