"""Turn a rollout into a batch for minibatches: normalised observations, values, returns, advantages.

Functions raise AssertionError for other shapes than documented, so that nothing broadcasts by accident.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxrl.algorithms.interface import Metrics, TrainState
from jaxrl.algorithms.parts import Batch, Parts, Seen, groups_of
from jaxrl.learning import losses, returns, sequences
from jaxrl.learning.trajectories import mean_over_trajectories
from jaxrl.networks import actions, normalizer
from jaxrl.networks.memory import Sequences, part
from jaxrl.rewards.signals import Signals
from jaxrl.rollout.chunks import each_second, in_chunks, of_states
from jaxrl.rollout.rollout import EverySecond, Rollout
from jaxrl.rollout.transitions import transitions
from jaxrl.settings import BehaviorSettings
from jaxrl.types import Action

ACTOR_CHUNK = 4096
"""Members per pass of the actor over a rollout."""


def prepare(parts: Parts, signals: Signals, state: TrainState, rollout: Rollout) -> tuple[TrainState, Batch, Metrics]:
    """Make a batch of states [T·B, A] from a rollout [T, B, A]: V, b, the λ-return R of V, the advantage."""
    state, rollout = observe(parts, state, rollout)
    state = state.replace(own=parts.watch(state.own, rollout))
    obs, value, baseline, metrics = evaluated(parts, state, rollout)
    paid = signals.rewards(state.signals, rollout, cooperative=parts.cooperative)
    state = state.replace(signals=signals.watch(state.signals, rollout))
    streams = {"lasting": signals.lasting, "shared": signals.shared, "posthumous": parts.posthumous}
    target = stream_returns(rollout, value, parts.settings, paid, **streams)
    advantage = parts.advantage(target, value, value if baseline is None else baseline, rollout)
    batch = make_batch(
        rollout,
        obs,
        target,
        baseline=value[..., :0] if baseline is None else baseline,
        length=length_of(parts),
        inputs={name: loss.inputs(state, rollout) for name, loss in parts.added.items()} or (),
        seen=transitions(rollout) if signals.in_minibatches else (),
        advantage=mean_advantage(advantage, target, rollout),
    )
    return state, batch, metrics


def length_of(parts: Parts) -> int | None:
    """Return the number of states of a sequence; None without memory."""
    memory = parts.settings.network_settings.memory
    return None if memory is None else memory.sequence_length


def moves_of(rollout: Rollout) -> jax.Array:
    """Return the members whose memory is updated in a state, or that are trained on, bool [T, B, A]."""
    return (rollout.present & ~rollout.waiting) | rollout.acted


def observe(
    parts: Parts, state: TrainState, rollout: Rollout, moves: jax.Array | None = None
) -> tuple[TrainState, Rollout]:
    """Update the normaliser before values are estimated (as ML-Agents), and the log-probabilities of the rollout.

    These become the log-probabilities of the same actions for the newly normalised observations, under the policy that
    acted. Otherwise the first update of a run would take the change of its input for a change of the policy. Decisions
    of an older policy get the same difference. With memory it is computed along the sequences of `make_batch`, whose
    memories depend on observations. `moves`: as in `make_batch`.
    """
    spec, length = parts.spec, length_of(parts)
    chex.assert_rank(rollout.acted, 3)
    chex.assert_shape(rollout.obs, [(*rollout.acted.shape, *sensor.shape) for sensor in spec.observations])
    chex.assert_shape(rollout.extras["log_prob"], (*rollout.acted.shape, spec.action.columns))
    before = state.policy.normalizer
    updated = normalizer.update_all(before, rollout.obs, rollout.acted)
    state = state.replace(policy=state.policy.replace(normalizer=updated))
    if all(states is None for states in before):
        return state, rollout

    def change(obs: tuple[jax.Array, ...], mask: jax.Array, action: Action, memory: Any) -> jax.Array:
        seen = (normalizer.normalize_all(states, obs) for states in (updated, before))
        new, old = (parts.actor(state.policy.params, x, memory) for x in seen)
        inputs = (action, mask, spec.action)
        return actions.log_prob(new, *inputs) - actions.log_prob(old, *inputs)

    inputs = (rollout.obs, rollout.action_mask, rollout.action)
    if length is None:
        moved = in_chunks(change, (*inputs, ()), ACTOR_CHUNK)
    else:
        counts = moves_of(rollout) if moves is None else moves
        pieces = sequences.cut((*inputs, part(_along(rollout), "actor")), counts, length)
        moved = sequences.joined(in_chunks(change, pieces, ACTOR_CHUNK), counts)
    log_prob = rollout.extras["log_prob"] + jnp.where(rollout.acted[..., None], moved, 0.0)
    return state, rollout._replace(extras={**rollout.extras, "log_prob": log_prob})


def _along(rollout: Rollout) -> Sequences:
    """Make the `Sequences` of all networks' memories along the rollout [T, B, A]."""
    return Sequences(rollout.carry, rollout.begin, rollout.present & ~rollout.waiting)


def evaluated(
    parts: Parts, state: TrainState, rollout: Rollout
) -> tuple[tuple[jax.Array, ...], jax.Array, jax.Array | None, Metrics]:
    """Compute normalised observations, V and b [T, B, A, R], and the means of both over trajectories by signal."""
    obs = normalizer.normalize_all(state.policy.normalizer, rollout.obs)
    params, seen = groups_of(parts, state), Seen(obs, rollout.action, rollout.present, rollout.carry)
    value, baseline = of_states(lambda *at: parts.estimates(params, Seen(*at), state.own), seen, rollout, parts.chunk)
    metrics = by_stream("value_estimate", value, rollout, parts.settings)
    if baseline is not None:
        metrics |= by_stream("baseline_estimate", baseline, rollout, parts.settings)
    return obs, value, baseline, metrics


def by_stream(name: str, estimate: jax.Array, rollout: Rollout, settings: BehaviorSettings) -> Metrics:
    """Compute the mean over trajectories of an estimate [T, B, A, R], one metric `<name>/<signal>` per reward signal.

    As in ML-Agents a short trajectory counts like a long one. A piece that an update cuts off counts as a trajectory.
    """
    signals, acted = settings.reward_signals, rollout.acted
    chex.assert_shape(estimate, (*acted.shape, len(signals)))
    last = rollout.terminated | rollout.truncated | rollout.left | rollout.cut
    means = (mean_over_trajectories(estimate[..., i], acted, last) for i in range(len(signals)))
    return {f"{name}/{signal}": mean for signal, mean in zip(signals, means, strict=True)}


def stream_returns(
    rollout: Rollout,
    value: jax.Array,
    settings: BehaviorSettings,
    paid: Mapping[str, jax.Array],
    *,
    lasting: Collection[str] = (),
    shared: Collection[str] = ("extrinsic",),
    posthumous: bool = False,
) -> jax.Array:
    """Compute the λ-returns of every reward signal, R_t = r_t + γ_t [(1 − λ_t) V_{t+1} + λ_t R_{t+1}].

    γ_t = 0 where nothing follows (terminated). λ_t = 0 where the return restarts from the value of the next state:
    time_horizon reached, interrupted (the next state of the row is the true last observation), or ended while the team
    lives (the next state of the team: posthumous credit). GAE is this return minus V.

    With `posthumous` the return of a member that ended while its team lives goes on along the team's: in `shared`
    streams λ_t = λ, and R_{t+1} is the mean return of the members that act in the team's next state. In other streams
    a member's return ends with it (γ_t = 0), or restarts from V if the stream is `lasting`.

    Args:
      rollout: arrays [T, B, A].
      value: float32 [T, B, A, R], V of each state.
      settings: gamma and strength of each signal, lambd.
      paid: rewards of each signal, [T, B, A] before strength.
      lasting: streams that do not end with an episode. A rollout does not hold the last observation of an episode that
        ends for good, and V of the state before takes the place of its V.
      shared: streams that pay for acts of the team.
      posthumous: whether returns of members that ended go on along their team.

    Returns:
      float32 [T, B, A, R], 0 where the member did not act.
    """
    endings = (rollout.terminated, rollout.truncated, rollout.left, rollout.cut)
    chex.assert_rank(rollout.acted, 3)
    chex.assert_equal_shape([rollout.acted, rollout.waiting, *endings])
    chex.assert_shape(value, (*rollout.acted.shape, len(settings.reward_signals)))
    streams = []
    for i, (name, signal) in enumerate(settings.reward_signals.items()):
        reward, along = paid[name] * signal.strength, posthumous and name in shared
        if name in lasting:
            reward = reward + jnp.where(rollout.terminated & rollout.acted, signal.gamma * value[..., i], 0.0)
        alone = posthumous and not along and name not in lasting
        over = rollout.terminated | rollout.left if alone else rollout.terminated
        restart = rollout.truncated | rollout.cut if along else rollout.truncated | rollout.left | rollout.cut
        streams.append(
            returns.lambda_return(
                reward,
                value[..., i],
                jnp.zeros_like(value[0, ..., i]),
                jnp.where(over, 0.0, signal.gamma),
                jnp.where(restart, 0.0, settings.hyperparameters.lambd),
                acted=rollout.acted,
                waiting=rollout.waiting,
                left=rollout.left if along else None,
            )
        )
    return jnp.stack(streams, axis=-1)


def mean_advantage(advantage: jax.Array, returns: jax.Array, rollout: Rollout) -> jax.Array:
    """Compute the mean of `advantage` [T, B, A, R] over reward signals, normalised over all that acted, [T, B, A]."""
    chex.assert_equal_shape([advantage, returns])
    return losses.normalize_advantages(advantage.mean(-1), rollout.acted)


def make_batch(
    rollout: Rollout,
    obs: tuple[jax.Array, ...],
    returns: jax.Array,
    *,
    advantage: jax.Array,
    baseline: jax.Array,
    length: int | None = None,
    moves: jax.Array | None = None,
    inputs: Any = (),
    seen: Any = (),
) -> Batch:
    """Make the batch for minibatches: all [T, B, A, ...] become [T·B, A, ...], without states `between`.

    With memory they become sequences [N, L, A, ...], L = min(`length`, T), see `sequences.cut`. `moves`, bool
    [T, B, *]: `moves_of` the whole team, if that has members outside of this rollout; None: it has not.
    """
    batch = Batch(
        obs=obs,
        action_mask=rollout.action_mask,
        action=rollout.action,
        log_prob=rollout.extras["log_prob"],
        present=rollout.present,
        acted=rollout.acted,
        advantage=advantage,
        returns=returns,
        baseline=baseline,
        memory=() if length is None else _along(rollout),
        inputs=inputs,
        transitions=seen,
    )
    chex.assert_equal_shape_prefix(jax.tree.leaves(batch), 3)
    if length is not None:
        return sequences.cut(batch, moves_of(rollout) if moves is None else moves, length)
    if isinstance(rollout.between, EverySecond):  # half as much to shuffle and to pick from
        batch = each_second(batch, 0)
    return jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), batch)
