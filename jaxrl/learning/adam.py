"""ML-Agents' Adam (Kingma and Ba 2015, arXiv 1412.6980): β 0.9 and 0.999, ε 1e-8, without clipping or decay."""

from __future__ import annotations

from typing import Any

import jax
import optax

ADAM = optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8)
"""Direction of a step, without the learning rate: that one may be traced and is applied by the caller."""


def descended(params: Any, gradient: Any, moments: Any, rate: float | jax.Array) -> tuple[Any, Any]:
    """Take one step downhill, x − rate · direction. Return the new parameters and the new moments."""
    direction, moments = ADAM.update(gradient, moments)
    return jax.tree.map(lambda x, d: x - rate * d, params, direction), moments
