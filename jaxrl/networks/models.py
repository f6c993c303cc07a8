"""Actors and critics: each is a `NetworkBody` and its heads.

Observations are a tuple of [..., *shape], already normalised, float32 or uint8; outputs are float32. `signals` names
the reward signals, R of them. The body shares the scope of its owner, so that parameters are named `encoder/...` and
`body/...` in every network.

With memory a network also takes its memory (`memory`: a carry, or `Sequences`). Calling it returns its outputs, `step`
its outputs and the new carry. Every member of a team has its own memories, also in the critics of whole teams, and
therefore its own value.
"""

from __future__ import annotations

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.masks import select
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.attention import TeamAttention
from jaxrl.networks.body import NetworkBody
from jaxrl.networks.heads import ActionHeads, SquashedHeads
from jaxrl.networks.initializers import embedding_normal, fan_in_normal, head_uniform
from jaxrl.networks.linear import Linear, on_columns
from jaxrl.networks.memory import Carry, Sequences, side_by_side
from jaxrl.networks.shapes import on_rows
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import BehaviorSpec

Obs = tuple[jax.Array, ...]


class Actor(nn.Module):
    """Policy: own observations -> ActionDistribution."""

    spec: BehaviorSpec
    settings: NetworkSettings
    made_with = ActionHeads

    def setup(self) -> None:
        self.network = NetworkBody(self.spec, self.settings, conditioned=True)
        nn.share_scope(self, self.network)
        self.heads = self.made_with(self.spec.action)

    def __call__(self, obs: Obs, memory: Carry | Sequences = ()) -> ActionDistribution:
        return self.step(obs, memory)[0]

    def step(self, obs: Obs, memory: Carry | Sequences) -> tuple[ActionDistribution, Carry]:
        """Compute the distribution, and the memory after these observations."""
        x, carry = self.network(obs, memory)
        return self.heads(x), carry

    def encode(self, obs: Obs, memory: Carry | Sequences = ()) -> jax.Array:
        """Compute the features that the heads read."""
        return self.network(obs, memory)[0]


class SquashedActor(Actor):
    """Policy like `Actor`, with heads for a squashed Gaussian (SAC)."""

    made_with = SquashedHeads


class ValueNetwork(nn.Module):
    """V(own observations) per reward signal, [..., R]."""

    spec: BehaviorSpec
    settings: NetworkSettings
    signals: tuple[str, ...]

    def setup(self) -> None:
        self.network = NetworkBody(self.spec, self.settings, conditioned=True)
        nn.share_scope(self, self.network)
        self.values = Linear(len(self.signals), head_uniform)

    def __call__(self, obs: Obs, memory: Carry | Sequences = ()) -> jax.Array:
        return self.step(obs, memory)[0]

    def step(self, obs: Obs, memory: Carry | Sequences) -> tuple[jax.Array, Carry]:
        """Compute the value, and the memory after these observations."""
        x, carry = self.network(obs, memory)
        return on_columns(self.values, x, from_columns=True), carry


class ActionValueNetwork(nn.Module):
    """Q(own observations, continuous action) per reward signal and output, [..., R, K].

    K = 1, or with branches M: Q of each choice of each branch.
    """

    spec: BehaviorSpec
    settings: NetworkSettings
    signals: tuple[str, ...]

    def setup(self) -> None:
        self.network = NetworkBody(self.spec, self.settings, conditioned=True)
        nn.share_scope(self, self.network)
        self.values = Linear(len(self.signals) * max(self.spec.action.mask_size, 1), head_uniform)

    def __call__(self, obs: Obs, action: jax.Array, memory: Carry | Sequences = ()) -> jax.Array:
        seen = self.network.encode(obs)
        encoding = jnp.concatenate([seen, action.astype(seen.dtype)], axis=-1)
        x, _ = self.network.remember(self.network.hidden(encoding), memory)
        q = on_columns(self.values, x, from_columns=True)
        return q.reshape(*q.shape[:-1], len(self.signals), -1)


class SharedActorCritic(Actor):
    """Actor with value heads on its body (`shared_critic: true`)."""

    signals: tuple[str, ...]

    def setup(self) -> None:
        super().setup()
        self.values = Linear(len(self.signals), head_uniform)

    def __call__(self, obs: Obs, memory: Carry | Sequences = ()) -> tuple[ActionDistribution, jax.Array]:
        """Compute distribution and value [..., R], with the body computed once."""
        x = self.encode(obs, memory)
        return self.heads(x), on_columns(self.values, x, from_columns=True)

    def distribution(self, obs: Obs, memory: Carry | Sequences = ()) -> ActionDistribution:
        """Compute the distribution alone."""
        return self.step(obs, memory)[0]

    def value(self, obs: Obs, memory: Carry | Sequences = ()) -> jax.Array:
        """Compute the value alone, [..., R]."""
        return on_columns(self.values, self.encode(obs, memory), from_columns=True)


class Critic(nn.Module):
    """Critic with team value and counterfactual baselines; `step` returns both and the new memory.

    Inputs: obs, a tuple of [..., A, *shape]; action_encoding [..., A, C + M] (`actions.one_hot`); present, bool [...,
    A]; max_team, float scalar, the running maximum of the team size (`update_max_team`). Absent members may hold NaN.
    """

    spec: BehaviorSpec
    settings: NetworkSettings
    signals: tuple[str, ...]

    def __call__(
        self,
        obs: Obs,
        action_encoding: jax.Array,
        present: jax.Array,
        max_team: jax.Array,
        memory: Carry | Sequences = (),
    ) -> tuple[jax.Array, jax.Array]:
        """Compute value [..., R], with memory [..., A, R], and baseline [..., A, R], arbitrary for absent members."""
        return self.step(obs, action_encoding, present, max_team, memory)[0]


class TeamCritic(Critic):
    """MA-POCA's centralised critic: team value and counterfactual baselines (Cohen et al. 2022; ML-Agents).

    value:      all present members' observations.
    baseline i: member i's observation without its action, and the observation-actions of the other present members.
    A member's memory is [..., A, 2, m]: for the value and for its baseline, by one network.
    Raises AssertionError for other shapes.
    """

    def setup(self) -> None:
        hidden = self.settings.hidden_units
        self.network = NetworkBody(self.spec, self.settings, fan_in_normal((0.125 / hidden) ** 0.5))
        nn.share_scope(self, self.network)
        dtype = self.settings.compute_dtype
        self.embed_obs = nn.Dense(hidden, dtype=dtype, kernel_init=embedding_normal(hidden))
        self.embed_obs_action = nn.Dense(hidden, dtype=dtype, kernel_init=embedding_normal(hidden))
        self.attention = TeamAttention(hidden, dtype)
        self.values = Linear(len(self.signals), head_uniform)

    def step(
        self, obs: Obs, action_encoding: jax.Array, present: jax.Array, max_team: jax.Array, memory: Carry | Sequences
    ) -> tuple[tuple[jax.Array, jax.Array], Carry]:
        """Compute value and baseline, and the memory after these observations and actions."""
        o, oa = self.embed(obs, action_encoding, present)
        return self.judge(o, oa, present, max_team, memory)

    def embed(self, obs: Obs, action_encoding: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Embed members for attention: by observation, and by observation and action, both [N, A, h]."""
        chex.assert_shape(
            action_encoding, (*present.shape, self.spec.action.continuous_size + self.spec.action.mask_size)
        )
        chex.assert_equal_shape_prefix([present, *obs], present.ndim)
        x, present_rows = self._encode(obs, present)
        actions = action_encoding.reshape(*x.shape[:2], -1)
        actions = jnp.where(present_rows[..., None], actions, 0.0).astype(x.dtype)
        o = nn.swish(on_rows(self.embed_obs, x))
        return o, nn.swish(on_rows(self.embed_obs_action, jnp.concatenate([x, actions], axis=-1)))

    def judge(
        self, o: jax.Array, oa: jax.Array, present: jax.Array, max_team: jax.Array, memory: Carry | Sequences = ()
    ) -> tuple[tuple[jax.Array, jax.Array], Carry]:
        """Compute `step` from the embeddings of `embed`, o and oa [N, A, h], of members of any behavior."""
        present_rows = present.astype(bool).reshape(-1, present.shape[-1])
        value, baseline = self.attention(o, oa, present_rows)
        features = self.network.hidden(jnp.concatenate([value[:, None], baseline], axis=1))
        if self.settings.memory is None:
            out = self._values(features.astype(jnp.float32), present_rows[:, None], max_team)
            value, baseline = out[:, 0], out[:, 1:]
            return (value.reshape(*present.shape[:-1], -1), baseline.reshape(*present.shape, -1)), ()
        of_value = jnp.broadcast_to(features[:, :1], baseline.shape)
        both = jnp.stack([of_value, features[:, 1:]], axis=2).reshape(*present.shape, 2, -1)
        both, carry = self.network.remember(both, side_by_side(memory))
        out = self._values(both, present[..., None, None, :], max_team)
        return (out[..., 0, :], out[..., 1, :]), carry

    def value_only(self, obs: Obs, present: jax.Array, max_team: jax.Array) -> jax.Array:
        """Compute the value [..., R] alone, without baselines and memory."""
        chex.assert_equal_shape_prefix([present, *obs], present.ndim)
        x, present_rows = self._encode(obs, present)
        pooled = self.attention.value_only(nn.swish(on_rows(self.embed_obs, x)), present_rows)
        features, _ = self.network.remember(self.network.hidden(pooled), ())
        return self._values(features, present_rows, max_team).reshape(*present.shape[:-1], -1)

    def _encode(self, obs: Obs, present: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Encode members, absent ones as 0, to [N, A, E], and return present as [N, A]: leading axes become one."""
        rows = present.astype(bool).reshape(-1, present.shape[-1])
        flat = [x.reshape(*rows.shape, *x.shape[present.ndim :]) for x in obs]
        clean = tuple(select(rows, x, 0) for x in flat)
        return self.network.encode(clean), rows

    def _values(self, x: jax.Array, present: jax.Array, max_team: jax.Array) -> jax.Array:
        """Compute values [..., R] from features [..., F] and the scaled team size by present [..., A] (broadcast)."""
        chex.assert_rank(max_team, 0)
        size = 2.0 * jnp.sum(present, axis=-1, keepdims=True) / max_team - 1.0
        size = jnp.broadcast_to(size.astype(jnp.float32), (*x.shape[:-1], 1)).reshape(1, -1)
        return on_columns(lambda columns: self.values(jnp.concatenate([columns, size])), x, from_columns=True)


def update_max_team(max_team: jax.Array, present: jax.Array) -> jax.Array:
    """Raise the running maximum (float32 scalar, at first 1) to the largest team of present [..., A]."""
    return jnp.maximum(max_team, jnp.max(jnp.sum(present.astype(jnp.float32), axis=-1)))
