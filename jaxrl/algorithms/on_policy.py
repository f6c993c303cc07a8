"""What all on-policy algorithms are made of: the parts of one, a fresh learner, losses, Adam over minibatches.

How they act stands in `actor.py`, what they make of a rollout in `batches.py`. Functions raise AssertionError where
shapes differ from those named, so that nothing broadcasts by accident.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl.algorithms import streams
from jaxrl.algorithms.actor import Distribution, Step, act, adopt
from jaxrl.algorithms.batches import Batch
from jaxrl.algorithms.interface import LARGEST_LOG_RATIO, Algorithm, Metrics, Params, PolicyState, Storage, TrainState
from jaxrl.learning import losses, minibatches
from jaxrl.learning.schedules import BETA_MINIMUM, EPSILON_MINIMUM, LEARNING_RATE_MINIMUM, make_schedule
from jaxrl.networks import actions, normalizer
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.memory import part
from jaxrl.rollout.rollout import Rollout, masked
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec

Loss = Callable[[Params, Batch, jax.Array, jax.Array], tuple[jax.Array, Metrics]]
"""(params {"actor", "critic"}, minibatch, epsilon, beta) → (scalar to minimise, metrics)."""

ADAM = optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8)


def applied(module: nn.Module, method: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """`module.apply` as (params, *inputs) → outputs; flax's own type also covers mutable collections, used nowhere."""
    return partial(module.apply, method=method)


NEWEST_ROLLOUT = Storage(
    init=lambda: (),
    add=lambda _, rollout: rollout,
    can_sample=lambda *_: True,  # with what is not learned from at once nothing could be done later
    sample=lambda rollout, _: rollout,
    kept=lambda _: (),
)
"""What on-policy algorithms keep between two updates: nothing but what they learn from next."""


def make(
    init: Callable[[jax.Array], TrainState],
    distribution: Distribution,
    step: Step,
    remember: Callable[..., Any] | None,
    memories: Mapping[str, tuple[int, ...]],
    learn: Callable[[TrainState, Rollout], tuple[TrainState, Metrics]],
    values: Callable[[TrainState, Rollout], Metrics],
    spec: BehaviorSpec,
    settings: BehaviorSettings,
    *,
    team_rows: bool,
) -> Algorithm:
    """An on-policy algorithm of these parts.

    `values` estimates what `estimate` tells of the critic; entropy is the actor's. With memory there are `memories`:
    their names, and the axes that each has before that of its numbers. `remember` is left out without. Rollouts reach
    `learn` and `values` with zeros in every cell that their masks leave out.
    """
    memory = settings.network_settings.memory

    def estimate(state: TrainState, rollout: Rollout) -> Metrics:
        rollout = masked(rollout)
        obs = normalizer.normalize_all(state.policy.normalizer, rollout.obs)
        dist = distribution(state.policy.params, obs, part(rollout.carry, "actor"))
        entropy = actions.entropy(dist, rollout.action_mask, spec.action)
        return values(state, rollout) | {"entropy": losses.masked_mean(entropy, rollout.acted)}

    buffer_size = settings.hyperparameters.buffer_size
    return Algorithm(
        init=init,
        act=partial(act, step, spec, settings.network_settings.deterministic),
        storage=NEWEST_ROLLOUT,
        learn=lambda state, rollout: learn(state, masked(rollout)),
        estimate=estimate,
        period=buffer_size,
        extras=(("log_prob", (spec.action.columns,)),),
        memories=tuple((name, (*axes, memory.memory_size)) for name, axes in memories.items()) if memory else (),
        team_rows=team_rows,
        adopt=partial(adopt, distribution, spec),
        remember=remember if memory else None,
        noise=partial(actions.noise, spec=spec.action),
    )


def init_state(
    params: Params, spec: BehaviorSpec, settings: BehaviorSettings, key: jax.Array, own: Any = None
) -> TrainState:
    """A fresh learner around the parameters {"actor", "critic"}; `own` is the algorithm's part, {} by default.

    The key is kept for the updates.
    """
    return TrainState(
        policy=PolicyState(
            params=params["actor"],
            normalizer=normalizer.init_all(spec, settings.network_settings.normalize),
        ),
        critic=params["critic"],
        optimizer=ADAM.init(params),
        own={} if own is None else own,
        signals=streams.init(spec, settings, key),
        step=jnp.zeros((), jnp.int32),
        key=key,
    )


def no_obs(spec: BehaviorSpec) -> tuple[jax.Array, ...]:
    """Observations of one member of one team, all zero: what networks are initialised with."""
    return tuple(jnp.zeros((1, 1, *sensor.shape), sensor.dtype) for sensor in spec.observations)


def policy_and_value_loss(
    dist: ActionDistribution,
    value: jax.Array,
    spec: BehaviorSpec,
    batch: Batch,
    epsilon: jax.Array,
    beta: jax.Array,
) -> tuple[jax.Array, Metrics]:
    """policy + 0.5 · value − β · entropy over a minibatch of states [N, A, ...]; value is V [N, A, R].

    With memory there is an axis of time as well: [N, L, A, ...].
    """
    log_prob = actions.log_prob(dist, batch.action, batch.action_mask, spec.action)
    entropy = losses.masked_mean(actions.entropy(dist, batch.action_mask, spec.action), batch.acted)
    policy_loss = losses.clipped_policy_loss(log_prob, batch.log_prob, batch.advantage, batch.acted, epsilon)
    value_loss = losses.squared_value_loss(value, batch.returns, batch.acted)
    total = policy_loss + 0.5 * value_loss - beta * entropy
    largest = jnp.max(jnp.where(batch.acted[..., None], jnp.abs(log_prob - batch.log_prob), 0.0), initial=0.0)
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, LARGEST_LOG_RATIO: largest}
    return total, metrics


def update(loss: Loss, settings: BehaviorSettings, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """All epochs and minibatches of one update: Adam without clipping or decay, coefficients at the state's step.

    A minibatch is as many states as hold about batch_size members that acted, see `learning.minibatches.run`.
    """
    chex.assert_equal_shape_prefix(jax.tree.leaves(batch), 2)
    hyper = settings.hyperparameters
    learning_rate, epsilon, beta = coefficients(settings, state.step)
    key, next_key = jax.random.split(state.key)

    def gradient(carry: tuple[Params, Any], chunk: Batch) -> tuple[Params, Metrics]:
        return jax.grad(loss, has_aux=True)(carry[0], chunk, epsilon, beta)

    def apply(carry: tuple[Params, Any], gradient: Params) -> tuple[Params, Any]:
        params, optimizer = carry
        direction, optimizer = ADAM.update(gradient, optimizer)
        return jax.tree.map(lambda p, d: p - learning_rate * d, params, direction), optimizer

    (params, optimizer), metrics = minibatches.run(
        gradient,
        apply,
        ({"actor": state.policy.params, "critic": state.critic}, state.optimizer),
        batch,
        batch.acted.reshape(len(batch.acted), -1),
        key,
        size=hyper.batch_size,
        epochs=hyper.num_epoch,
        magnitudes=("policy_loss",),
        largest=(LARGEST_LOG_RATIO,),
    )
    state = state.replace(
        policy=state.policy.replace(params=params["actor"]), critic=params["critic"], optimizer=optimizer, key=next_key
    )
    return state, metrics | {"learning_rate": learning_rate, "epsilon": epsilon, "beta": beta}


def coefficients(settings: BehaviorSettings, step: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Learning rate, epsilon and beta at a trainer step; traced, so that their decay never recompiles."""
    chex.assert_rank(step, 0)
    hyper, last = settings.hyperparameters, settings.max_steps
    return (
        make_schedule(hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_MINIMUM, last)(step),
        make_schedule(hyper.epsilon_schedule, hyper.epsilon, EPSILON_MINIMUM, last)(step),
        make_schedule(hyper.beta_schedule, hyper.beta, BETA_MINIMUM, last)(step),
    )
