"""The team critic written down as the reference describes it: one attention per set of entities, nothing shared."""

from __future__ import annotations

import jax
import jax.numpy as jnp

HEADS = 4


def team_critic(params, x, actions, present, max_team):
    """x [N, A, E], actions [N, A, C + M], present [N, A], all finite -> value [N, R], baseline [N, A, R]."""
    p = params["params"]
    o = jax.nn.swish(linear(p["embed_obs"], x))
    oa = jax.nn.swish(linear(p["embed_obs_action"], jnp.concatenate([x, actions], axis=-1)))
    value = head(p, attend(p["attention"], o, present), present, max_team)

    def baseline(i):
        entities = jnp.where((jnp.arange(x.shape[1]) == i).reshape(1, -1, 1), o, oa)
        return head(p, attend(p["attention"], entities, present), present, max_team)

    return value, jnp.swapaxes(jax.vmap(baseline)(jnp.arange(x.shape[1])), 0, 1)


def attend(p, entities, present):
    """Residual self-attention over entities [N, A, h], mean over the present ones -> [N, h]."""
    h = entities.shape[-1]
    x = layer_norm(entities)
    q, k, v = jnp.split(linear(p["qkv"], x), 3, axis=-1)
    heads = []
    for i in range(HEADS):
        part = slice(i * h // HEADS, (i + 1) * h // HEADS)
        scores = jnp.einsum("nqd,nkd->nqk", q[..., part], k[..., part]) / jnp.sqrt(float(h))
        absent = 1.0 - present[:, None, :].astype(jnp.float32)
        weights = jax.nn.softmax((1.0 - absent) * scores - 1e6 * absent, axis=-1)
        heads.append(jnp.einsum("nqk,nkd->nqd", weights, v[..., part]))
    out = jnp.concatenate(heads, axis=-1) @ p["out_kernel"] + p["out_bias"].reshape(1, 1, -1)
    pooled = layer_norm(out + x) * present[..., None]
    return pooled.sum(1) / (present.sum(1, keepdims=True) + 1e-7)


def head(p, pooled, present, max_team):
    """Body, number of agents, value heads: [N, h] -> [N, R]."""
    x = pooled
    for name in sorted(p["body"]):
        x = jax.nn.swish(linear(p["body"][name], x))
    size = 2.0 * present.sum(1, keepdims=True) / max_team - 1.0
    return linear(p["values"], jnp.concatenate([x, size], axis=-1))


def linear(p, x):
    return x @ p["kernel"] + p["bias"].reshape(*[1] * (x.ndim - 1), -1)


def layer_norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
