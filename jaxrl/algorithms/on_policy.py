"""What all on-policy algorithms share: acting, returns along a rollout, losses, Adam over minibatches.

Functions raise AssertionError where shapes differ from those named, so that nothing broadcasts by accident.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl.algorithms import streams
from jaxrl.algorithms.chunks import each_second, in_chunks
from jaxrl.algorithms.interface import (
    Algorithm,
    Decision,
    Metrics,
    Params,
    PolicyState,
    Storage,
    TrainState,
)
from jaxrl.learning import losses, minibatches, returns, sequences
from jaxrl.learning.schedules import BETA_MINIMUM, EPSILON_MINIMUM, LEARNING_RATE_MINIMUM, make_schedule
from jaxrl.learning.trajectories import mean_over_trajectories
from jaxrl.networks import actions, normalizer
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.memory import Sequences, part
from jaxrl.rollout.rollout import EverySecond, Rollout
from jaxrl.settings import BehaviorSettings, MemorySettings
from jaxrl.types import Action, BehaviorSpec

Distribution = Callable[..., ActionDistribution]
"""(policy parameters, normalised observations, memory or `Sequences` or ()) → what the actor says."""

Step = Callable[[Params, tuple[jax.Array, ...], Any], tuple[ActionDistribution, Any]]
"""The same for one decision, with the memory after it."""


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
    memory: Any = ()  # `Sequences` of the memories by network; then N, A above are N sequences of L states: N, L, A


Loss = Callable[[Params, Batch, jax.Array, jax.Array], tuple[jax.Array, Metrics]]
"""(params {"actor", "critic"}, minibatch, epsilon, beta) → (scalar to minimise, metrics)."""

ACTOR_CHUNK = 4096
"""Members per pass of the actor over a rollout."""

ADAM = optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8)


def applied(module: nn.Module, method: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """`module.apply` as (params, *inputs) → outputs; flax's own type also covers mutable collections, used nowhere."""
    return partial(module.apply, method=method)


NEWEST_ROLLOUT = Storage(init=lambda: (), add=lambda _, rollout: rollout, take=lambda rollout: (rollout, ()))
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
    their names, and the axes that each has before that of its numbers. `remember` is left out without.
    """
    memory = settings.network_settings.memory

    def estimate(state: TrainState, rollout: Rollout) -> Metrics:
        obs = normalizer.normalize_all(state.policy.normalizer, rollout.obs)
        dist = distribution(state.policy.params, obs, part(rollout.carry, "actor"))
        entropy = actions.entropy(dist, rollout.action_mask, spec.action)
        return values(state, rollout) | {"entropy": losses.masked_mean(entropy, rollout.acted)}

    buffer_size = settings.hyperparameters.buffer_size
    return Algorithm(
        init=init,
        act=partial(act, step, spec, settings.network_settings.deterministic),
        storage=NEWEST_ROLLOUT,
        ready=lambda _: True,  # with what is not learned from at once nothing could be done later
        learn=learn,
        estimate=estimate,
        period=buffer_size,
        extras=(("log_prob", (spec.action.columns,)),),
        memories=tuple((name, (*axes, memory.memory_size)) for name, axes in memories.items()) if memory else (),
        team_rows=team_rows,
        adopt=partial(adopt, distribution, spec),
        remember=remember if memory else None,
        noise=partial(actions.noise, spec=spec.action),
    )


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


def observe(
    distribution: Distribution, spec: BehaviorSpec, state: TrainState, rollout: Rollout
) -> tuple[TrainState, Rollout]:
    """Bring the normaliser up to date, before values are estimated (as ML-Agents).

    The log-probabilities of the rollout move along: they become those that the policy which acted gives to the same
    actions when it sees what is trained on. Otherwise the first update of a run would take the change of its input for
    a change of the policy. For decisions that an older policy has made, the same difference is added.
    """
    chex.assert_rank(rollout.acted, 3)
    chex.assert_shape(rollout.obs, [(*rollout.acted.shape, *sensor.shape) for sensor in spec.observations])
    chex.assert_shape(rollout.extras["log_prob"], (*rollout.acted.shape, spec.action.columns))
    before = state.policy.normalizer
    after = normalizer.update_all(before, rollout.obs, rollout.acted)
    state = state.replace(policy=state.policy.replace(normalizer=after))
    if all(states is None for states in before):
        return state, rollout

    def change(obs: tuple[jax.Array, ...], mask: jax.Array, action: Action, memory: Any) -> jax.Array:
        seen = (normalizer.normalize_all(states, obs) for states in (after, before))
        new, old = (distribution(state.policy.params, x, memory) for x in seen)
        given = (action, mask, spec.action)
        return actions.log_prob(new, *given) - actions.log_prob(old, *given)

    inputs = (rollout.obs, rollout.action_mask, rollout.action, part(rollout.carry, "actor"))
    moved = in_chunks(change, inputs, ACTOR_CHUNK)
    log_prob = rollout.extras["log_prob"] + jnp.where(rollout.acted[..., None], moved, 0.0)
    return state, rollout._replace(extras={**rollout.extras, "log_prob": log_prob})


def stream_returns(
    rollout: Rollout,
    value: jax.Array,
    settings: BehaviorSettings,
    *,
    cooperative: bool,
    rewards: Mapping[str, jax.Array] | None = None,
) -> jax.Array:
    """λ-returns of every reward stream, R_t = r_t + γ_t [(1 − λ_t) V_{t+1} + λ_t R_{t+1}].

    γ_t = 0 where nothing follows (terminated). λ_t = 0 where the return restarts from the value of the next state:
    time_horizon reached, interrupted (the next state of the row is the true last observation), or ended while the team
    lives (the next state of the team: posthumous credit). GAE is this return minus V.

    Args:
      rollout: arrays [T, B, A].
      value: float32 [T, B, A, R], V of each state.
      settings: gamma and strength of each signal, lambd.
      cooperative: rewards of the other members count (MA-POCA).
      rewards: what each signal pays, [T, B, A] before strength; None: the environment's own reward is the only signal.

    Returns:
      float32 [T, B, A, R], 0 where the member did not act.
    """
    endings = (rollout.terminated, rollout.truncated, rollout.left, rollout.cut)
    chex.assert_rank(rollout.acted, 3)
    chex.assert_equal_shape([rollout.acted, rollout.waiting, *endings])
    chex.assert_shape(value, (*rollout.acted.shape, len(settings.reward_signals)))
    restart = rollout.truncated | rollout.left | rollout.cut
    lambd = jnp.where(restart, 0.0, settings.hyperparameters.lambd)
    paid = streams.extrinsic(rollout, cooperative=cooperative) if rewards is None else rewards
    found = []
    for i, (name, signal) in enumerate(settings.reward_signals.items()):
        found.append(
            returns.lambda_return(
                paid[name] * signal.strength,
                value[..., i],
                jnp.zeros_like(value[0, ..., i]),
                jnp.where(rollout.terminated, 0.0, signal.gamma),
                lambd,
                acted=rollout.acted,
                waiting=rollout.waiting,
            )
        )
    return jnp.stack(found, axis=-1)


def by_stream(name: str, estimate: jax.Array, rollout: Rollout, settings: BehaviorSettings) -> Metrics:
    """Mean over trajectories of an estimate [T, B, A, R], one metric `<name>/<signal>` per reward stream.

    As in ML-Agents a short trajectory counts like a long one. What an update cuts off an open one counts as one.
    """
    signals, acted = settings.reward_signals, rollout.acted
    chex.assert_shape(estimate, (*acted.shape, len(signals)))
    last = rollout.terminated | rollout.truncated | rollout.left | rollout.cut
    means = (mean_over_trajectories(estimate[..., i], acted, last) for i in range(len(signals)))
    return {f"{name}/{signal}": mean for signal, mean in zip(signals, means, strict=True)}


def make_batch(
    rollout: Rollout,
    obs: tuple[jax.Array, ...],
    returns: jax.Array,
    *,
    advantage: jax.Array,
    baseline: jax.Array,
    memory: MemorySettings | None = None,
) -> Batch:
    """States ready for minibatches: everything [T, B, A, ...] becomes [T·B, A, ...], without states `between`.

    With memory it becomes sequences [N, L, A, ...], L = min(sequence_length, T), see `sequences.cut`.

    The advantage [T, B, A, R] is averaged over the reward streams, then normalised over all that acted.
    """
    chex.assert_equal_shape([advantage, returns])
    batch = Batch(
        obs=obs,
        action_mask=rollout.action_mask,
        action=rollout.action,
        log_prob=rollout.extras["log_prob"],
        present=rollout.present,
        acted=rollout.acted,
        advantage=losses.normalize_advantages(advantage.mean(-1), rollout.acted),
        returns=returns,
        baseline=baseline,
    )
    if memory is not None:
        batch = batch._replace(memory=Sequences(rollout.carry, rollout.begin, rollout.present & ~rollout.waiting))
    chex.assert_equal_shape_prefix(jax.tree.leaves(batch), 3)
    if memory is not None:
        return sequences.cut(batch, batch.memory.moves | batch.acted, memory.sequence_length)
    if isinstance(rollout.between, EverySecond):  # half as much to shuffle and to pick from
        batch = each_second(batch, 0)
    return jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), batch)


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
    return total, {"policy_loss": jnp.abs(policy_loss), "value_loss": value_loss, "entropy": entropy}


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
