"""Fully connected critics over a whole team: an input of fixed size with a place for every member.

The team has room for `capacity` members. Each place holds the member's encoded observation and a flag, 1 if it is
present; an empty place holds zeros and the flag 0, the absorbing state of Cohen et al. (2021, arXiv 2111.05992). Unlike
the attention of `models.TeamCritic` such a critic must learn the meaning of an empty place, and the order of members
matters.

A goal is an ordinary observation here, whatever `goal_conditioning_type` says, as in MA-POCA's critic: the hidden
layers read the whole team, and each member has its own goal.

Observations are a tuple of [..., A, *shape], A <= capacity; outputs are float32. Absent members may hold NaN.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.networks.body import NetworkBody
from jaxrl.networks.initializers import head_uniform
from jaxrl.networks.linear import Linear, on_columns
from jaxrl.networks.memory import Carry, Sequences, both_of, of_both
from jaxrl.networks.models import Critic
from jaxrl.settings.networks import NetworkSettings
from jaxrl.settings.teams import TeamCapacityError
from jaxrl.types import BehaviorSpec

Obs = tuple[jax.Array, ...]


class JointValue(nn.Module):
    """V(observations of all members) per reward signal: [..., A, *shape], present bool [..., A] -> [..., R].

    With memory every member has its own memory, [..., A, m], and its own value, [..., A, R].
    """

    spec: BehaviorSpec
    settings: NetworkSettings
    signals: tuple[str, ...]
    capacity: int

    def setup(self) -> None:
        self.network = NetworkBody(self.spec, self.settings)
        nn.share_scope(self, self.network)
        self.values = Linear(len(self.signals), head_uniform)

    def __call__(self, obs: Obs, present: jax.Array, memory: Carry | Sequences = ()) -> jax.Array:
        return self.step(obs, present, memory)[0]

    def step(self, obs: Obs, present: jax.Array, memory: Carry | Sequences) -> tuple[jax.Array, Carry]:
        """Compute the value, and the memory after these observations."""
        return self.judge(self.places(obs, present), present, memory)

    def places(self, obs: Obs, present: jax.Array) -> jax.Array:
        """Encode these members as inputs of the hidden layers, [N, capacity * (E + 1)]."""
        rows, present_rows = padded_teams(obs, present, self.capacity)
        places = _places(self.network.encode(rows), present_rows)
        return places.reshape(places.shape[0], -1)

    def judge(self, places: jax.Array, present: jax.Array, memory: Carry | Sequences) -> tuple[jax.Array, Carry]:
        """Compute `step` from the `places` [N, *] of all members in `present`, which other encoders may have made."""
        features = self.network.hidden(places).reshape(*present.shape[:-1], -1)
        if self.settings.memory is not None:
            features = jnp.broadcast_to(features[..., None, :], (*present.shape, features.shape[-1]))
        features, carry = self.network.remember(features, memory)
        return on_columns(self.values, features, from_columns=True), carry

    def beside(self, obs: Obs, present: jax.Array, others: jax.Array, memory: Carry) -> tuple[jax.Array, Carry]:
        """Apply `judge` to these members and to others, whose places [N, *] come behind."""
        return self.judge(jnp.concatenate([self.places(obs, present), others], axis=-1), present, memory)


class JointCritic(Critic):
    """COMA's critic with absorbing states: team value and counterfactual baselines, two fully connected networks.

    value:      the observations of all members, as in `JointValue`.
    baseline i: member i's observation first, then the places of the others, in their order, with observation, action
                and flag. One network for all i.
    Memory is as in `models.TeamCritic`, but each of the two networks has its own half of it. `max_team` is ignored: the
    flags show which members are present.
    """

    capacity: int

    def setup(self) -> None:
        self.value = JointValue(self.spec, self.settings, self.signals, self.capacity)
        self.network = NetworkBody(self.spec, self.settings)
        nn.share_scope(self, self.network)
        self.baselines = Linear(len(self.signals), head_uniform)

    def step(
        self, obs: Obs, action_encoding: jax.Array, present: jax.Array, max_team: jax.Array, memory: Carry | Sequences
    ) -> tuple[tuple[jax.Array, jax.Array], Carry]:
        """Compute value and baseline, and the memory after these observations and actions."""
        members, (of_value, of_baseline) = self.members(obs, action_encoding, present), of_both(memory)
        baseline, baseline_carry = self.baseline(members, (), present, of_baseline)
        value, value_carry = self.value.judge(members.of_value, present, of_value)
        return (value, baseline), both_of(value_carry, baseline_carry)

    def members(self, obs: Obs, action_encoding: jax.Array, present: jax.Array) -> Members:
        """Encode these members as inputs of the two networks."""
        rows, present_rows = padded_teams((*obs, action_encoding), present, self.capacity)
        x = self.network.encode(rows[:-1])
        places = _places(jnp.concatenate([x, rows[-1].astype(x.dtype)], axis=-1), present_rows)
        return Members(x, places, self.value.places(obs, present))

    def baseline(
        self, own: Members, around: Several[jax.Array], present: jax.Array, memory: Carry | Sequences
    ) -> tuple[jax.Array, Carry]:
        """Compute the baselines [..., A, R] of the members `own`, and their new memory.

        `around`: places [N, *] of other behaviors' members before and after. `memory`: of baselines alone, [..., A, m].
        """
        joint = self._joint(own.x, own.places, present.shape[-1], *around)
        features = self.network.hidden(joint).reshape(*present.shape, -1)
        features, carry = self.network.remember(features, memory)
        return on_columns(self.baselines, features, from_columns=True), carry

    def beside(
        self, seen: tuple[Obs, jax.Array, jax.Array], others: Several[jax.Array], value: bool, memory: Carry
    ) -> None:
        """Call all parts that a behavior of a team holds. `others`: places before, after, and of the value network."""
        members, present, (*around, beside) = self.members(*seen), seen[-1], others
        of_value, of_baseline = of_both(memory)
        self.baseline(members, around, present, of_baseline)
        if value:
            self.value.judge(jnp.concatenate([members.of_value, beside], axis=-1), present, of_value)

    def _joint(self, x: jax.Array, places: jax.Array, members: int, *around: jax.Array) -> jax.Array:
        """Join member i's encoding, then the places of the others, those of other behaviors `around` them: [N·A, *]."""
        n = x.shape[0]
        others = places[:, _others(members, self.capacity)].reshape(n, members, -1)  # capacity - 1 of E + C + M + 1
        if around:
            left, right = (jnp.broadcast_to(y[:, None], (n, members, y.shape[-1])) for y in around)
            others = jnp.concatenate([left, others, right], axis=-1)
        encodings = x[:, :members].reshape(n * members, -1)
        return jnp.concatenate([encodings, others.reshape(n * members, -1)], axis=-1)


class Members(NamedTuple):
    """Members as inputs of `JointCritic`."""

    x: jax.Array  # [N, capacity, E]
    places: jax.Array  # [N, capacity, E + C + M + 1], with actions and flag
    of_value: jax.Array  # [N, capacity * (E + 1)], inputs of the value network


def padded_teams(
    arrays: tuple[jax.Array, ...], present: jax.Array, capacity: int
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """Pad [..., A, *shape] to [N, capacity, *shape] with zeros in empty places, and present to [N, capacity].

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
    """Append the flag to each place: [N, capacity, E], [N, capacity] -> [N, capacity, E + 1]."""
    return jnp.concatenate([x, present[..., None].astype(x.dtype)], axis=-1)


def _others(members: int, capacity: int) -> np.ndarray:
    """Return the places other than member i's, in their order, int [members, capacity - 1]."""
    return np.array([[j for j in range(capacity) if j != i] for i in range(members)], int).reshape(members, -1)
