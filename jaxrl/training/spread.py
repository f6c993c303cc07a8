"""Arrays and numbers of a run that several processes compute together: from here to all of them, and back.

Each process runs the same Python. What decides how it goes on is therefore the same everywhere: computed from what
`SceneTrainer.report` shows all, or told by process 0, which alone has clocks, files and folders that count.
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
    """Whether this process is the one that writes files and talks."""
    return jax.process_index() == 0


def agreed(number: int) -> int:
    """The number of process 0, where several run this program: clocks and signals are of one process each."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def told(found: Callable[[], Any]) -> Any:
    """Return the plain JSON values that `found` gives in process 0, in all; only there it is called."""
    if jax.process_count() == 1:
        return found()
    text = np.frombuffer(json.dumps(found()).encode(), np.uint8) if writes() else np.zeros(0, np.uint8)
    size = agreed(text.size)
    room = -(-size // _ROOM) * _ROOM  # a broadcast is compiled for each size
    return json.loads(multihost_utils.broadcast_one_to_all(np.pad(text, (0, room - text.size)))[:size].tobytes())


def of_first(tree: Any) -> Any:
    """Arrays and typed keys as process 0 has them, in all; of one shape everywhere, and in each process whole."""
    if jax.process_count() == 1:
        return tree
    numbers = jax.tree.map(lambda x: np.asarray(jax.random.key_data(x) if is_key(x) else x), tree)
    return _typed(multihost_utils.broadcast_one_to_all(numbers), tree)


def here(everywhere: Callable[[Any], Any], tree: Any) -> Any:
    """Arrays that lie on all hosts as whole ones of this process, numpy, typed keys as keys; every process calls it.

    `everywhere`: makes an array lie whole on each device.
    """
    found = everywhere(tree)
    return _typed(jax.tree.map(lambda x: np.asarray(jax.random.key_data(x) if is_key(x) else x), found), tree)


def over_all(tree: Any, places: Any) -> Any:
    """Arrays that every process has alike, each where it belongs; those that lie on all already are moved."""

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
    """Numbers as the leaves of `like`: keys of those that are keys there."""

    def of(x: np.ndarray, old: Any) -> Any:
        return jax.random.wrap_key_data(jnp.asarray(x), impl=jax.random.key_impl(old)) if is_key(old) else x

    return jax.tree.map(of, numbers, like)
