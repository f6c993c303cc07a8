"""What MA-POCA and COMA share: a team value, and a counterfactual baseline for each member.

The target of both is the λ-return of the value, the advantage of member i is R_i − b_i. The critic is an argument: a
flax module called with (obs, action_encoding, present, max_team) that gives V [..., R] and b [..., A, R], as
`networks.models.TeamCritic` describes.
"""

from __future__ import annotations

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.algorithms import on_policy
from jaxrl.algorithms.interface import Algorithm, Batch, Metrics, Parameters, TrainState
from jaxrl.learning import losses
from jaxrl.networks import actions, normalizer
from jaxrl.networks.models import Actor, update_max_team
from jaxrl.rollout.trajectory import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec

CHUNK = 1024
"""Members per pass of the critic over a rollout."""


def make(critic: nn.Module, spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """The four functions with networks and settings bound."""
    actor = Actor(spec, settings.network_settings)
    deterministic = settings.network_settings.deterministic
    return Algorithm(
        init=partial(init, actor, critic, spec, settings),
        act=partial(on_policy.act, on_policy.applied(actor), spec, deterministic),
        prepare=partial(prepare, critic, spec, settings),
        update=partial(update, actor, critic, spec, settings),
        team_rows=True,
    )


def init(actor: Actor, critic: nn.Module, spec: BehaviorSpec, settings: BehaviorSettings, key: jax.Array) -> TrainState:
    """Fresh parameters and statistics. The key is consumed."""
    actor_key, critic_key, key = jax.random.split(key, 3)
    obs = tuple(jnp.zeros((1, 1, *sensor.shape), jnp.float32) for sensor in spec.observations)
    encoding = jnp.zeros((1, 1, spec.action.continuous_size + spec.action.mask_size), jnp.float32)
    params = {
        "actor": actor.init(actor_key, obs),
        "critic": critic.init(critic_key, obs, encoding, jnp.ones((1, 1), bool), jnp.ones((), jnp.float32)),
    }
    return on_policy.init_state(params, spec, settings, key)


def prepare(
    critic: nn.Module, spec: BehaviorSpec, settings: BehaviorSettings, state: TrainState, rollout: Rollout
) -> tuple[TrainState, Batch, Metrics]:
    """Values, baselines, λ-returns and advantages R − b of a rollout [T, B, A], flattened to states [T·B, A]."""
    state = on_policy.observe(state, rollout)
    state = state.replace(max_team=update_max_team(state.max_team, rollout.present))
    obs = normalizer.normalize_all(state.policy.normalizer, rollout.obs)
    value, baseline = on_policy.in_chunks(
        lambda *at: on_policy.applied(critic)(state.critic, *at, state.max_team),
        (obs, actions.one_hot(rollout.action, spec.action), rollout.present),
        CHUNK,
    )
    value = jnp.broadcast_to(value[:, :, None], baseline.shape)  # [T, B, R] -> [T, B, A, R]: one value for the team
    returns = on_policy.stream_returns(rollout, value, settings, cooperative=True)
    batch = on_policy.make_batch(rollout, obs, returns, advantage=returns - baseline, baseline=baseline)
    metrics = {
        "value_estimate": losses.masked_mean(value.mean(-1), rollout.acted),
        "baseline_estimate": losses.masked_mean(baseline.mean(-1), rollout.acted),
    }
    return state, batch, metrics


def update(
    actor: Actor,
    critic: nn.Module,
    spec: BehaviorSpec,
    settings: BehaviorSettings,
    state: TrainState,
    batch: Batch,
) -> tuple[TrainState, Metrics]:
    """All epochs and minibatches; the running maximum of the team size stays what `prepare` made it."""
    return on_policy.update(partial(loss, actor, critic, spec, max_team=state.max_team), settings, state, batch)


def loss(
    actor: Actor,
    critic: nn.Module,
    spec: BehaviorSpec,
    params: Parameters,
    batch: Batch,
    epsilon: jax.Array,
    beta: jax.Array,
    *,
    max_team: jax.Array,
) -> tuple[jax.Array, Metrics]:
    """policy + 0.5 · (value + 0.5 · baseline) − β · entropy over a minibatch of team states [N, A, ...]."""
    dist = on_policy.applied(actor)(params["actor"], batch.obs)
    value, baseline = on_policy.applied(critic)(
        params["critic"], batch.obs, actions.one_hot(batch.action, spec.action), batch.present, max_team
    )
    value = jnp.broadcast_to(value[:, None], baseline.shape)
    total, metrics = on_policy.policy_and_value_loss(dist, value, spec, batch, epsilon, beta)
    baseline_loss = losses.value_loss(baseline, batch.baseline, batch.returns, batch.acted, epsilon)
    return total + 0.25 * baseline_loss, metrics | {"baseline_loss": baseline_loss}
