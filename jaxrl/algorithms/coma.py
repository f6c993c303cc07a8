"""COMA with absorbing states: the comparison of the MA-POCA paper (Cohen et al. 2021, arXiv 2111.05992).

After COMA (Foerster et al. 2018, arXiv 1705.08926): each member's advantage is the return less a counterfactual
baseline that sees everything but its own action. Losses, λ-returns, posthumous credit and all else are MA-POCA's, see
`poca.py` and `counterfactual.py`; the critic alone differs. It is fully connected, with a place for each of
`team_capacity` members; members that are not there stand in their place as an absorbing state, zeros and a flag (see
`networks.joint`), where MA-POCA's attention leaves them out. Value and baseline are two networks of hidden_units and
num_layers, initialised as ML-Agents' PPO critic. Functions raise AssertionError where shapes differ from those named.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms import batches, counterfactual, on_policy, streams
from jaxrl.algorithms.batches import Batch
from jaxrl.algorithms.chunks import of_states
from jaxrl.algorithms.connected import connected
from jaxrl.algorithms.interface import Algorithm, Metrics, Params, TrainState
from jaxrl.networks import actions, normalizer
from jaxrl.networks.joint import JointCritic
from jaxrl.networks.memory import part, start
from jaxrl.networks.models import Actor
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec

NO_SIZE = np.float32(1.0)
"""The largest team, which the critic does not look at: flags tell who is there."""


class Bound(NamedTuple):
    """What the functions below are bound to."""

    actor: Actor  # sees its agent's own observation alone
    critic: JointCritic  # a place for each member
    spec: BehaviorSpec
    settings: BehaviorSettings


@connected
def make_coma(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """COMA for one behavior.

    `learn` raises `networks.joint.TeamCapacityError` for rows with more members than `team_capacity`.
    """
    streams, capacity = tuple(settings.reward_signals), settings.hyperparameters.team_capacity
    critic = JointCritic(spec, settings.network_settings, streams, capacity)
    bound = Bound(Actor(spec, settings.network_settings), critic, spec, settings)
    return on_policy.make(
        init=partial(init, bound),
        distribution=on_policy.applied(bound.actor),
        step=on_policy.applied(bound.actor, Actor.step),
        remember=partial(counterfactual.remember, critic, spec),
        memories={"actor": (), "critic": (2,)},
        learn=partial(learn, bound),
        values=lambda state, rollout: estimates(bound, state, rollout)[-1],
        spec=spec,
        settings=settings,
        team_rows=True,
    )


def init(bound: Bound, key: jax.Array) -> TrainState:
    """Fresh parameters and statistics. The key is consumed."""
    actor_key, critic_key, key = jax.random.split(key, 3)
    obs, action = on_policy.no_obs(bound.spec), bound.spec.action
    encoding = jnp.zeros((1, 1, action.continuous_size + action.mask_size), jnp.float32)
    first, both = (start(bound.settings.network_settings.memory, (1, 1, *kinds)) for kinds in ((), (2,)))
    params = {
        "actor": bound.actor.init(actor_key, obs, first),
        "critic": bound.critic.init(critic_key, obs, encoding, jnp.ones((1, 1), bool), NO_SIZE, both),
    }
    return on_policy.init_state(params, bound.spec, bound.settings, key)


def learn(bound: Bound, state: TrainState, rollout: Rollout) -> tuple[TrainState, Metrics]:
    """One update: values, baselines, returns and advantages, then all epochs and minibatches."""
    state, batch, values = prepare(bound, state, rollout)
    state, metrics = on_policy.update(partial(loss, bound), bound.settings, state, batch)
    state, of_signals = streams.learn(bound.spec, bound.settings, state, rollout)
    return state, values | metrics | of_signals


def prepare(bound: Bound, state: TrainState, rollout: Rollout) -> tuple[TrainState, Batch, Metrics]:
    """What minibatches are cut from: a rollout [T, B, A], flattened to states [T·B, A].

    V of the team and b_i of each member; the λ-return R of V over the team's rewards; the advantage R − b_i.
    """
    memory = bound.settings.network_settings.memory
    state, rollout = batches.observe(on_policy.applied(bound.actor), bound.spec, state, rollout, memory)
    obs, value, baseline, metrics = estimates(bound, state, rollout)
    paid = streams.rewards(bound.spec, bound.settings, state, rollout, cooperative=True)
    returns = batches.stream_returns(rollout, value, bound.settings, cooperative=True, rewards=paid)
    batch = batches.make_batch(
        rollout,
        obs,
        returns,
        advantage=returns - baseline,
        baseline=baseline,
        memory=memory,
    )
    return state, batch, metrics | streams.means(bound.settings, paid, rollout)


def estimates(
    bound: Bound, state: TrainState, rollout: Rollout
) -> tuple[tuple[jax.Array, ...], jax.Array, jax.Array, Metrics]:
    """Normalised observations, V and b [T, B, A, R], and the means of both."""
    obs = normalizer.normalize_all(state.policy.normalizer, rollout.obs)
    inputs = (obs, actions.one_hot(rollout.action, bound.spec.action), rollout.present, part(rollout.carry, "critic"))
    value, baseline = of_states(
        lambda *team: on_policy.applied(bound.critic)(state.critic, *team[:-1], NO_SIZE, team[-1]),
        inputs,
        rollout,
        counterfactual.CHUNK,
    )
    chex.assert_shape(baseline, (*rollout.acted.shape, None))
    value = counterfactual.of_each_member(value, baseline)
    return obs, value, baseline, counterfactual.means(value, baseline, rollout, bound.settings)


def loss(bound: Bound, params: Params, batch: Batch, epsilon: jax.Array, beta: jax.Array) -> tuple[jax.Array, Metrics]:
    """policy + 0.5 · (value + 0.5 · baseline) − β · entropy over a minibatch of team states [N, A, ...]."""
    dist = on_policy.applied(bound.actor)(params["actor"], batch.obs, part(batch.memory, "actor"))
    encoding = actions.one_hot(batch.action, bound.spec.action)
    memory = part(batch.memory, "critic")
    critic = partial(on_policy.applied(bound.critic), params["critic"])
    value, baseline = critic(batch.obs, encoding, batch.present, NO_SIZE, memory)
    return counterfactual.loss(dist, value, baseline, bound.spec, batch, epsilon, beta)
