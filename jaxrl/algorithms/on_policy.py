"""What all on-policy algorithms share: acting, returns along a rollout, losses, Adam over minibatches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl.algorithms.interface import Batch, Metrics, Parameters, PolicyState, TrainState
from jaxrl.learning import losses, minibatches, returns
from jaxrl.learning.schedules import BETA_MINIMUM, EPSILON_MINIMUM, LEARNING_RATE_MINIMUM, make_schedule
from jaxrl.networks import actions, normalizer
from jaxrl.networks.actions import ActionDistribution
from jaxrl.rewards import REWARD_SIGNALS
from jaxrl.rollout.trajectory import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.types import Action, BehaviorSpec

Loss = Callable[[Parameters, Batch, jax.Array, jax.Array], tuple[jax.Array, Metrics]]
"""(params {"actor", "critic"}, minibatch, epsilon, beta) → (scalar to minimise, metrics)."""

ADAM = optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8)


def applied(module: nn.Module, method: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """`module.apply` as (params, *inputs) → outputs; flax's own type also covers mutable collections, used nowhere."""
    return partial(module.apply, method=method)


def in_chunks(estimate: Callable[..., Any], inputs: Any, members: int) -> Any:
    """`estimate` of a rollout's [T, B, A, ...] arrays, given as one tuple, about `members` members at once.

    The activations of a chunk stay in a CPU's caches, and no memory is needed for those of the whole rollout.
    """
    length, rows, columns = jax.tree.leaves(inputs)[0].shape[:3]
    chunks = min(-(-length * rows * columns // members), length)  # equal ones where possible: a rest is compiled anew
    return jax.lax.map(lambda at: estimate(*at), inputs, batch_size=-(-length // chunks))


def act(
    distribution: Callable[[Parameters, tuple[jax.Array, ...]], ActionDistribution],
    spec: BehaviorSpec,
    deterministic: bool,
    state: PolicyState,
    obs: tuple[jax.Array, ...],
    action_mask: jax.Array,
    key: jax.Array,
) -> tuple[Action, jax.Array]:
    """Choose an action for every member and return it with its log-probabilities per column. The key is consumed."""
    dist = distribution(state.params, normalizer.normalize_all(state.normalizer, obs))
    if deterministic:
        action = actions.mode(dist, action_mask, spec.action)
    else:
        action = actions.sample(key, dist, action_mask, spec.action)
    return action, actions.log_prob(dist, action, action_mask, spec.action)


def init_state(params: Parameters, spec: BehaviorSpec, settings: BehaviorSettings, key: jax.Array) -> TrainState:
    """A fresh learner around the parameters {"actor", "critic"}. The key is kept for the updates."""
    return TrainState(
        policy=PolicyState(
            params=params["actor"],
            normalizer=normalizer.init_all(spec, settings.network_settings.normalize),
        ),
        critic=params["critic"],
        optimizer=ADAM.init(params),
        max_team=jnp.ones((), jnp.float32),
        step=jnp.zeros((), jnp.int32),
        key=key,
    )


def observe(state: TrainState, rollout: Rollout) -> TrainState:
    """Count the finished decisions and bring the normaliser up to date, before values are estimated (as ML-Agents)."""
    normalizers = normalizer.update_all(state.policy.normalizer, rollout.obs, rollout.acted)
    return state.replace(
        policy=state.policy.replace(normalizer=normalizers),
        step=state.step + rollout.acted.sum(dtype=jnp.int32),
    )


def stream_returns(rollout: Rollout, value: jax.Array, settings: BehaviorSettings, *, cooperative: bool) -> jax.Array:
    """λ-returns of every reward stream, R_t = r_t + γ_t [(1 − λ_t) V_{t+1} + λ_t R_{t+1}].

    γ_t = 0 where nothing follows (terminated). λ_t = 0 where the return restarts from the value of the next state:
    time_horizon reached, interrupted (the next state of the row is the true last observation), or ended while the team
    lives (the next state of the team: posthumous credit). GAE is this return minus V.

    Args:
      rollout: arrays [T, B, A].
      value: float32 [T, B, A, R], V of each state.
      settings: gamma and strength of each signal, lambd.
      cooperative: rewards of the other members count (MA-POCA).

    Returns:
      float32 [T, B, A, R], 0 where the member did not act.
    """
    restart = rollout.truncated | rollout.left | rollout.cut
    lambd = jnp.where(restart, 0.0, settings.hyperparameters.lambd)
    streams = []
    for i, (name, signal) in enumerate(settings.reward_signals.items()):
        reward = REWARD_SIGNALS[name](rollout, strength=signal.strength, cooperative=cooperative)
        streams.append(
            returns.lambda_return(
                reward,
                value[..., i],
                jnp.zeros_like(value[0, ..., i]),
                jnp.where(rollout.terminated, 0.0, signal.gamma),
                lambd,
                acted=rollout.acted,
                waiting=rollout.waiting,
            )
        )
    return jnp.stack(streams, axis=-1)


def make_batch(
    rollout: Rollout, obs: tuple[jax.Array, ...], returns: jax.Array, *, advantage: jax.Array, baseline: jax.Array
) -> Batch:
    """States ready for minibatches: everything [T, B, A, ...] becomes [T·B, A, ...].

    The advantage [T, B, A, R] is averaged over the reward streams, then normalised over all that acted.
    """
    batch = Batch(
        obs=obs,
        action_mask=rollout.action_mask,
        action=rollout.action,
        log_prob=rollout.log_prob,
        present=rollout.present,
        acted=rollout.acted,
        advantage=losses.normalize_advantages(advantage.mean(-1), rollout.acted),
        returns=returns,
        baseline=baseline,
    )
    return jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), batch)


def policy_and_value_loss(
    dist: ActionDistribution,
    value: jax.Array,
    spec: BehaviorSpec,
    batch: Batch,
    epsilon: jax.Array,
    beta: jax.Array,
) -> tuple[jax.Array, Metrics]:
    """policy + 0.5 · value − β · entropy over a minibatch of states [N, A, ...]; value is V [N, A, R]."""
    log_prob = actions.log_prob(dist, batch.action, batch.action_mask, spec.action)
    entropy = losses.masked_mean(actions.entropy(dist, batch.action_mask, spec.action), batch.acted)
    policy_loss = losses.clipped_policy_loss(log_prob, batch.log_prob, batch.advantage, batch.acted, epsilon)
    value_loss = losses.squared_value_loss(value, batch.returns, batch.acted)
    total = policy_loss + 0.5 * value_loss - beta * entropy
    return total, {"policy_loss": jnp.abs(policy_loss), "value_loss": value_loss, "entropy": entropy}


def update(loss: Loss, settings: BehaviorSettings, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """All epochs and minibatches of one update: Adam without clipping or decay, coefficients at the state's step.

    A minibatch is batch_size // A states: batch_size agent steps when every member acts.
    """
    hyper = settings.hyperparameters
    learning_rate, epsilon, beta = coefficients(settings, state.step)
    key, next_key = jax.random.split(state.key)

    def step(carry: tuple[Parameters, Any], minibatch: Batch) -> tuple[tuple[Parameters, Any], Metrics]:
        params, optimizer = carry
        gradient, metrics = jax.grad(loss, has_aux=True)(params, minibatch, epsilon, beta)
        direction, optimizer = ADAM.update(gradient, optimizer)
        params = jax.tree.map(lambda p, d: p - learning_rate * d, params, direction)
        return (params, optimizer), metrics

    (params, optimizer), metrics = minibatches.run(
        step,
        ({"actor": state.policy.params, "critic": state.critic}, state.optimizer),
        batch,
        batch.acted.any(-1),
        key,
        size=max(hyper.batch_size // batch.acted.shape[1], 1),
        epochs=hyper.num_epoch,
    )
    state = state.replace(
        policy=state.policy.replace(params=params["actor"]), critic=params["critic"], optimizer=optimizer, key=next_key
    )
    return state, metrics | {"learning_rate": learning_rate, "epsilon": epsilon, "beta": beta}


def coefficients(settings: BehaviorSettings, step: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Learning rate, epsilon and beta at a trainer step; traced, so that their decay never recompiles."""
    hyper, last = settings.hyperparameters, settings.max_steps
    return (
        make_schedule(hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_MINIMUM, last)(step),
        make_schedule(hyper.epsilon_schedule, hyper.epsilon, EPSILON_MINIMUM, last)(step),
        make_schedule(hyper.beta_schedule, hyper.beta, BETA_MINIMUM, last)(step),
    )
