"""Exchange arrays and numbers between the processes of one run.

Each process runs the same Python, so values that control the run must be equal everywhere: they are computed from
`SceneTrainer.report`, which all processes get, or sent by process 0, whose clocks, files and folders alone count.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from jaxrl.artifacts.checkpoint.tree import is_key

_ROOM = 1024  # bytes; texts that process 0 sends are padded to a multiple


def writes() -> bool:
    """Return whether this process is the one that writes files and logs."""
    return jax.process_index() == 0


def agreed(number: int) -> int:
    """Return process 0's number in all processes, as clocks and signals differ between processes."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def told(found: Callable[[], Any]) -> Any:
    """Call `found` in process 0 only, and return its plain JSON values in all processes."""
    if jax.process_count() == 1:
        return found()
    text = np.frombuffer(json.dumps(found()).encode(), np.uint8) if writes() else np.zeros(0, np.uint8)
    size = agreed(text.size)
    room = -(-size // _ROOM) * _ROOM  # a broadcast is compiled for each size
    return json.loads(multihost_utils.broadcast_one_to_all(np.pad(text, (0, room - text.size)))[:size].tobytes())


def of_first(tree: Any) -> Any:
    """Return process 0's arrays and typed keys in all processes; shapes must be equal, and arrays whole."""
    if jax.process_count() == 1:
        return tree
    numbers = jax.tree.map(lambda x: np.asarray(jax.random.key_data(x) if is_key(x) else x), tree)
    return _typed(multihost_utils.broadcast_one_to_all(numbers), tree)


def here(everywhere: Callable[[Any], Any], tree: Any) -> Any:
    """Return arrays spread over all hosts as whole numpy arrays of this process, typed keys as keys.

    Every process calls it. `everywhere`: replicates an array on each device.
    """
    replicated = everywhere(tree)
    return _typed(jax.tree.map(lambda x: np.asarray(jax.random.key_data(x) if is_key(x) else x), replicated), tree)


def over_all(tree: Any, places: Any) -> Any:
    """Put arrays, equal in every process, on the devices of their shardings `places`; move arrays already spread."""

    def put(x: Any, place: NamedSharding) -> Any:
        if isinstance(x, jax.Array) and x.sharding == place:
            return x
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            return jax.device_put(x, place)
        if is_key(x):
            data = _spread(np.asarray(jax.random.key_data(x)), place)
            return jax.device_put(jax.random.wrap_key_data(data, impl=jax.random.key_impl(x)), place)
        return _spread(np.asarray(x), place)

    return jax.tree.map(put, tree, places)


def _spread(x: np.ndarray, place: NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(x.shape, place, lambda index: x[index])


def _typed(numbers: Any, like: Any) -> Any:
    """Convert numbers to typed keys where the leaf of `like` is a key."""

    def typed(x: np.ndarray, old: Any) -> Any:
        return jax.random.wrap_key_data(jnp.asarray(x), impl=jax.random.key_impl(old)) if is_key(old) else x

    return jax.tree.map(typed, numbers, like)
