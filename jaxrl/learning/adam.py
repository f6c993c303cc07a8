"""ML-Agents' Adam (Kingma and Ba 2015, arXiv 1412.6980): β 0.9 and 0.999, ε 1e-8, without clipping or decay."""

from __future__ import annotations

from typing import Any

import jax
import optax

ADAM = optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8)
"""The direction alone: a learning rate may be traced, and belongs to whoever descends."""


def descended(params: Any, gradient: Any, moments: Any, rate: float | jax.Array) -> tuple[Any, Any]:
    """The parameters after one step downhill, x − rate · direction, and the moments after it."""
    direction, moments = ADAM.update(gradient, moments)
    return jax.tree.map(lambda x, d: x - rate * d, params, direction), moments
