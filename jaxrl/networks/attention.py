"""Attention over the members of a team: the value and all counterfactual baselines in one pass.

The reference runs one residual self-attention per set of entities: x = LN(x); softmax(q·k / √h) v in 4 heads; a linear
layer; LN(out + x); mean over the present (ML-Agents' `ResidualSelfAttention`; Cohen et al. 2022 for the baseline). A team
of A members has 1 + A such sets: all observations (value), and for each member i its own observation with the others'
observation-actions (baseline i). They share entities, so this file shares the work:
  - q, k, v are projected once per entity: 2A entities instead of A + A²;
  - the four score matrices between observations (o) and observation-actions (oa) are computed once, and each set picks
    its scores from them;
  - the output layer is applied per head to v, before the weighting (U = v_head W_head), so that the A x A outputs of all
    baselines are weighted sums of A vectors, not A x A matrix products.
Letters: N teams x time, A members, h embedding, H heads, d = h / H.
"""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

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
                f"hidden_units: {self.embedding} is not a multiple of {HEADS}, the number of attention heads of the team "
                f"critic; use {self.embedding // HEADS * HEADS + HEADS}"
            )
        init = embedding_normal(self.embedding)
        self.qkv = nn.Dense(3 * self.embedding, kernel_init=init)
        self.out_kernel = self.param("out_kernel", init, (self.embedding, self.embedding))
        self.out_bias = self.param("out_bias", nn.initializers.zeros, (self.embedding,))

    def __call__(self, o: jax.Array, oa: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
        """o, oa: [N, A, h]; present: bool [N, A]. Gives value [N, h] and baseline [N, A, h]."""
        x = layer_norm(jnp.stack([o, oa]))
        q, k, u = self._project(x)
        scores = jnp.einsum("xnqhd,ynmhd->xynqmh", q, k) / math.sqrt(self.embedding)
        value = _value(x[0], u[0], self.out_bias, scores[0, 0], present)
        return value, _baselines(x, u, self.out_bias, scores, present)

    def value_only(self, o: jax.Array, present: jax.Array) -> jax.Array:
        """The value part alone: o [N, A, h], present bool [N, A] -> [N, h]."""
        x = layer_norm(o)
        q, k, u = self._project(x)
        scores = jnp.einsum("nqhd,nmhd->nqmh", q, k) / math.sqrt(self.embedding)
        return _value(x, u, self.out_bias, scores, present)

    def _project(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """x [..., h] -> q, k [..., H, d] and U [..., H, h]."""
        d = self.embedding // HEADS
        q, k, v = jnp.split(self.qkv(x).reshape(*x.shape[:-1], 3, HEADS, d), 3, axis=-3)
        kernel = self.out_kernel.reshape(HEADS, d, self.embedding)
        u = jnp.einsum("...hd,hde->...he", v[..., 0, :, :], kernel)
        return q[..., 0, :, :], k[..., 0, :, :], u


def _value(x: jax.Array, u: jax.Array, bias: jax.Array, scores: jax.Array, present: jax.Array) -> jax.Array:
    """x [N, A, h], u [N, A, H, h], scores [N, A(query), A(key), H] -> [N, h]."""
    p = jax.nn.softmax(jnp.where(present[:, None, :, None], scores, ABSENT), axis=2)
    out = jnp.einsum("nqmh,nmhe->nqe", p, u)
    return masked_pool(layer_norm(out + as_row(bias, out) + x), present)


def _baselines(x: jax.Array, u: jax.Array, bias: jax.Array, scores: jax.Array, present: jax.Array) -> jax.Array:
    """x [2, N, A, h], u [2, N, A, H, h], scores [2(query), 2(key), N, A, A, H]; index 0 is o, 1 is oa. Gives [N, A, h].

    In set i, entity i is the observation o_i and entity j != i the observation-action oa_j.
    """
    own = jnp.eye(present.shape[1], dtype=bool)
    own_query = own[None, :, :, None, None]  # [1, i, q, 1, 1]
    own_key = own[None, :, None, :, None]  # [1, i, 1, m, 1]
    (oo, oa), (ao, aa) = scores
    own_scores = jnp.where(own_query, jnp.swapaxes(oo, 1, 2)[:, :, :, None], jnp.swapaxes(ao, 1, 2)[:, :, :, None])
    scores = jnp.where(own_key, own_scores, jnp.where(own_query, oa[:, :, None], aa[:, None]))
    p = jax.nn.softmax(jnp.where(present[:, None, None, :, None], scores, ABSENT), axis=3)
    out = jnp.einsum("niqmh,nmhe->niqe", jnp.where(own_key, 0.0, p), u[1])
    out += jnp.einsum("niqh,nihe->niqe", jnp.sum(jnp.where(own_key, p, 0.0), axis=3), u[0])
    residual = jnp.where(own[None, :, :, None], x[0][:, :, None], x[1][:, None])
    return masked_pool(layer_norm(out + as_row(bias, out) + residual), present[:, None])


def masked_pool(x: jax.Array, present: jax.Array) -> jax.Array:
    """Σ over present members of x [..., A, h] / (number present + 1e-7); 0 for an empty team."""
    weight = present.astype(jnp.float32)
    total = jnp.sum(x * weight[..., None], axis=-2)
    return total / (jnp.sum(weight, axis=-1, keepdims=True) + 1e-7)


def layer_norm(x: jax.Array) -> jax.Array:
    """(x - mean) / sqrt(var + 1e-5) over the last axis, biased variance, nothing learned."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + 1e-5)
