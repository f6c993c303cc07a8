"""What PPO and MAPPO share: a policy and a value, whose λ-return less the value is the advantage (GAE).

The two differ in what the value looks at: an agent's own observation, or those of its whole team.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.algorithms import on_policy
from jaxrl.algorithms.interface import Algorithm, Batch, Metrics, Parameters, TrainState
from jaxrl.learning import losses
from jaxrl.networks import normalizer
from jaxrl.networks.actions import ActionDistribution
from jaxrl.rollout.trajectory import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec

Obs = tuple[jax.Array, ...]

CHUNK = 4096
"""Members per pass of the critic over a rollout."""


class Networks(NamedTuple):
    """Actor and critic, on one body or two. `params` is {"actor", "critic"}; the critic is empty on one body."""

    init: Callable[[jax.Array, Obs], Parameters]
    distribution: Callable[[Parameters, Obs], ActionDistribution]  # takes params["actor"] alone
    both: Callable[[Parameters, Obs, jax.Array], tuple[ActionDistribution, jax.Array]]  # with present; V [..., A, R]


def make(networks: Networks, spec: BehaviorSpec, settings: BehaviorSettings, *, team_rows: bool) -> Algorithm:
    """The four functions with networks and settings bound."""
    deterministic = settings.network_settings.deterministic
    return Algorithm(
        init=partial(init, networks, spec, settings),
        act=partial(on_policy.act, networks.distribution, spec, deterministic),
        prepare=partial(prepare, networks, settings),
        update=partial(on_policy.update, partial(loss, networks, spec), settings),
        team_rows=team_rows,
    )


def init(networks: Networks, spec: BehaviorSpec, settings: BehaviorSettings, key: jax.Array) -> TrainState:
    """Fresh parameters and statistics. The key is consumed."""
    network_key, key = jax.random.split(key)
    obs = tuple(jnp.zeros((1, 1, *sensor.shape), jnp.float32) for sensor in spec.observations)
    return on_policy.init_state(networks.init(network_key, obs), spec, settings, key)


def prepare(
    networks: Networks, settings: BehaviorSettings, state: TrainState, rollout: Rollout
) -> tuple[TrainState, Batch, Metrics]:
    """Values, returns and advantages R − V (GAE) of a rollout [T, B, A], flattened to states [T·B, A]."""
    state = on_policy.observe(state, rollout)
    obs = normalizer.normalize_all(state.policy.normalizer, rollout.obs)
    params = {"actor": state.policy.params, "critic": state.critic}
    inputs = (obs, rollout.present)
    value = on_policy.in_chunks(lambda *at: networks.both(params, *at)[1], inputs, CHUNK)  # [T, B, A, R]
    returns = on_policy.stream_returns(rollout, value, settings, cooperative=False)
    batch = on_policy.make_batch(rollout, obs, returns, advantage=returns - value, baseline=value[..., :0])
    return state, batch, {"value_estimate": losses.masked_mean(value.mean(-1), rollout.acted)}


def loss(
    networks: Networks,
    spec: BehaviorSpec,
    params: Parameters,
    batch: Batch,
    epsilon: jax.Array,
    beta: jax.Array,
) -> tuple[jax.Array, Metrics]:
    """policy + 0.5 · value − β · entropy over a minibatch of states [N, A, ...]."""
    dist, value = networks.both(params, batch.obs, batch.present)
    return on_policy.policy_and_value_loss(dist, value, spec, batch, epsilon, beta)
