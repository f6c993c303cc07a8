"""Actors and critics: each is a `NetworkBody` and its heads.

Observations come as a tuple of [..., *shape], already normalised; everything is float32. `settings` is any object with
`hidden_units` and `num_layers` (jaxrl.settings.NetworkSettings). `streams` names the reward streams, R of them.
The body shares the scope of its owner, so that parameters are named `encoder/...` and `body/...` in every network.
"""

from __future__ import annotations

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.attention import TeamAttention
from jaxrl.networks.body import Carry, NetworkBody
from jaxrl.networks.heads import ActionHeads
from jaxrl.networks.initializers import embedding_normal, fan_in_normal, head_uniform
from jaxrl.networks.settings import NetworkShape
from jaxrl.networks.shapes import on_rows
from jaxrl.types import BehaviorSpec


class Actor(nn.Module):
    """Policy: own observations -> ActionDistribution."""

    spec: BehaviorSpec
    settings: NetworkShape

    def setup(self) -> None:
        self.network = NetworkBody(self.spec, self.settings)
        nn.share_scope(self, self.network)
        self.heads = ActionHeads(self.spec.action)

    def __call__(self, obs: tuple[jax.Array, ...]) -> ActionDistribution:
        """`step` without memory."""
        return self.step(obs, ())[0]

    def step(self, obs: tuple[jax.Array, ...], carry: Carry) -> tuple[ActionDistribution, Carry]:
        """Distribution, and the memory after these observations, given the memory before them."""
        x, carry = self.network(obs, carry)
        return self.heads(x), carry

    def encode(self, obs: tuple[jax.Array, ...]) -> jax.Array:
        """Output of the body, [..., h]."""
        return self.network(obs, ())[0]


class ValueNetwork(nn.Module):
    """V(own observations) per reward stream, [..., R]."""

    spec: BehaviorSpec
    settings: NetworkShape
    streams: tuple[str, ...]

    def setup(self) -> None:
        self.network = NetworkBody(self.spec, self.settings)
        nn.share_scope(self, self.network)
        self.values = nn.Dense(len(self.streams), kernel_init=head_uniform)

    def __call__(self, obs: tuple[jax.Array, ...]) -> jax.Array:
        return on_rows(self.values, self.network(obs, ())[0])


class SharedActorCritic(nn.Module):
    """Actor with value heads on its body (`shared_critic: true`)."""

    spec: BehaviorSpec
    settings: NetworkShape
    streams: tuple[str, ...]

    def setup(self) -> None:
        self.network = NetworkBody(self.spec, self.settings)
        nn.share_scope(self, self.network)
        self.heads = ActionHeads(self.spec.action)
        self.values = nn.Dense(len(self.streams), kernel_init=head_uniform)

    def __call__(self, obs: tuple[jax.Array, ...]) -> tuple[ActionDistribution, jax.Array]:
        """Distribution and value [..., R] with the body computed once."""
        x = self.encode(obs)
        return self.heads(x), on_rows(self.values, x)

    def encode(self, obs: tuple[jax.Array, ...]) -> jax.Array:
        """Output of the shared body, [..., h]."""
        return self.network(obs, ())[0]

    def distribution(self, obs: tuple[jax.Array, ...]) -> ActionDistribution:
        """The policy alone, without memory."""
        return self.step(obs, ())[0]

    def step(self, obs: tuple[jax.Array, ...], carry: Carry) -> tuple[ActionDistribution, Carry]:
        """The policy alone, as `Actor.step`."""
        x, carry = self.network(obs, carry)
        return self.heads(x), carry

    def value(self, obs: tuple[jax.Array, ...]) -> jax.Array:
        """The value alone, [..., R]."""
        return on_rows(self.values, self.encode(obs))


class TeamCritic(nn.Module):
    """MA-POCA's centralised critic: team value and counterfactual baselines (Cohen et al. 2022; ML-Agents).

    value:      all present members' observations.
    baseline i: member i's observation without its action, and the observation-actions of the other present members.
    Inputs: obs, a tuple of [..., A, *shape]; action_encoding [..., A, C + M] (`actions.one_hot`); present, bool [...,
    A]; max_team, float scalar, the running maximum of the team size (`update_max_team`). Absent members may hold NaN.
    Raises AssertionError for other shapes.
    """

    spec: BehaviorSpec
    settings: NetworkShape
    streams: tuple[str, ...]

    def setup(self) -> None:
        hidden = self.settings.hidden_units
        self.network = NetworkBody(self.spec, self.settings, fan_in_normal((0.125 / hidden) ** 0.5))
        nn.share_scope(self, self.network)
        self.embed_obs = nn.Dense(hidden, kernel_init=embedding_normal(hidden))
        self.embed_obs_action = nn.Dense(hidden, kernel_init=embedding_normal(hidden))
        self.attention = TeamAttention(hidden)
        self.values = nn.Dense(len(self.streams), kernel_init=head_uniform)

    def __call__(
        self, obs: tuple[jax.Array, ...], action_encoding: jax.Array, present: jax.Array, max_team: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Value [..., R] and baseline [..., A, R]; a baseline of an absent member is finite and means nothing."""
        chex.assert_shape(
            action_encoding, (*present.shape, self.spec.action.continuous_size + self.spec.action.mask_size)
        )
        chex.assert_equal_shape_prefix([present, *obs], present.ndim)
        chex.assert_rank(max_team, 0)
        x, present_rows = self._encode(obs, present)
        actions = action_encoding.reshape(*x.shape[:2], -1)
        actions = jnp.where(present_rows[..., None], actions, 0.0)
        o = nn.swish(on_rows(self.embed_obs, x))
        oa = nn.swish(on_rows(self.embed_obs_action, jnp.concatenate([x, actions], axis=-1)))
        value, baseline = self.attention(o, oa, present_rows)
        pooled = jnp.concatenate([value[:, None], baseline], axis=1)
        out = self._heads(pooled, present_rows[:, None], max_team)
        value, baseline = out[:, 0], out[:, 1:]
        return value.reshape(*present.shape[:-1], -1), baseline.reshape(*present.shape, -1)

    def value_only(self, obs: tuple[jax.Array, ...], present: jax.Array, max_team: jax.Array) -> jax.Array:
        """Value [..., R] without the work for the baselines."""
        chex.assert_equal_shape_prefix([present, *obs], present.ndim)
        chex.assert_rank(max_team, 0)
        x, present_rows = self._encode(obs, present)
        pooled = self.attention.value_only(nn.swish(on_rows(self.embed_obs, x)), present_rows)
        return self._heads(pooled, present_rows, max_team).reshape(*present.shape[:-1], -1)

    def _encode(self, obs: tuple[jax.Array, ...], present: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Encodings [N, A, E] with absent members set to 0, and present as [N, A]: leading axes become one."""
        rows = present.astype(bool).reshape(-1, present.shape[-1])
        flat = [x.reshape(*rows.shape, *x.shape[present.ndim :]) for x in obs]
        clean = tuple(jnp.where(rows.reshape(*rows.shape, *[1] * (x.ndim - 2)), x, 0.0) for x in flat)
        return self.network.encode(clean), rows

    def _heads(self, pooled: jax.Array, present: jax.Array, max_team: jax.Array) -> jax.Array:
        """pooled [..., h], present [..., A] (broadcast) -> [..., R]; the scaled team size joins after the body."""
        x, _ = self.network.hidden(pooled, ())
        size = 2.0 * jnp.sum(present, axis=-1, keepdims=True) / max_team - 1.0
        size = jnp.broadcast_to(size.astype(jnp.float32), (*x.shape[:-1], 1))
        return on_rows(self.values, jnp.concatenate([x, size], axis=-1))


def update_max_team(max_team: jax.Array, present: jax.Array) -> jax.Array:
    """Running maximum (float32 scalar, at first 1) raised to the largest team of present [..., A]."""
    return jnp.maximum(max_team, jnp.max(jnp.sum(present.astype(jnp.float32), axis=-1)))
