"""A user's own function on rollouts, before values and returns: `postprocess: FILE.py:function`.

    def shaped(rollout):  # a bonus for the rewards of mates until the next decision
        return rollout._replace(reward=rollout.reward + 0.1 * rollout.mates_reward)

It is pure, is compiled with the update in both loops, and sees whole rows [T, B, A, ...]: an agent's decisions beside
those of its mates. Rewards, flags and extras may change; shapes and dtypes may not. A decision whose `acted` it clears
is not trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp

from jaxrl import own_code
from jaxrl.algorithms.interface import Algorithm
from jaxrl.rollout.rollout import Rollout
from jaxrl.types import JaxrlError

Postprocess = Callable[[Rollout], Rollout]


def resolve(address: str) -> Postprocess:
    """Load the function `module:function` or `FILE.py:function`. Raises JaxrlError."""
    try:
        function = own_code.load(address)
    except own_code.OwnCodeError as error:
        raise JaxrlError(f"postprocess: {error}") from error
    if not callable(function):
        raise JaxrlError(f"postprocess: {address}: got a value of type {type(function).__name__}, expected a function")
    return cast(Postprocess, function)


def postprocessed(algorithm: Algorithm, function: Postprocess, name: str = "postprocess") -> Algorithm:
    """Return the algorithm with `function` applied to each rollout before it is stored.

    Raises JaxrlError when it is traced and the function returns other fields, shapes or dtypes.
    """

    def add(store: Any, rollout: Rollout) -> Any:
        return algorithm.storage.add(store, _checked(function(rollout), rollout, name))

    checked, paid = algorithm._replace(storage=algorithm.storage._replace(add=add)), algorithm.signal_rewards
    if paid is None:
        return checked
    return checked._replace(signal_rewards=paid._replace(of=lambda state, rollout: paid.of(state, function(rollout))))


def _checked(found: Any, rollout: Rollout, name: str) -> Rollout:
    if not isinstance(found, Rollout):
        raise JaxrlError(f"{name}: gives {type(found).__name__}, expected a Rollout")
    if jax.tree.structure(found) != jax.tree.structure(rollout):
        raise JaxrlError(f"{name}: the rollout that it gives has other fields than the one that it was given")
    pairs = zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(rollout), strict=True)
    for (path, leaf), original in pairs:
        shape, dtype = jnp.shape(leaf), jnp.result_type(leaf)
        if (shape, dtype) != (original.shape, original.dtype):
            raise JaxrlError(
                f"{name}: rollout{jax.tree_util.keystr(path)} is {dtype}{list(shape)}, expected "
                f"{original.dtype}{list(original.shape)}"
            )
    return found
