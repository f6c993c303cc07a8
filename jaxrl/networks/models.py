"""Actors and critics.

Observations come as a tuple of [..., *shape], already normalised; everything is float32. `settings` is any object with
`hidden_units` and `num_layers` (jaxrl.settings.NetworkSettings). `streams` names the reward streams, R of them.
"""

from __future__ import annotations

from typing import Any, Protocol

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.attention import TeamAttention
from jaxrl.networks.initializers import embedding_normal, fan_in_normal, head_uniform
from jaxrl.networks.observations import ObservationEncoder
from jaxrl.networks.shapes import on_rows
from jaxrl.types import ActionSpec, BehaviorSpec


class NetworkShape(Protocol):
    """What the models read of the settings. Must be hashable (frozen)."""

    @property
    def hidden_units(self) -> int: ...
    @property
    def num_layers(self) -> int: ...


class Body(nn.Module):
    """`layers` times linear to `hidden` and swish: [..., E] -> [..., h]."""

    hidden: int
    layers: int
    kernel_init: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i in range(self.layers):
            x = nn.swish(on_rows(nn.Dense(self.hidden, kernel_init=self.kernel_init, name=f"layer_{i}"), x))
        return x


class ActionHeads(nn.Module):
    """[..., h] -> ActionDistribution; all branches are one linear layer with M outputs."""

    action: ActionSpec

    @nn.compact
    def __call__(self, x: jax.Array) -> ActionDistribution:
        c, m = self.action.continuous_size, self.action.mask_size
        mean, logits, log_sigma = jnp.zeros((*x.shape[:-1], 0)), jnp.zeros((*x.shape[:-1], 0)), jnp.zeros(0)
        if c:
            mean = on_rows(nn.Dense(c, kernel_init=fan_in_normal(0.2), name="mean"), x)
            log_sigma = self.param("log_sigma", nn.initializers.zeros, (c,))
        if m:
            logits = on_rows(nn.Dense(m, kernel_init=fan_in_normal(0.1), name="logits"), x)
        return ActionDistribution(mean=mean, log_sigma=log_sigma, logits=logits)


class Actor(nn.Module):
    """Policy: own observations -> ActionDistribution."""

    spec: BehaviorSpec
    settings: NetworkShape

    def setup(self) -> None:
        self.encoder = ObservationEncoder(self.spec)
        self.body = Body(self.settings.hidden_units, self.settings.num_layers, fan_in_normal(1.0))
        self.heads = ActionHeads(self.spec.action)

    def __call__(self, obs: tuple[jax.Array, ...]) -> ActionDistribution:
        return self.heads(self.encode(obs))

    def encode(self, obs: tuple[jax.Array, ...]) -> jax.Array:
        """Output of the body, [..., h]."""
        return self.body(self.encoder(obs))


class ValueNetwork(nn.Module):
    """V(own observations) per reward stream, [..., R]."""

    spec: BehaviorSpec
    settings: NetworkShape
    streams: tuple[str, ...]

    def setup(self) -> None:
        self.encoder = ObservationEncoder(self.spec)
        self.body = Body(self.settings.hidden_units, self.settings.num_layers, fan_in_normal(1.0))
        self.values = nn.Dense(len(self.streams), kernel_init=head_uniform)

    def __call__(self, obs: tuple[jax.Array, ...]) -> jax.Array:
        return on_rows(self.values, self.body(self.encoder(obs)))


class SharedActorCritic(nn.Module):
    """Actor with value heads on its body (`shared_critic: true`)."""

    spec: BehaviorSpec
    settings: NetworkShape
    streams: tuple[str, ...]

    def setup(self) -> None:
        self.encoder = ObservationEncoder(self.spec)
        self.body = Body(self.settings.hidden_units, self.settings.num_layers, fan_in_normal(1.0))
        self.heads = ActionHeads(self.spec.action)
        self.values = nn.Dense(len(self.streams), kernel_init=head_uniform)

    def __call__(self, obs: tuple[jax.Array, ...]) -> tuple[ActionDistribution, jax.Array]:
        """Distribution and value [..., R] with the body computed once."""
        x = self.encode(obs)
        return self.heads(x), on_rows(self.values, x)

    def encode(self, obs: tuple[jax.Array, ...]) -> jax.Array:
        """Output of the shared body, [..., h]."""
        return self.body(self.encoder(obs))

    def distribution(self, obs: tuple[jax.Array, ...]) -> ActionDistribution:
        """The policy alone."""
        return self.heads(self.encode(obs))

    def value(self, obs: tuple[jax.Array, ...]) -> jax.Array:
        """The value alone, [..., R]."""
        return on_rows(self.values, self.encode(obs))


class TeamCritic(nn.Module):
    """MA-POCA's centralised critic: team value and counterfactual baselines (Cohen et al. 2022; ML-Agents).

    value:      all present members' observations.
    baseline i: member i's observation without its action, and the observation-actions of the other present members.
    Inputs: obs, a tuple of [..., A, *shape]; action_encoding [..., A, C + M] (`actions.one_hot`); present, bool [...,
    A]; max_team, float scalar, the running maximum of the team size (`update_max_team`). Absent members may hold NaN.
    """

    spec: BehaviorSpec
    settings: NetworkShape
    streams: tuple[str, ...]

    def setup(self) -> None:
        hidden = self.settings.hidden_units
        self.encoder = ObservationEncoder(self.spec)
        self.embed_obs = nn.Dense(hidden, kernel_init=embedding_normal(hidden))
        self.embed_obs_action = nn.Dense(hidden, kernel_init=embedding_normal(hidden))
        self.attention = TeamAttention(hidden)
        self.body = Body(hidden, self.settings.num_layers, fan_in_normal((0.125 / hidden) ** 0.5))
        self.values = nn.Dense(len(self.streams), kernel_init=head_uniform)

    def __call__(
        self, obs: tuple[jax.Array, ...], action_encoding: jax.Array, present: jax.Array, max_team: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Value [..., R] and baseline [..., A, R]; a baseline of an absent member is finite and means nothing."""
        chex.assert_equal_shape_prefix([present, action_encoding, *obs], present.ndim)
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
        x, present_rows = self._encode(obs, present)
        pooled = self.attention.value_only(nn.swish(on_rows(self.embed_obs, x)), present_rows)
        return self._heads(pooled, present_rows, max_team).reshape(*present.shape[:-1], -1)

    def _encode(self, obs: tuple[jax.Array, ...], present: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Encodings [N, A, E] with absent members set to 0, and present as [N, A]: leading axes become one."""
        rows = present.astype(bool).reshape(-1, present.shape[-1])
        flat = [x.reshape(*rows.shape, *x.shape[present.ndim :]) for x in obs]
        clean = tuple(jnp.where(rows.reshape(*rows.shape, *[1] * (x.ndim - 2)), x, 0.0) for x in flat)
        return self.encoder(clean), rows

    def _heads(self, pooled: jax.Array, present: jax.Array, max_team: jax.Array) -> jax.Array:
        """pooled [..., h], present [..., A] (broadcast) -> [..., R]; the scaled team size joins after the body."""
        x = self.body(pooled)
        size = 2.0 * jnp.sum(present, axis=-1, keepdims=True) / max_team - 1.0
        size = jnp.broadcast_to(size.astype(jnp.float32), (*x.shape[:-1], 1))
        return on_rows(self.values, jnp.concatenate([x, size], axis=-1))


def update_max_team(max_team: jax.Array, present: jax.Array) -> jax.Array:
    """Running maximum (float32 scalar, at first 1) raised to the largest team of present [..., A]."""
    return jnp.maximum(max_team, jnp.max(jnp.sum(present.astype(jnp.float32), axis=-1)))
