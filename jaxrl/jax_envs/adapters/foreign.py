"""Functions that the adapters of other packages' environments share: import the package, check names, convert spaces.

Classes of these packages are told by name and attributes, never imported: JaxMARL and gymnax each have
their own `Discrete`, `MultiDiscrete` and `Box`, and neither package is needed to import this module.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.envs.address import UnknownEnvironmentError, unknown
from jaxrl.types import ActionSpec, JaxrlError

NEVER = 2**30
"""Steps: a time limit that no episode reaches."""


_ENDLESS = 1e30
"""A bound from it on is none, such as the largest float32."""


def import_package(package: str) -> ModuleType:
    """Import the package, which is also the name of jaxrl's extra, without showing what it prints.

    Raises:
        JaxrlError: it is not installed, or it is and its own imports fail; the text names the extra.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # JaxMARL reports there which of its parts are missing
            return import_module(package)
    except ImportError as error:
        missing = getattr(error, "name", None) == package
        state = "is not installed" if missing else f"is installed, but cannot be imported ({error})"
        raise JaxrlError(f"{package} {state}: run  pip install 'jaxrl[{package}]'") from error


def check_name(package: str, name: str, known: Iterable[str]) -> None:
    """Raise `UnknownEnvironmentError` with the nearest names if the package's registry does not hold `name`."""
    names = list(known)
    if name not in names:
        raise UnknownEnvironmentError(unknown(f"{package}:{name}", name, names, there_are=f"{package} has"))


def behavior_name(name: str) -> str:
    """Return the registry's name as a behavior and folder name: every sign but letters, digits, - and _ becomes _."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def action_spec(where: str, space: Any) -> ActionSpec:
    """Convert an action space: `Box` to continuous dimensions, `Discrete` to a branch, `MultiDiscrete` to several.

    Raises:
        JaxrlError: any other space, or a Box without a bound; `where` says whose it is.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return ActionSpec(continuous_size=0, discrete_branches=(int(space.n),))
    if kind == "MultiDiscrete":
        return ActionSpec(continuous_size=0, discrete_branches=tuple(int(n) for n in np.asarray(space.num_categories)))
    if kind == "Box" and np.issubdtype(np.dtype(space.dtype), np.floating):
        if not all((np.abs(np.asarray(bound, np.float64)) < _ENDLESS).all() for bound in (space.low, space.high)):
            raise JaxrlError(
                f"{where}: action space {space!r} from {space.low} to {space.high} has no bound on a side, so what -1 "
                "and 1 of a policy stand for is not known; give it finite bounds"
            )
        return ActionSpec(continuous_size=int(np.prod(space.shape)), discrete_branches=())
    raise JaxrlError(
        f"{where}: action space {space!r} is not supported; expected Discrete, MultiDiscrete or a Box of floats"
    )


def to_native(space: Any, continuous: Array, discrete: Array) -> Array:
    """Convert one agent's action, float32 [C] in [-1, 1] and int32 [D], to its space; surplus entries are dropped.

    Choices stay int32: older releases of gymnax call theirs int64, which JAX does not have by default.

    A dimension of a Box is stretched, x = low + (a + 1) / 2 · (high - low), so that the learner's [-1, 1] covers it.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return discrete[0]
    if kind == "MultiDiscrete":
        return discrete[: len(space.num_categories)]
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high))
    share = (jnp.clip(continuous[: low.size], -1.0, 1.0).reshape(space.shape) + 1.0) / 2.0
    return jnp.asarray(jnp.clip(low + share * (high - low), low, high), space.dtype)


def flat(x: Any, size: int) -> Array:
    """Flatten any observation to float32 [size], row by row, a dictionary by key, and pad it with zeros."""
    values = jnp.concatenate([jnp.ravel(jnp.asarray(leaf, jnp.float32)) for leaf in jax.tree.leaves(x)])
    return jnp.pad(values, (0, size - values.shape[0]))


def unchanging(where: str, state: Any, after: Any) -> Any:
    """Return `after`, a tree of shapes and types, if it may follow `state` in a compiled loop.

    Raises:
        JaxrlError: the tree or a shape differs; the text says how.
    """
    shapes = [jax.tree.map(lambda leaf: tuple(leaf.shape), tree) for tree in (state, after)]
    if jax.tree.structure(state) != jax.tree.structure(after) or shapes[0] != shapes[1]:
        raise JaxrlError(
            f"{where}: a step changes the shape of the state from {shapes[0]} to {shapes[1]}, so it cannot be compiled "
            "into a loop; environments must keep all shapes"
        )
    return after


def typed_as(like: Any, state: Any) -> Any:
    """Cast `state` to the types of `like`: a Python number of a reset becomes the array that a step returns."""
    return jax.tree.map(lambda leaf, shape: jnp.asarray(leaf, shape.dtype), state, like)
