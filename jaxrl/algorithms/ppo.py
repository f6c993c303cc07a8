"""PPO (Schulman et al. 2017, arXiv 1707.06347) with generalised advantage estimation (arXiv 1506.02438).

Every agent is on its own: a row holds one agent (A = 1), which is credited only for what it lives to see. Read beside
`poca.py`: the baseline is left out, the advantage is R − V, which is GAE.

Parity. Equal to ML-Agents 1.1.0: networks and initialisation, separate critic or shared body (`shared_critic`), the
value loss that is a plain squared error (the original's clip compares with the return itself and never acts),
log-probability ratios per action column, advantages normalised once per update, Adam, schedules, group rewards added
to the agent's own.
Different on purpose: all rows are taken together when buffer_size is exceeded, the original waits for time_horizon;
with `shared_critic` the normaliser is updated once per observation, the original counts each twice.
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
from jaxrl.networks import actions, normalizer
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.models import Actor, SharedActorCritic, ValueNetwork
from jaxrl.rollout.trajectory import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec

Obs = tuple[jax.Array, ...]


class Networks(NamedTuple):
    """Actor and critic, on one body or two. `params` is {"actor", "critic"}; the critic is empty on one body."""

    init: Callable[[jax.Array, Obs], Parameters]
    distribution: Callable[[Parameters, Obs], ActionDistribution]  # takes params["actor"] alone
    both: Callable[[Parameters, Obs], tuple[ActionDistribution, jax.Array]]  # and V [..., R]


def make_networks(spec: BehaviorSpec, settings: BehaviorSettings) -> Networks:
    """Two bodies, or one with `shared_critic`."""
    streams = tuple(settings.reward_signals)
    if settings.hyperparameters.shared_critic:
        shared = SharedActorCritic(spec, settings.network_settings, streams)
        return Networks(
            init=lambda key, obs: {"actor": shared.init(key, obs), "critic": {}},
            distribution=on_policy.applied(shared, SharedActorCritic.distribution),
            both=lambda params, obs: on_policy.applied(shared)(params["actor"], obs),
        )
    actor, critic = Actor(spec, settings.network_settings), ValueNetwork(spec, settings.network_settings, streams)

    act, estimate = on_policy.applied(actor), on_policy.applied(critic)

    def init_two(key: jax.Array, obs: Obs) -> Parameters:
        actor_key, critic_key = jax.random.split(key)
        return {"actor": actor.init(actor_key, obs), "critic": critic.init(critic_key, obs)}

    return Networks(
        init=init_two,
        distribution=act,
        both=lambda params, obs: (act(params["actor"], obs), estimate(params["critic"], obs)),
    )


def make_ppo(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """PPO for one behavior: its four functions with networks and settings bound."""
    networks = make_networks(spec, settings)
    deterministic = settings.network_settings.deterministic
    return Algorithm(
        init=partial(init, networks, spec, settings),
        act=partial(on_policy.act, networks.distribution, spec, deterministic),
        prepare=partial(prepare, networks, settings),
        update=partial(on_policy.update, partial(loss, networks, spec), settings),
        team_rows=False,
    )


def init(networks: Networks, spec: BehaviorSpec, settings: BehaviorSettings, key: jax.Array) -> TrainState:
    """Fresh parameters and statistics. The key is consumed."""
    network_key, key = jax.random.split(key)
    obs = tuple(jnp.zeros((1, 1, *sensor.shape), jnp.float32) for sensor in spec.observations)
    return on_policy.init_state(networks.init(network_key, obs), spec, settings, key)


def prepare(
    networks: Networks, settings: BehaviorSettings, state: TrainState, rollout: Rollout
) -> tuple[TrainState, Batch, Metrics]:
    """Values, returns and advantages R − V (GAE) of a rollout [T, B, 1], flattened to states [T·B, 1]."""
    state = on_policy.observe(state, rollout)
    obs = normalizer.normalize_all(state.policy.normalizer, rollout.obs)
    _, value = networks.both({"actor": state.policy.params, "critic": state.critic}, obs)  # [T, B, 1, R]
    returns = on_policy.stream_returns(rollout, value, settings, cooperative=False)
    batch = Batch(
        obs=obs,
        action_mask=rollout.action_mask,
        action=rollout.action,
        log_prob=rollout.log_prob,
        present=rollout.present,
        acted=rollout.acted,
        advantage=losses.normalize_advantages((returns - value).mean(-1), rollout.acted),
        returns=returns,
        baseline=jnp.zeros((*value.shape[:-1], 0), jnp.float32),
    )
    metrics = {"value_estimate": losses.masked_mean(value.mean(-1), rollout.acted)}
    return state, on_policy.flatten(batch), metrics


def loss(
    networks: Networks,
    spec: BehaviorSpec,
    params: Parameters,
    batch: Batch,
    epsilon: jax.Array,
    beta: jax.Array,
) -> tuple[jax.Array, Metrics]:
    """policy + 0.5 · value − β · entropy over a minibatch of agent states [N, 1, ...]."""
    dist, value = networks.both(params, batch.obs)
    log_prob = actions.log_prob(dist, batch.action, batch.action_mask, spec.action)
    entropy = losses.masked_mean(actions.entropy(dist, batch.action_mask, spec.action), batch.acted)
    policy_loss = losses.clipped_policy_loss(log_prob, batch.log_prob, batch.advantage, batch.acted, epsilon)
    value_loss = losses.squared_value_loss(value, batch.returns, batch.acted)
    total = policy_loss + 0.5 * value_loss - beta * entropy
    return total, {"policy_loss": jnp.abs(policy_loss), "value_loss": value_loss, "entropy": entropy}
