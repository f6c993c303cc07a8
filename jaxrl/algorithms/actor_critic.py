"""What PPO and MAPPO share: a policy and a value, whose λ-return less the value is the advantage (GAE).

The two differ in what the value looks at: an agent's own observation, or those of its whole team. Functions raise
AssertionError where shapes differ from those named.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl.algorithms import batches, on_policy, streams
from jaxrl.algorithms.actor import Distribution, Step
from jaxrl.algorithms.batches import Batch
from jaxrl.algorithms.chunks import of_states
from jaxrl.algorithms.interface import Algorithm, Decision, Metrics, Params, PolicyState, TrainState
from jaxrl.networks import normalizer
from jaxrl.networks.actions import ActionDistribution
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec

Obs = tuple[jax.Array, ...]

CHUNK = 4096
"""Members per pass of the critic over a rollout."""


class Networks(NamedTuple):
    """Actor and critic, on one body or two. `params` is {"actor", "critic"}; the critic is empty on one body."""

    init: Callable[[jax.Array, Obs], Params]
    distribution: Distribution  # takes params["actor"] alone
    step: Step  # likewise
    both: Callable[..., tuple[ActionDistribution, jax.Array]]  # (params, obs, present, memory) → dist, V [..., A, R]
    follow: Callable[..., Any] | None  # (critic's params, obs, present, its memory) → its memory; None on one body


def make(networks: Networks, spec: BehaviorSpec, settings: BehaviorSettings, *, team_rows: bool) -> Algorithm:
    """The algorithm with networks and settings bound."""
    return on_policy.make(
        init=partial(init, networks, spec, settings),
        distribution=networks.distribution,
        step=networks.step,
        remember=None if networks.follow is None else partial(remember, networks.follow),
        memories={"actor": ()} if networks.follow is None else {"actor": (), "critic": ()},
        learn=partial(learn, networks, spec, settings),
        values=lambda state, rollout: estimates(networks, settings, state, rollout)[-1],
        spec=spec,
        settings=settings,
        team_rows=team_rows,
    )


def init(networks: Networks, spec: BehaviorSpec, settings: BehaviorSettings, key: jax.Array) -> TrainState:
    """Fresh parameters and statistics. The key is consumed."""
    network_key, key = jax.random.split(key)
    return on_policy.init_state(networks.init(network_key, on_policy.no_obs(spec)), spec, settings, key)


def learn(
    networks: Networks, spec: BehaviorSpec, settings: BehaviorSettings, state: TrainState, rollout: Rollout
) -> tuple[TrainState, Metrics]:
    """One update: values, returns and advantages, then all epochs and minibatches."""
    state, batch, values = prepare(networks, spec, settings, state, rollout)
    state, metrics = on_policy.update(partial(loss, networks, spec), settings, state, batch)
    state, of_signals = streams.learn(spec, settings, state, rollout)
    return state, values | metrics | of_signals


def prepare(
    networks: Networks, spec: BehaviorSpec, settings: BehaviorSettings, state: TrainState, rollout: Rollout
) -> tuple[TrainState, Batch, Metrics]:
    """Values, returns and advantages R − V (GAE) of a rollout [T, B, A], flattened to states [T·B, A]."""
    memory = settings.network_settings.memory
    state, rollout = batches.observe(networks.distribution, spec, state, rollout, memory)
    obs, value, metrics = estimates(networks, settings, state, rollout)
    paid = streams.rewards(spec, settings, state, rollout, cooperative=False)
    returns = batches.stream_returns(rollout, value, settings, cooperative=False, rewards=paid)
    batch = batches.make_batch(
        rollout,
        obs,
        returns,
        advantage=returns - value,
        baseline=value[..., :0],
        memory=memory,
    )
    return state, batch, metrics | streams.means(settings, paid, rollout)


def estimates(
    networks: Networks, settings: BehaviorSettings, state: TrainState, rollout: Rollout
) -> tuple[Obs, jax.Array, Metrics]:
    """Normalised observations, V [T, B, A, R] and its means over trajectories."""
    obs = normalizer.normalize_all(state.policy.normalizer, rollout.obs)
    params = {"actor": state.policy.params, "critic": state.critic}
    inputs = (obs, rollout.present, rollout.carry)
    value = of_states(lambda *at: networks.both(params, *at)[1], inputs, rollout, CHUNK)
    return obs, value, batches.by_stream("value_estimate", value, rollout, settings)


def loss(
    networks: Networks,
    spec: BehaviorSpec,
    params: Params,
    batch: Batch,
    epsilon: jax.Array,
    beta: jax.Array,
) -> tuple[jax.Array, Metrics]:
    """policy + 0.5 · value − β · entropy over a minibatch of states [N, A, ...], with memory [N, L, A, ...]."""
    dist, value = networks.both(params, batch.obs, batch.present, batch.memory)
    return on_policy.policy_and_value_loss(dist, value, spec, batch, epsilon, beta)


def remember(
    follow: Callable[..., Any], state: PolicyState, obs: Obs, present: jax.Array, decision: Decision
) -> dict[str, Any]:
    """The memory after a decision, that of the critic too."""
    shown = normalizer.normalize_all(state.normalizer, obs)
    return {**decision.carry, "critic": follow(state.critic, shown, present, decision.carry["critic"])}


def one_value_for_all(value: jax.Array, present: jax.Array) -> jax.Array:
    """V of a team [..., R] as that of each member, [..., A, R], which it is with memory already."""
    if value.ndim > present.ndim:
        return value
    chex.assert_shape(value, (*present.shape[:-1], None))
    return jnp.broadcast_to(value[..., None, :], (*present.shape, value.shape[-1]))
