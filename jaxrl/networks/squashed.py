"""Actions squashed by tanh, a = tanh(u) with u Gaussian, σ of the state (Haarnoja et al. 2018, appendix C).

    log p(a) = log N(u; μ, σ) - 2 (ln 2 - u - softplus(-2u)),  per dimension; the last term is ln(1 - tanh² u)

The environment gets the action itself, within (-1, 1); u is never stored. `log_sigma` of the distribution is [..., C].
Branches are as in `actions`.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.networks import actions
from jaxrl.networks.actions import ActionDistribution
from jaxrl.types import Action, ActionSpec


def sample(key: jax.Array, dist: ActionDistribution, mask: jax.Array, spec: ActionSpec) -> Action:
    """Draw `actions.sample` and squash it. The key is consumed, or is the noise that `actions.noise` drew from it."""
    raw = actions.sample(key, dist, mask, spec)
    return raw._replace(continuous=jnp.tanh(raw.continuous))


def mode(dist: ActionDistribution, mask: jax.Array, spec: ActionSpec) -> Action:
    """Return the squashed mean and the most probable allowed index of each branch."""
    raw = actions.mode(dist, mask, spec)
    return raw._replace(continuous=jnp.tanh(raw.continuous))


def drawn(dist: ActionDistribution, normal: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute a and log p(a), both [..., C], from u = μ + σ · normal; gradients flow through both."""
    sigma = jnp.exp(dist.log_sigma)
    u = dist.mean + sigma * normal
    squares = jnp.square(u - dist.mean) / (2.0 * jnp.square(sigma) + actions.EPSILON)
    gaussian = -squares - jnp.log(sigma + actions.EPSILON) - 0.5 * math.log(2.0 * math.pi)
    return jnp.tanh(u), gaussian - 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))
