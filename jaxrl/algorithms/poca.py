"""MA-POCA: multi-agent posthumous credit assignment (Cohen et al. 2021, arXiv 2111.05992).

A team shares one reward. The critic looks at all living members by attention: V(all observations) is the team's value,
b_i (own observation, the others' observations and actions) is member i's counterfactual baseline. The target is the
λ-return of V, the advantage R − b_i. A member that ends while its team lives bootstraps from the team's next value, so
it is credited for what the team earns after its death; absent members are masked, there are no absorbing states.

Parity. Equal to ML-Agents 1.1.0: networks and their initialisation, both losses and their weights (0.5 · (value +
0.5 · baseline)), the value loss that is a plain squared error (the original's clip compares with the return itself and
never acts), the clipped baseline loss, log-probability ratios per action column, advantages normalised once per
update, Adam, schedules, the running maximum of the team size.
Different on purpose: (1) a member that ended bootstraps from the survivors; the original adds its own last observation
and, when it ends alone, shows its mates one decision late. (2) A row stores a team once and V is computed once per team
state. (3) All rows are taken together when buffer_size is exceeded; the original waits for time_horizon. (4) A
minibatch is batch_size // A states, so it holds fewer agent steps when members are dead.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jaxrl.algorithms import on_policy
from jaxrl.algorithms.interface import Algorithm, Batch, Metrics, Parameters, TrainState
from jaxrl.learning import losses
from jaxrl.networks import actions, normalizer
from jaxrl.networks.models import Actor, TeamCritic, update_max_team
from jaxrl.rollout.trajectory import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec

CHUNK = 1024
"""Members per pass of the critic over a rollout."""


def make_poca(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """MA-POCA for one behavior: its four functions with networks and settings bound."""
    actor = Actor(spec, settings.network_settings)
    critic = TeamCritic(spec, settings.network_settings, tuple(settings.reward_signals))
    deterministic = settings.network_settings.deterministic
    return Algorithm(
        init=partial(init, actor, critic, spec, settings),
        act=partial(on_policy.act, on_policy.applied(actor), spec, deterministic),
        prepare=partial(prepare, critic, spec, settings),
        update=partial(update, actor, critic, spec, settings),
        team_rows=True,
    )


def init(
    actor: Actor, critic: TeamCritic, spec: BehaviorSpec, settings: BehaviorSettings, key: jax.Array
) -> TrainState:
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
    critic: TeamCritic, spec: BehaviorSpec, settings: BehaviorSettings, state: TrainState, rollout: Rollout
) -> tuple[TrainState, Batch, Metrics]:
    """Values, baselines, λ-returns and advantages R − b of a rollout [T, B, A], flattened to states [T·B, A]."""
    state = on_policy.observe(state, rollout)
    state = state.replace(max_team=update_max_team(state.max_team, rollout.present))
    obs = normalizer.normalize_all(state.policy.normalizer, rollout.obs)
    value, baseline = _estimate(critic, state, obs, actions.one_hot(rollout.action, spec.action), rollout.present)
    value = jnp.broadcast_to(value[:, :, None], baseline.shape)  # [T, B, R] -> [T, B, A, R]: one value for the team
    returns = on_policy.stream_returns(rollout, value, settings, cooperative=True)
    advantage = losses.normalize_advantages((returns - baseline).mean(-1), rollout.acted)
    batch = Batch(
        obs=obs,
        action_mask=rollout.action_mask,
        action=rollout.action,
        log_prob=rollout.log_prob,
        present=rollout.present,
        acted=rollout.acted,
        advantage=advantage,
        returns=returns,
        baseline=baseline,
    )
    metrics = {
        "value_estimate": losses.masked_mean(value.mean(-1), rollout.acted),
        "baseline_estimate": losses.masked_mean(baseline.mean(-1), rollout.acted),
    }
    return state, on_policy.flatten(batch), metrics


def _estimate(
    critic: TeamCritic, state: TrainState, obs: tuple[jax.Array, ...], action: jax.Array, present: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """V [T, B, R] and b [T, B, A, R], a few time steps at once: activations of the whole rollout leave the caches."""
    steps = max(CHUNK // (present.shape[1] * present.shape[2]), 1)
    return jax.lax.map(
        lambda at: on_policy.applied(critic)(state.critic, *at, state.max_team),
        (obs, action, present),
        batch_size=min(steps, present.shape[0]),
    )


def update(
    actor: Actor,
    critic: TeamCritic,
    spec: BehaviorSpec,
    settings: BehaviorSettings,
    state: TrainState,
    batch: Batch,
) -> tuple[TrainState, Metrics]:
    """All epochs and minibatches; the running maximum of the team size stays what `prepare` made it."""
    return on_policy.update(partial(loss, actor, critic, spec, max_team=state.max_team), settings, state, batch)


def loss(
    actor: Actor,
    critic: TeamCritic,
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
    log_prob = actions.log_prob(dist, batch.action, batch.action_mask, spec.action)
    entropy = losses.masked_mean(actions.entropy(dist, batch.action_mask, spec.action), batch.acted)
    value, baseline = on_policy.applied(critic)(
        params["critic"], batch.obs, actions.one_hot(batch.action, spec.action), batch.present, max_team
    )
    value = jnp.broadcast_to(value[:, None], baseline.shape)
    policy_loss = losses.clipped_policy_loss(log_prob, batch.log_prob, batch.advantage, batch.acted, epsilon)
    value_loss = losses.squared_value_loss(value, batch.returns, batch.acted)
    baseline_loss = losses.value_loss(baseline, batch.baseline, batch.returns, batch.acted, epsilon)
    total = policy_loss + 0.5 * (value_loss + 0.5 * baseline_loss) - beta * entropy
    return total, {
        "policy_loss": jnp.abs(policy_loss),
        "value_loss": value_loss,
        "baseline_loss": baseline_loss,
        "entropy": entropy,
    }
