"""Fully connected critics over a whole team: an input of fixed size with a place for every member.

The team has room for `capacity` members. Each place holds the member's encoded observation and a flag, 1 if it is
present; an empty place holds zeros and the flag 0, the absorbing state of Cohen et al. (2021, arXiv 2111.05992). Unlike
the attention of `models.TeamCritic` such a critic must learn what an empty place means, and it knows members by place.

Observations come as a tuple of [..., A, *shape], A <= capacity; everything is float32. Absent members may hold NaN.
"""

from __future__ import annotations

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.networks.body import NetworkBody
from jaxrl.networks.initializers import head_uniform
from jaxrl.networks.settings import NetworkShape
from jaxrl.types import BehaviorSpec, JaxrlError


class TeamCapacityError(JaxrlError):
    """A team that does not fit into a critic of fixed size."""

    def __init__(self, capacity: int, members: int) -> None:
        super().__init__(
            f"hyperparameters.team_capacity: {capacity}, but the rows of this behavior hold teams of {members} members "
            f"(room grows to the next power of two while members are born): write at least {members}"
        )


class JointValue(nn.Module):
    """V(observations of all members) per reward stream: [..., A, *shape], present bool [..., A] -> [..., R]."""

    spec: BehaviorSpec
    settings: NetworkShape
    streams: tuple[str, ...]
    capacity: int

    def setup(self) -> None:
        self.network = NetworkBody(self.spec, self.settings)
        nn.share_scope(self, self.network)
        self.values = nn.Dense(len(self.streams), kernel_init=head_uniform)

    def __call__(self, obs: tuple[jax.Array, ...], present: jax.Array) -> jax.Array:
        rows, present_rows = padded_teams(obs, present, self.capacity)
        places = _places(self.network.encode(rows), present_rows)
        features, _ = self.network.hidden(places.reshape(places.shape[0], -1), ())
        return self.values(features).reshape(*present.shape[:-1], -1)


class JointCritic(nn.Module):
    """COMA's critic with absorbing states: team value and counterfactual baselines, two fully connected networks.

    value:      the observations of all members, as in `JointValue`.
    baseline i: member i's observation first, then the places of the others, in their order, with observation, action
                and flag. One network for all i.
    Inputs and outputs are those of `models.TeamCritic`; `max_team` is not looked at, the flags tell who is there.
    """

    spec: BehaviorSpec
    settings: NetworkShape
    streams: tuple[str, ...]
    capacity: int

    def setup(self) -> None:
        self.value = JointValue(self.spec, self.settings, self.streams, self.capacity)
        self.network = NetworkBody(self.spec, self.settings)
        nn.share_scope(self, self.network)
        self.baselines = nn.Dense(len(self.streams), kernel_init=head_uniform)

    def __call__(
        self, obs: tuple[jax.Array, ...], action_encoding: jax.Array, present: jax.Array, max_team: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Value [..., R] and baseline [..., A, R]; a baseline of an absent member is finite and means nothing."""
        members = present.shape[-1]
        rows, present_rows = padded_teams((*obs, action_encoding), present, self.capacity)
        x = self.network.encode(rows[:-1])
        places = _places(jnp.concatenate([x, rows[-1]], axis=-1), present_rows)
        others = places[:, _others(members, self.capacity)]  # [N, A, capacity - 1, E + C + M + 1]
        own = x[:, :members].reshape(x.shape[0] * members, -1)
        joint = jnp.concatenate([own, others.reshape(own.shape[0], -1)], axis=-1)
        features, _ = self.network.hidden(joint, ())
        baseline = self.baselines(features)
        return self.value(obs, present), baseline.reshape(*present.shape, -1)


def padded_teams(
    arrays: tuple[jax.Array, ...], present: jax.Array, capacity: int
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """[..., A, *shape] -> [N, capacity, *shape] with zeros in empty places, and present as [N, capacity].

    Raises `TeamCapacityError` when A is larger than the capacity, AssertionError when leading axes differ.
    """
    chex.assert_equal_shape_prefix([present, *arrays], present.ndim)
    members = present.shape[-1]
    if members > capacity:
        raise TeamCapacityError(capacity, members)
    present = present.astype(bool)

    def rows(x: jax.Array) -> jax.Array:
        shape = x.shape[present.ndim :]
        clean = jnp.where(present.reshape(*present.shape, *[1] * len(shape)), x, 0)
        flat = clean.reshape(-1, members, *shape)
        return jnp.pad(flat, [(0, 0), (0, capacity - members)] + [(0, 0)] * len(shape))

    return tuple(map(rows, arrays)), rows(present)


def _places(x: jax.Array, present: jax.Array) -> jax.Array:
    """[N, capacity, E], [N, capacity] -> [N, capacity, E + 1]."""
    return jnp.concatenate([x, present[..., None].astype(x.dtype)], axis=-1)


def _others(members: int, capacity: int) -> np.ndarray:
    """int [members, capacity - 1]: the places that are not i's own, in their order."""
    return np.array([[j for j in range(capacity) if j != i] for i in range(members)], int).reshape(members, -1)
