"""Steps that MA-POCA and COMA have in common: the loss with a counterfactual baseline, and what statistics show.

Both functions raise AssertionError where shapes differ from those named.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from jaxrl.algorithms import on_policy
from jaxrl.algorithms.interface import Metrics
from jaxrl.algorithms.on_policy import Batch
from jaxrl.learning import losses
from jaxrl.networks.actions import ActionDistribution
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec

CHUNK = 1024
"""Members per pass of the critic over a rollout."""


def means(value: jax.Array, baseline: jax.Array, acted: jax.Array, settings: BehaviorSettings) -> Metrics:
    """Means of V and b [T, B, A, R] over the decisions, per reward stream."""
    metrics = on_policy.by_stream("value_estimate", value, acted, settings)
    return metrics | on_policy.by_stream("baseline_estimate", baseline, acted, settings)


def loss(
    dist: ActionDistribution,
    value: jax.Array,
    baseline: jax.Array,
    spec: BehaviorSpec,
    batch: Batch,
    epsilon: jax.Array,
    beta: jax.Array,
) -> tuple[jax.Array, Metrics]:
    """policy + 0.5 · (value + 0.5 · baseline) − β · entropy; V [N, R], b [N, A, R] of a minibatch of team states."""
    chex.assert_shape(value, (batch.acted.shape[0], baseline.shape[-1]))
    value = jnp.broadcast_to(value[:, None], baseline.shape)
    total, metrics = on_policy.policy_and_value_loss(dist, value, spec, batch, epsilon, beta)
    baseline_loss = losses.value_loss(baseline, batch.baseline, batch.returns, batch.acted, epsilon)
    return total + 0.25 * baseline_loss, metrics | {"baseline_loss": baseline_loss}
