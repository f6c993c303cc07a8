"""Steps that MA-POCA and COMA have in common: the loss with a counterfactual baseline, memory, statistics.

All functions raise AssertionError where shapes differ from those named.
"""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms import batches, on_policy
from jaxrl.algorithms.batches import Batch
from jaxrl.algorithms.interface import Decision, Metrics, PolicyState
from jaxrl.learning import losses
from jaxrl.networks import actions, normalizer
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.joint import JointCritic
from jaxrl.networks.models import TeamCritic
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec

Obs = tuple[jax.Array, ...]

CHUNK = 1024
"""Members per pass of the critic over a rollout."""


def means(value: jax.Array, baseline: jax.Array, rollout: Rollout, settings: BehaviorSettings) -> Metrics:
    """Means of V and b [T, B, A, R] over the trajectories, per reward stream."""
    metrics = batches.by_stream("value_estimate", value, rollout, settings)
    return metrics | batches.by_stream("baseline_estimate", baseline, rollout, settings)


def of_each_member(value: jax.Array, baseline: jax.Array) -> jax.Array:
    """V of the team [..., R] as that of each member, as b [..., A, R]; with memory it is that already."""
    if value.ndim < baseline.ndim:
        chex.assert_shape(value, (*baseline.shape[:-2], baseline.shape[-1]))
        value = jnp.broadcast_to(value[..., None, :], baseline.shape)
    chex.assert_equal_shape([value, baseline])
    return value


def remember(
    critic: TeamCritic | JointCritic,
    spec: BehaviorSpec,
    state: PolicyState,
    obs: Obs,
    present: jax.Array,
    decision: Decision,
) -> dict[str, Any]:
    """The memory after a decision, that of the critic too: what it looks at are all observations and actions."""
    shown = normalizer.normalize_all(state.normalizer, obs)
    encoding = actions.one_hot(decision.action, spec.action)
    step = on_policy.applied(critic, type(critic).step)
    # The size of the team joins after the memory, so that any will do.
    _, after = step(state.critic, shown, encoding, present, np.float32(1.0), decision.carry["critic"])
    return {**decision.carry, "critic": after}


def loss(
    dist: ActionDistribution,
    value: jax.Array,
    baseline: jax.Array,
    spec: BehaviorSpec,
    batch: Batch,
    epsilon: jax.Array,
    beta: jax.Array,
) -> tuple[jax.Array, Metrics]:
    """policy + 0.5 · (value + 0.5 · baseline) − β · entropy; V [N, R], b [N, A, R] of a minibatch of team states.

    With memory V [N, L, A, R] and b [N, L, A, R] of sequences.
    """
    value = of_each_member(value, baseline)
    total, metrics = on_policy.policy_and_value_loss(dist, value, spec, batch, epsilon, beta)
    baseline_loss = losses.value_loss(baseline, batch.baseline, batch.returns, batch.acted, epsilon)
    return total + 0.25 * baseline_loss, metrics | {"baseline_loss": baseline_loss}
