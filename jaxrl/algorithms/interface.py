"""What a training loop needs of an algorithm: four pure functions over one state. Both loops use exactly these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import struct

from jaxrl.networks.normalizer import NormalizerState
from jaxrl.rollout.trajectory import Rollout
from jaxrl.types import Action

Metrics = dict[str, jax.Array]
Parameters = Any  # a flax parameter tree


class PolicyState(struct.PyTreeNode):
    """What acting needs."""

    params: Parameters
    normalizer: tuple[NormalizerState | None, ...]  # one per observation


class TrainState(struct.PyTreeNode):
    """Everything that a checkpoint keeps of the learner."""

    policy: PolicyState
    critic: Parameters  # empty when actor and critic share one body
    optimizer: Any  # optax state over {"actor", "critic"}
    max_team: jax.Array  # float32 [], largest team seen by the critic, at first 1
    step: jax.Array  # int32 [], finished agent decisions (ML-Agents' trainer step)
    key: jax.Array  # typed key, split at each update


class Batch(NamedTuple):
    """States ready for minibatches; N = T·B of the rollout. Members that did not act are masked, not removed."""

    obs: tuple[jax.Array, ...]  # float32 [N, A, *shape], normalised, 0 where absent
    action_mask: jax.Array  # bool [N, A, M]
    action: Action  # [N, A, C], [N, A, D]
    log_prob: jax.Array  # float32 [N, A, C + D], of the policy that acted
    present: jax.Array  # bool [N, A]
    acted: jax.Array  # bool [N, A], trained on
    advantage: jax.Array  # float32 [N, A], normalised over the whole batch
    returns: jax.Array  # float32 [N, A, R], target of value and baseline
    baseline: jax.Array  # float32 [N, A, R], estimate before the update; [N, A, 0] where the algorithm has none


class Algorithm(NamedTuple):
    """Pure functions; sizes and settings are bound when it is made.

    init:    (key) → TrainState; the key is consumed.
    act:     (PolicyState, obs [..., A, *shape], action_mask [..., A, M], key) → (Action, log_prob [..., A, C + D]);
             raw samples, see `networks.actions.to_environment`; the key is consumed.
    prepare: (TrainState, Rollout) → (TrainState, Batch, Metrics): normaliser and step brought up to date, returns and
             advantages computed.
    update:  (TrainState, Batch) → (TrainState, Metrics): all epochs and minibatches.
    """

    init: Callable[[jax.Array], TrainState]
    act: Callable[[PolicyState, tuple[Any, ...], Any, jax.Array], tuple[Action, jax.Array]]
    prepare: Callable[[TrainState, Rollout], tuple[TrainState, Batch, Metrics]]
    update: Callable[[TrainState, Batch], tuple[TrainState, Metrics]]
    team_rows: bool  # rows hold whole teams (True) or single agents
