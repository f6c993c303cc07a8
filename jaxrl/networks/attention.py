"""Attention over the members of a team: the value and all counterfactual baselines in one pass.

The reference runs one residual self-attention per set of entities: x = LN(x); softmax(q·k / √h) v in 4 heads; a linear
layer; LN(out + x); mean over the present (ML-Agents' `ResidualSelfAttention`; Cohen et al. 2022 for the baseline). A
team of A members has 1 + A such sets: all observations (value), and for each member i its own observation with the
others' observation-actions (baseline i). They share entities, so this file shares the work:
  - q, k, v are projected once per entity: 2A entities instead of A + A²;
  - the four score matrices between observations (o) and observation-actions (oa) are computed once, and each set picks
    its scores from them;
  - the output layer is applied per head to v, before the weighting (U = v_head W_head), so that the A x A outputs of
    all baselines are weighted sums of A vectors, not A x A matrix products.
Letters: N teams x time, A members, h embedding, H heads, d = h / H.
"""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.networks.initializers import embedding_normal
from jaxrl.networks.shapes import as_row
from jaxrl.types import JaxrlError

HEADS = 4
ABSENT = -1e6


class TeamAttention(nn.Module):
    """Pooled attention outputs of a team. All arrays float32; absent members must be finite."""

    embedding: int

    def setup(self) -> None:
        if self.embedding % HEADS:
            raise JaxrlError(
                f"hidden_units: {self.embedding} is not a multiple of {HEADS}, the number of attention heads of "
                f"the team critic; use {self.embedding // HEADS * HEADS + HEADS}"
            )
        init = embedding_normal(self.embedding)
        self.qkv = nn.Dense(3 * self.embedding, kernel_init=init)
        self.out_kernel = self.param("out_kernel", init, (self.embedding, self.embedding))
        self.out_bias = self.param("out_bias", nn.initializers.zeros, (self.embedding,))

    def __call__(self, o: jax.Array, oa: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
        """o, oa: [N, A, h]; present: bool [N, A]. Gives value [N, h] and baseline [N, A, h]."""
        members = o.shape[1]
        x, scores, u = self._project(jnp.concatenate([o, oa], axis=1))
        value = _value(x[:, :members], u[:, :, :members], self.out_bias, scores[..., :members, :members], present)
        return value, _baselines(x, u, self.out_bias, scores, present)

    def value_only(self, o: jax.Array, present: jax.Array) -> jax.Array:
        """The value part alone: o [N, A, h], present bool [N, A] -> [N, h]."""
        x, scores, u = self._project(o)
        return _value(x, u, self.out_bias, scores, present)

    def _project(self, entities: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """entities [N, E, h] -> x = LN(entities) [N, E, h], scores [N, H, E(query), E(key)], U [N, H, E, h].

        Products run on plain matrices of N·E rows: with more axes XLA transposes whole activations for the gradient of
        the kernels, which costs as much as the products themselves.
        """
        n, count, h = entities.shape
        d = h // HEADS
        x = layer_norm(entities)
        q, k, v = jnp.split(self.qkv(x.reshape(-1, h)), 3, axis=-1)
        heads = [slice(i * d, (i + 1) * d) for i in range(HEADS)]
        u = jnp.stack([(v[:, head] @ self.out_kernel[head]).reshape(n, count, h) for head in heads], axis=1)
        q, k = q.reshape(n, count, HEADS, d), k.reshape(n, count, HEADS, d)
        return x, jnp.einsum("nqhd,nmhd->nhqm", q, k) / math.sqrt(h), u


def _value(x: jax.Array, u: jax.Array, bias: jax.Array, scores: jax.Array, present: jax.Array) -> jax.Array:
    """x [N, A, h], u [N, H, A, h], scores [N, H, A(query), A(key)] -> [N, h]."""
    p = jax.nn.softmax(jnp.where(present[:, None, None], scores, ABSENT), axis=-1)
    out = _weighted(jnp.swapaxes(p, 1, 2), u)
    return masked_pool(layer_norm(out + as_row(bias, out) + x), present)


def _baselines(x: jax.Array, u: jax.Array, bias: jax.Array, scores: jax.Array, present: jax.Array) -> jax.Array:
    """x [N, 2A, h], u [N, H, 2A, h], scores [N, H, 2A(query), 2A(key)]; first the A o, then the A oa. Gives [N, A, h].

    In set i, entity i is the observation o_i and entity j != i the observation-action oa_j.
    """
    a = present.shape[1]
    own = jnp.eye(a, dtype=bool)
    own_query, own_key = own[None, None, :, :, None], own[None, None, :, None]  # [1, 1, i, q, 1] and [1, 1, i, 1, m]
    o_o, o_oa, oa_o, oa_oa = scores[..., :a, :a], scores[..., :a, a:], scores[..., a:, :a], scores[..., a:, a:]
    to_own = jnp.where(own_query, jnp.swapaxes(o_o, 2, 3)[..., None], jnp.swapaxes(oa_o, 2, 3)[..., None])
    scores = jnp.where(own_key, to_own, jnp.where(own_query, o_oa[:, :, :, None], oa_oa[:, :, None]))
    p = jax.nn.softmax(jnp.where(present[:, None, None, None], scores, ABSENT), axis=-1)  # [N, H, i, q, m]
    split = jnp.stack([jnp.where(own_key, p, 0.0), jnp.where(own_key, 0.0, p)], axis=4)  # [N, H, i, q, 2, m]
    weights = split.transpose(0, 2, 3, 1, 4, 5).reshape(-1, a * a, 2 * HEADS * a)
    # The entity itself joins as one more weighted vector: chosen by `where`, its gradient would be a slow reduction.
    eye = np.eye(a, dtype=np.float32)
    itself = np.stack([eye[:, :, None] * eye, (1.0 - eye)[:, :, None] * eye], axis=2).reshape(a * a, 2 * a)
    weights = jnp.concatenate([weights, jnp.broadcast_to(itself, (x.shape[0], *itself.shape))], axis=-1)
    out = weights @ jnp.concatenate([u.reshape(x.shape[0], 2 * HEADS * a, -1), x], axis=1)
    out = out.reshape(-1, a, a, x.shape[-1])
    return masked_pool(layer_norm(out + as_row(bias, out)), present[:, None])


def _weighted(p: jax.Array, u: jax.Array) -> jax.Array:
    """Σ over heads and members: p [N, Q, H, A], u [N, H, A, h] -> [N, Q, h], one matrix product per team."""
    n, queries = p.shape[:2]
    return p.reshape(n, queries, -1) @ u.reshape(n, -1, u.shape[-1])


def masked_pool(x: jax.Array, present: jax.Array) -> jax.Array:
    """Σ over present members of x [..., A, h] / (number present + 1e-7); 0 for an empty team."""
    weight = present.astype(jnp.float32)
    total = jnp.sum(x * weight[..., None], axis=-2)
    return total / (jnp.sum(weight, axis=-1, keepdims=True) + 1e-7)


def layer_norm(x: jax.Array) -> jax.Array:
    """(x - mean) / sqrt(var + 1e-5) over the last axis, biased variance, nothing learned."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + 1e-5)
