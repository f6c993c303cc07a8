"""From a rollout to what minibatches are cut from: normaliser brought up to date, returns, normalised advantages.

Functions raise AssertionError where shapes differ from those named, so that nothing broadcasts by accident.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl.algorithms import streams
from jaxrl.algorithms.actor import Distribution
from jaxrl.algorithms.chunks import each_second, in_chunks
from jaxrl.algorithms.interface import Metrics, TrainState
from jaxrl.learning import losses, returns, sequences
from jaxrl.learning.trajectories import mean_over_trajectories
from jaxrl.networks import actions, normalizer
from jaxrl.networks.memory import Sequences, part
from jaxrl.rollout.rollout import EverySecond, Rollout
from jaxrl.settings import BehaviorSettings, MemorySettings
from jaxrl.types import Action, BehaviorSpec

ACTOR_CHUNK = 4096
"""Members per pass of the actor over a rollout."""


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


def observe(
    distribution: Distribution,
    spec: BehaviorSpec,
    state: TrainState,
    rollout: Rollout,
    memory: MemorySettings | None = None,
) -> tuple[TrainState, Rollout]:
    """Bring the normaliser up to date, before values are estimated (as ML-Agents).

    The log-probabilities of the rollout move along: they become those that the policy which acted gives to the same
    actions when it sees what is trained on. Otherwise the first update of a run would take the change of its input for
    a change of the policy. For decisions that an older policy has made, the same difference is added. With memory it
    goes along the sequences of `make_batch`, for it is made of what is seen.
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

    inputs = (rollout.obs, rollout.action_mask, rollout.action)
    if memory is None:
        moved = in_chunks(change, (*inputs, ()), ACTOR_CHUNK)
    else:
        along = _along(rollout)
        counts = along.moves | rollout.acted
        pieces = sequences.cut((*inputs, part(along, "actor")), counts, memory.sequence_length)
        moved = sequences.joined(in_chunks(_of_one(change), pieces, ACTOR_CHUNK), counts)
    log_prob = rollout.extras["log_prob"] + jnp.where(rollout.acted[..., None], moved, 0.0)
    return state, rollout._replace(extras={**rollout.extras, "log_prob": log_prob})


def _of_one(change: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`change` of one sequence [L, A, ...] alone."""

    def one(*sequence: Any) -> jax.Array:
        return change(*jax.tree.map(lambda x: x[None], sequence))[0]

    return one


def _along(rollout: Rollout) -> Sequences:
    """The memories of all networks, for them to go along the rollout [T, B, A]."""
    return Sequences(rollout.carry, rollout.begin, rollout.present & ~rollout.waiting)


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
        batch = batch._replace(memory=_along(rollout))
    chex.assert_equal_shape_prefix(jax.tree.leaves(batch), 3)
    if memory is not None:
        return sequences.cut(batch, batch.memory.moves | batch.acted, memory.sequence_length)
    if isinstance(rollout.between, EverySecond):  # half as much to shuffle and to pick from
        batch = each_second(batch, 0)
    return jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), batch)
