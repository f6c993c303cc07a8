"""Entities: observations of variable length (N max x F), read by one attention over all of them, as in ML-Agents.

    self     = swish(linear(all other encodings of the agent)), if there are any
    entity e = swish(linear([self, features of e])), one linear layer for each observation
    x = LN(e); a = softmax(q·k / √128) v in 4 heads; y = LN(linear(a) + x); encoding = mean of y over the present ones

An entity is absent if the sum of squares of its features is below 0.01, so that rows of zeros are padding. An absent
entity is no key and no part of the mean, so that its features have no effect. With no entity present the encoding is 0.
The order of the entities has no effect.

The part of `self` is multiplied once per agent, not once per entity. The widths are fixed, whatever `hidden_units` is.
Letters: N agents, E entities of all observations, F features, H heads, d = 128 / H.
"""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.networks.attention import ABSENT, HEADS, layer_norm, pool
from jaxrl.networks.encoders import as_float, is_goal
from jaxrl.networks.initializers import embedding_normal
from jaxrl.networks.products import inner_products, weighted_sums
from jaxrl.networks.shapes import on_rows
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import ObservationSpec

EMBEDDING = 128
PRESENT_FROM = 0.01
"""Smallest sum of squares of a present entity."""


class EntityEncoder(nn.Module):
    """Encoder of entity observations [..., n, F] and the other encodings `own` [..., E0] or None -> [..., 128]."""

    observations: tuple[ObservationSpec, ...]
    settings: NetworkSettings

    @nn.compact
    def __call__(self, xs: tuple[jax.Array, ...], own: jax.Array | None) -> jax.Array:
        init, dtype = embedding_normal(EMBEDDING), self.settings.compute_dtype
        rows = [as_float(x.reshape(-1, *o.shape)) for x, o in zip(xs, self.observations, strict=True)]
        seen = None
        if own is not None:
            self_layer = nn.Dense(EMBEDDING, dtype=dtype, kernel_init=init, name="self")
            seen = nn.swish(self_layer(own.reshape(-1, own.shape[-1])))
        embedded = [Embedding(name=f"embed_{i}")(x.astype(dtype), seen) for i, x in enumerate(rows)]
        present = jnp.concatenate([jnp.sum(jnp.square(x), axis=-1) >= PRESENT_FROM for x in rows], axis=1)
        pooled = SelfAttention(name="attention")(jnp.concatenate(embedded, axis=1), present)
        return pooled.reshape(*xs[0].shape[:-2], EMBEDDING)


class Embedding(nn.Module):
    """Embedding swish(linear([self, features])): x [N, n, F], seen [N, 128] or None -> [N, n, 128]."""

    @nn.compact
    def __call__(self, x: jax.Array, seen: jax.Array | None) -> jax.Array:
        before = 0 if seen is None else EMBEDDING
        kernel = self.param("kernel", embedding_normal(EMBEDDING), (before + x.shape[-1], EMBEDDING))
        bias = self.param("bias", nn.initializers.zeros, (EMBEDDING,))
        kernel, bias = kernel.astype(x.dtype), bias.astype(x.dtype)
        common = bias.reshape(1, -1) if seen is None else seen @ kernel[:before] + bias.reshape(1, -1)
        return nn.swish(on_rows(lambda rows: rows @ kernel[before:], x) + common[:, None])


class SelfAttention(nn.Module):
    """Residual self attention over entities [N, E, 128] and their mean over the present ones, bool [N, E]: [N, 128]."""

    @nn.compact
    def __call__(self, entities: jax.Array, present: jax.Array) -> jax.Array:
        init = embedding_normal(EMBEDDING)
        x = layer_norm(entities)
        projected = on_rows(nn.Dense(3 * EMBEDDING, dtype=x.dtype, kernel_init=init, name="qkv"), x)
        parts = (part.reshape(*x.shape[:-1], HEADS, EMBEDDING // HEADS) for part in jnp.split(projected, 3, axis=-1))
        q, k, v = (jnp.swapaxes(part, 1, 2) for part in parts)  # [N, H, E, d]
        scores = inner_products(q, k) / math.sqrt(EMBEDDING)
        weights = jax.nn.softmax(jnp.where(present[:, None, None, :], scores, ABSENT), axis=-1)
        attended = jnp.swapaxes(weighted_sums(weights, v), 1, 2).reshape(x.shape)
        kernel = self.param("out_kernel", init, (EMBEDDING, EMBEDDING))
        bias = self.param("out_bias", nn.initializers.zeros, (EMBEDDING,))
        # the mean that the last layer norm would subtract is subtracted from kernel and bias; x has mean 0
        kernel, bias = kernel - jnp.mean(kernel, axis=1, keepdims=True), bias - jnp.mean(bias)
        kernel, bias = kernel.astype(x.dtype), bias.astype(x.dtype)
        out = on_rows(lambda rows: rows @ kernel + bias.reshape(1, -1), attended)
        return pool((out + x)[:, None], present)[:, 0]


def entities_problem(observation: ObservationSpec, settings: NetworkSettings) -> str:
    """Return the problem of a goal of variable length; "" for other observations."""
    if not is_goal(observation):
        return ""
    return (
        "is a goal of variable length, which neither ML-Agents nor jaxrl can read: give the goal as a vector or an "
        "image sensor, or clear the goal signal of this sensor"
    )
