"""A policy for each member of a team (`share_policy: false`): as many actors as a team has places, in one pytree.

Parameters have a leading axis P of places. Observations are a tuple of [..., A, *shape] with the members in the order
of their places: a team with fewer members than places (A < P) has the first places, and A = K · P members are K teams,
one after the other. A member's place is its index on the environment's member axis in the compiled loop, and in its row
in the host loop (`rollout.booking.slots`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp

from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.memory import Carry, Sequences
from jaxrl.networks.models import Actor
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import BehaviorSpec

Obs = tuple[jax.Array, ...]


@dataclass(frozen=True)
class PlacedActors:
    """P actors that share nothing. `init` and `apply` are called like those of the flax module `Actor`.

    Raises ValueError for A members that are neither at most P nor whole teams of P.
    """

    actor: Actor
    places: int

    def init(self, key: jax.Array, obs: Obs, memory: Carry = ()) -> Any:
        """Draw parameters [P, ...], each place by itself; obs and memory are of one member. The key is consumed."""
        return jax.vmap(lambda at: self.actor.init(at, obs, memory))(jax.random.split(key, self.places))

    def apply(
        self, params: Any, obs: Obs, memory: Carry | Sequences = (), *, method: Callable[..., Any] | None = None
    ) -> Any:
        """Apply each member's actor, as `Actor` does with `method` None or `Actor.step`: [..., A, *]."""
        axis = obs[0].ndim - len(self.actor.spec.observations[0].shape) - 1
        members = obs[0].shape[axis]
        size = min(members, self.places)
        if members % size:
            raise ValueError(f"{members} members are no whole teams of {self.places} places")

        def apart(x: jax.Array) -> jax.Array:  # [..., A, *] → [..., K, size, *]
            return x.reshape(*x.shape[:axis], members // size, size, *x.shape[axis + 1 :])

        def together(x: jax.Array) -> jax.Array:
            return x.reshape(*x.shape[:axis], members, *x.shape[axis + 2 :])

        dist, place = ActionDistribution(axis + 1, 0, axis + 1), axis + 1  # pyright: ignore[reportArgumentType]
        out = dist if method is None else (dist, place)
        act = cast(Callable[..., Any], partial(self.actor.apply, method=method))
        act_at_places = jax.vmap(act, in_axes=(0, place, place), out_axes=out)
        place_params = jax.tree.map(lambda x: x[:size], params)
        output = act_at_places(place_params, *jax.tree.map(apart, (obs, memory)))
        dist, carry = (output, ()) if method is None else output
        spread = jnp.broadcast_to(dist.log_sigma, (*dist.mean.shape[:-1], dist.log_sigma.shape[-1]))
        dist = jax.tree.map(together, dist._replace(log_sigma=spread))
        return dist if method is None else (dist, jax.tree.map(together, carry))


def actor_of(spec: BehaviorSpec, settings: NetworkSettings, places: int | None) -> Any:
    """Make the actor that all members share, or actors for each of `places`."""
    actor = Actor(spec, settings)
    return actor if places is None else PlacedActors(actor, places)


def of_place(params: Any, place: int) -> Any:
    """Return the parameters of the actor of one place, in the form of an `Actor`."""
    return jax.tree.map(lambda x: x[place], params)
