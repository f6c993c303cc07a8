"""The actor of an on-policy algorithm: it chooses actions, and says how likely it had chosen those of somebody else.

Functions raise AssertionError where shapes differ from those named, so that nothing broadcasts by accident.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chex
import jax

from jaxrl.algorithms.interface import Decision, Params, PolicyState
from jaxrl.networks import actions, normalizer
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.memory import part
from jaxrl.types import Action, BehaviorSpec

Distribution = Callable[..., ActionDistribution]
"""(policy parameters, normalised observations, memory or `Sequences` or ()) → what the actor says."""

Step = Callable[[Params, tuple[jax.Array, ...], Any], tuple[ActionDistribution, Any]]
"""The same for one decision, with the memory after it."""


def act(
    step: Step,
    spec: BehaviorSpec,
    deterministic: bool,
    state: PolicyState,
    obs: tuple[jax.Array, ...],
    action_mask: jax.Array,
    carry: Any,
    key: jax.Array,
) -> Decision:
    """Choose an action for every member and note its log-probabilities per column.

    key: consumed, or what `actions.noise` drew from it; obs: [..., A, *shape]; action_mask: bool [..., A, M].
    """
    chex.assert_axis_dimension(action_mask, -1, spec.action.mask_size)
    chex.assert_shape(obs, [(*action_mask.shape[:-1], *sensor.shape) for sensor in spec.observations])
    dist, after = step(state.params, normalizer.normalize_all(state.normalizer, obs), part(carry, "actor"))
    if deterministic:
        action = actions.mode(dist, action_mask, spec.action)
    else:
        action = actions.sample(key, dist, action_mask, spec.action)
    log_prob = actions.log_prob(dist, action, action_mask, spec.action)
    carry = {**carry, "actor": after} if carry else ()
    return Decision(action=action, sent=actions.to_environment(action), extras={"log_prob": log_prob}, carry=carry)


def adopt(
    distribution: Distribution,
    spec: BehaviorSpec,
    state: PolicyState,
    obs: tuple[jax.Array, ...],
    action_mask: jax.Array,
    carry: Any,
    action: Action,
) -> tuple[Action, dict[str, jax.Array]]:
    """An action that somebody else took, as if this policy had drawn it: raw, with its log-probabilities.

    obs: [..., A, *shape]; action_mask: bool [..., A, M]; action, as the environment has it: [..., A, C], [..., A, D].
    """
    raw = actions.from_environment(action)
    dist = distribution(state.params, normalizer.normalize_all(state.normalizer, obs), part(carry, "actor"))
    return raw, {"log_prob": actions.log_prob(dist, raw, action_mask, spec.action)}
