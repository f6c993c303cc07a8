"""A policy for each member of a team (`share_policy: false`): as many actors as a team has places, in one pytree.

Parameters have a leading axis P of places. Observations come as a tuple of [..., A, *shape], whose members stand in the
order of their places: a team with fewer members than places (A < P) has the first ones, and A = K · P members are K
teams, one after the other. Whose place is which, is a matter of whoever lays out the members: in the compiled loop that
of the environment's member axis, in the host loop that of the row (`rollout.booking.slots`).
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
    """`init` and `apply` of P actors that share nothing. The names are flax's, so that it stands where an Actor does.

    Raises ValueError for A members that are neither at most P nor whole teams of P.
    """

    actor: Actor
    places: int

    def init(self, key: jax.Array, obs: Obs, memory: Carry = ()) -> Any:
        """Parameters [P, ...], each drawn for itself; obs and memory are of one member. The key is consumed."""
        return jax.vmap(lambda one: self.actor.init(one, obs, memory))(jax.random.split(key, self.places))

    def apply(
        self, params: Any, obs: Obs, memory: Carry | Sequences = (), *, method: Callable[..., Any] | None = None
    ) -> Any:
        """What each member's actor says, as `Actor` does with `method` None or `Actor.step`: [..., A, *]."""
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
        each = jax.vmap(act, in_axes=(0, place, place), out_axes=out)
        own = jax.tree.map(lambda x: x[:size], params)
        found = each(own, *jax.tree.map(apart, (obs, memory)))
        dist, carry = (found, ()) if method is None else found
        spread = jnp.broadcast_to(dist.log_sigma, (*dist.mean.shape[:-1], dist.log_sigma.shape[-1]))
        dist = jax.tree.map(together, dist._replace(log_sigma=spread))
        return dist if method is None else (dist, jax.tree.map(together, carry))


def actor_of(spec: BehaviorSpec, settings: NetworkSettings, places: int | None) -> Any:
    """The actor that all members share, or one for each of so many places."""
    actor = Actor(spec, settings)
    return actor if places is None else PlacedActors(actor, places)


def of_place(params: Any, place: int) -> Any:
    """The parameters of one actor, as those of an `Actor`."""
    return jax.tree.map(lambda x: x[place], params)
