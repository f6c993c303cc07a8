"""Attention over the members of a team: the value and all counterfactual baselines in one pass.

ML-Agents runs one residual self-attention per set of entities: x = LN(x); softmax(q·k / √h) v in 4 heads; a linear
layer; LN(out + x); mean over the present ones (Cohen et al. 2021, arXiv 2111.05992). A team of A members has 1 + A such
sets: set 0, all observations (value), and set i, member i's observation with the others' observation-actions (baseline
i). All sets draw on the same 2A entities, so that the work is shared:
  - x, q, k, v and all scores q·k are computed once per entity; a set picks its queries and masks its keys;
  - the output layer is applied to v per head, before the weighting (U = v_head W_head): the (1 + A) A outputs are
    weighted sums of U, not products with an h x h matrix each;
  - the mean that the last LN would subtract is subtracted from W and its bias in advance.
Everything large is a plain matrix product: XLA's CPU backend is several times slower at reductions of broadcast
products, and at batched products that contract the first axis of a matrix. The small products therefore define their
own gradients.

Letters: N teams, A members, E entities (A observations, then A observation-actions), S sets, H heads, d = h / H.
"""

from __future__ import annotations

import math

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.networks.initializers import embedding_normal
from jaxrl.networks.products import inner_products, weighted_sums
from jaxrl.networks.shapes import as_row
from jaxrl.types import JaxrlError

HEADS = 4
ABSENT = -1e6  # score of an absent key, as in ML-Agents: a set without any present key gives equal weights, not NaN
EPSILON = 1e-5


class TeamAttention(nn.Module):
    """Pooled attention outputs of a team. The entries of absent members must be finite."""

    embedding: int
    dtype: str = "float32"  # dtype of the products

    def setup(self) -> None:
        if self.embedding % HEADS:
            raise JaxrlError(
                f"hidden_units: {self.embedding} is not a multiple of {HEADS}, the number of attention heads of the "
                f"team critic; use {self.embedding // HEADS * HEADS + HEADS}"
            )
        init = embedding_normal(self.embedding)
        self.qkv = nn.Dense(3 * self.embedding, dtype=self.dtype, kernel_init=init)
        self.out_kernel = self.param("out_kernel", init, (self.embedding, self.embedding))
        self.out_bias = self.param("out_bias", nn.initializers.zeros, (self.embedding,))

    def __call__(self, o: jax.Array, oa: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compute value [N, h] and baseline [N, A, h] from o, oa [N, A, h] and present, bool [N, A].

        Raises AssertionError for other shapes.
        """
        chex.assert_shape([o, oa], (*present.shape, self.embedding))
        members = present.shape[1]
        by_observation = np.concatenate([np.ones((1, members), bool), np.eye(members, dtype=bool)])
        pooled = self._attend(jnp.concatenate([o, oa], axis=1), present, by_observation)
        return pooled[:, 0], pooled[:, 1:]

    def value_only(self, o: jax.Array, present: jax.Array) -> jax.Array:
        """Compute the value alone: o [N, A, h], present bool [N, A] -> [N, h]. Raises AssertionError for others."""
        chex.assert_shape(o, (*present.shape, self.embedding))
        return self._attend(o, present, np.ones((1, present.shape[1]), bool))[:, 0]

    def _attend(self, entities: jax.Array, present: jax.Array, by_observation: np.ndarray) -> jax.Array:
        """Attend in all sets: entities [N, E, h] -> [N, S, h]; by_observation [S, A]: a enters s as observation."""
        n, count, h = entities.shape
        sets, members = by_observation.shape
        x = layer_norm(entities)
        q, k, v = jnp.split(self.qkv(x.reshape(-1, h)), 3, axis=-1)
        q, k = (jnp.swapaxes(part.reshape(n, count, HEADS, h // HEADS), 1, 2) for part in (q, k))
        scores = inner_products(q, k) / math.sqrt(h)  # [N, H, E, E]
        weights = _weights(_pick(scores, by_observation), present, by_observation)  # [N, H, S, A, E]
        weights = jnp.transpose(weights, (0, 2, 3, 1, 4)).reshape(n, sets * members, HEADS * count)
        out = weighted_sums(weights, self._project_out(v, n))
        bias = (self.out_bias - jnp.mean(self.out_bias)).astype(x.dtype)
        centred = out.reshape(n, sets, members, h) + _pick(x + as_row(bias, x), by_observation)
        return pool(centred, present)

    def _project_out(self, v: jax.Array, n: int) -> jax.Array:
        """Apply the output layer to each head's part, without mean over h: v [N·E, h] -> U [N, H·E, h]."""
        kernel = (self.out_kernel - jnp.mean(self.out_kernel, axis=1, keepdims=True)).astype(v.dtype)
        h = kernel.shape[0]
        parts = [slice(i * h // HEADS, (i + 1) * h // HEADS) for i in range(HEADS)]
        return jnp.concatenate([(v[:, part] @ kernel[part]).reshape(n, -1, h) for part in parts], axis=1)


def _pick(x: jax.Array, by_observation: np.ndarray) -> jax.Array:
    """Pick for each set the entity as which each member enters it: [..., E, c] -> [..., S, A, c]."""
    members = by_observation.shape[1]
    o, oa = x[..., None, :members, :], x[..., None, members:, :]
    if not oa.shape[-2]:
        return o
    return jnp.where(by_observation.reshape(*[1] * (o.ndim - 3), -1, members, 1), o, oa)


def _weights(scores: jax.Array, present: jax.Array, by_observation: np.ndarray) -> jax.Array:
    """Compute the softmax over a set's keys, scores and weights [N, H, S, A, E]; 0 for entities outside the set."""
    kinds = scores.shape[-1] // present.shape[1]
    key_present = jnp.tile(present, (1, kinds))[:, None, None, None, :]
    inside = np.concatenate([by_observation, ~by_observation][:kinds], axis=1)[None, None, :, None, :]
    return jax.nn.softmax(jnp.where(inside, jnp.where(key_present, scores, ABSENT), -jnp.inf), axis=-1)


def pool(centred: jax.Array, present: jax.Array) -> jax.Array:
    """Apply layer norm to rows of mean 0, then average over the present members: [N, S, A, h] -> [N, S, h].

    The mean is Σ / (number present + 1e-7), so that an empty team gives 0.
    """
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, dtype=jnp.float32) + EPSILON)
    share = present.astype(jnp.float32)
    share = share / (jnp.sum(share, axis=1, keepdims=True) + 1e-7)
    weights = (scale * share[:, None]).astype(centred.dtype)
    return jax.lax.dot_general(weights, centred, (((2,), (2,)), ((0, 1), (0, 1))))


def layer_norm(x: jax.Array) -> jax.Array:
    """Compute (x - mean) / sqrt(var + 1e-5) over the last axis, with biased variance and no parameters."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + EPSILON)
