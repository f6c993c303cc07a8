"""A pytree as a dictionary of numpy arrays and back, leaf by leaf, so that a mismatch can be named.

Dtype and shape of each leaf, by path, are in the checkpoint's JSON: a checkpoint is judged before its
arrays are read, typed PRNG keys remember their generator, and arrays of size zero, which the array store refuses
(an agent without continuous actions has some), need not be stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Leaves = Mapping[str, Mapping[str, Any]]

_PYTHON = {"int": jnp.integer, "float": jnp.floating, "bool": jnp.bool_}


def leaf_paths(tree: Any) -> list[tuple[str, Any]]:
    """Return (path, leaf) of every leaf; a path is the field names, keys and indices joined by "/"."""
    leaves = jax.tree.leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def leaves_of(tree: Any) -> dict[str, dict[str, Any]]:
    """Describe the leaves of a pytree: {path: {"dtype", "shape", and "key" for typed PRNG keys}}.

    Python numbers have the dtype "int", "float" or "bool": they fit any array of rank 0 of that kind, because a counter
    that starts as a Python number comes back from a compiled function as an array.
    Leaves may be JAX arrays, typed keys, numpy arrays, numpy or Python numbers. Raises TypeError for any other leaf.
    """
    return {path: _leaf_entry(path, leaf) for path, leaf in leaf_paths(tree)}


def bytes_of(entry: Mapping[str, Any]) -> int:
    """Return the bytes of a leaf's array."""
    return jnp.dtype(entry["dtype"]).itemsize * math.prod(entry["shape"])


def to_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Copy every non-empty leaf to {path: numpy array}; one transfer from the device; keys as their data."""
    plain = {path: jax.random.key_data(leaf) if is_key(leaf) else leaf for path, leaf in leaf_paths(tree)}
    arrays = {path: np.asarray(value) for path, value in jax.device_get(plain).items()}
    return {path: array for path, array in arrays.items() if array.size}


def rebuild(template: Any, arrays: Mapping[str, Any], saved: Leaves) -> Any:
    """Return `template` with the values of `arrays`; leaves whose path is not in `saved` keep the template's value.

    Each leaf comes back as the kind of value it is in the template: JAX array, typed key, numpy array or number.
    """
    leaves = [
        _like(leaf, _value(arrays, saved, path)) if path in saved else leaf for path, leaf in leaf_paths(template)
    ]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(template), leaves)


def leaf_mismatches(saved: Leaves, wanted: Leaves) -> list[str]:
    """Return one line per leaf that differs between a checkpoint and the state it shall fill; empty when they fit."""
    lines = [
        f"{path}: {_text(saved[path])} in the checkpoint, {_text(wanted[path])} now"
        for path in wanted
        if path in saved and not _fit(saved[path], wanted[path])
    ]
    lines += [f"{path}: not in the checkpoint, {_text(wanted[path])} now" for path in wanted if path not in saved]
    return lines + [
        f"{path}: {_text(saved[path])} in the checkpoint, not used now" for path in saved if path not in wanted
    ]


def is_key(leaf: Any) -> bool:
    """Return whether a leaf is a typed PRNG key."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _leaf_entry(path: str, leaf: Any) -> dict[str, Any]:
    if is_key(leaf):
        data = jax.random.key_data(leaf)
        return {"dtype": str(data.dtype), "shape": list(data.shape), "key": str(leaf.dtype)}
    if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
        return {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}
    if isinstance(leaf, (bool, int, float)):
        return {"dtype": type(leaf).__name__, "shape": []}
    raise TypeError(f"{path}: a checkpoint holds arrays and numbers, not {type(leaf).__name__}")


def _value(arrays: Mapping[str, Any], saved: Leaves, path: str) -> np.ndarray:
    entry = saved[path]
    if path in arrays:
        return np.asarray(arrays[path], dtype=jnp.dtype(entry["dtype"]))
    if np.prod(entry["shape"]):
        raise KeyError(path)
    return np.zeros(entry["shape"], dtype=jnp.dtype(entry["dtype"]))


def _like(leaf: Any, value: np.ndarray) -> Any:
    """Convert `value` to the kind of `leaf`: JAX array, typed key, numpy array or number."""
    if is_key(leaf):
        return jax.random.wrap_key_data(jnp.array(value), impl=jax.random.key_impl(leaf))
    if isinstance(leaf, np.ndarray):
        return np.array(value, dtype=leaf.dtype)
    if isinstance(leaf, np.generic):
        return leaf.dtype.type(value)
    if isinstance(leaf, (bool, int, float)):
        return type(leaf)(value.item())
    if getattr(leaf, "committed", False):
        return jax.device_put(jnp.array(value, dtype=leaf.dtype), leaf.sharding)
    return jnp.array(value, dtype=leaf.dtype)  # a copy: the learner donates its state, numpy memory must not be aliased


def _fit(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a saved leaf can fill a wanted one: equal, or a Python number and a rank-0 array of its kind."""
    if dict(saved) == dict(wanted):
        return True
    kind = _PYTHON.get(saved["dtype"]) or _PYTHON.get(wanted["dtype"])
    if kind is None or saved["shape"] or wanted["shape"]:
        return False
    return all(jnp.issubdtype(jnp.dtype(entry["dtype"]), kind) for entry in (saved, wanted))


def _text(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('key', entry['dtype'])}{list(entry['shape'])}"
