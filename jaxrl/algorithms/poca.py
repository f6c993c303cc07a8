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

Functions raise AssertionError where shapes differ from those named.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl.algorithms import batches, counterfactual, on_policy, streams
from jaxrl.algorithms.batches import Batch
from jaxrl.algorithms.chunks import of_states
from jaxrl.algorithms.connected import connected
from jaxrl.algorithms.interface import Algorithm, Metrics, Params, TrainState
from jaxrl.networks import actions, normalizer
from jaxrl.networks.memory import part, start
from jaxrl.networks.models import Actor, TeamCritic, update_max_team
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


class Bound(NamedTuple):
    """What the functions below are bound to."""

    actor: Actor  # sees its agent's own observation alone
    critic: TeamCritic  # sees the whole team
    spec: BehaviorSpec
    settings: BehaviorSettings


@connected
def make_poca(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """MA-POCA for one behavior: acting, storage and readiness are those of all on-policy algorithms."""
    critic = TeamCritic(spec, settings.network_settings, tuple(settings.reward_signals))
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
    """Fresh parameters and statistics; MA-POCA's own part is the largest team seen so far. The key is consumed."""
    actor_key, critic_key, key = jax.random.split(key, 3)
    obs, action = on_policy.no_obs(bound.spec), bound.spec.action
    encoding = jnp.zeros((1, 1, action.continuous_size + action.mask_size), jnp.float32)
    first, both = (start(bound.settings.network_settings.memory, (1, 1, *kinds)) for kinds in ((), (2,)))
    largest = jnp.ones((), jnp.float32)
    params = {
        "actor": bound.actor.init(actor_key, obs, first),
        "critic": bound.critic.init(critic_key, obs, encoding, jnp.ones((1, 1), bool), largest, both),
    }
    return on_policy.init_state(params, bound.spec, bound.settings, key, own={"max_team": largest})


def learn(bound: Bound, state: TrainState, rollout: Rollout) -> tuple[TrainState, Metrics]:
    """One update: values, baselines, returns and advantages, then all epochs and minibatches."""
    state, batch, values = prepare(bound, state, rollout)
    loss_of = partial(loss, bound, max_team=state.own["max_team"])
    state, metrics = on_policy.update(loss_of, bound.settings, state, batch)
    state, of_signals = streams.learn(bound.spec, bound.settings, state, rollout)
    return state, values | metrics | of_signals


def prepare(bound: Bound, state: TrainState, rollout: Rollout) -> tuple[TrainState, Batch, Metrics]:
    """What minibatches are cut from: a rollout [T, B, A], flattened to states [T·B, A].

    V of the team and b_i of each member; the λ-return R of V over the team's rewards; the advantage R − b_i.
    """
    memory = bound.settings.network_settings.memory
    state, rollout = batches.observe(on_policy.applied(bound.actor), bound.spec, state, rollout, memory)
    state = state.replace(own={"max_team": update_max_team(state.own["max_team"], rollout.present)})
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
        lambda *team: on_policy.applied(bound.critic)(state.critic, *team[:-1], state.own["max_team"], team[-1]),
        inputs,
        rollout,
        counterfactual.CHUNK,
    )
    chex.assert_shape(baseline, (*rollout.acted.shape, None))
    value = counterfactual.of_each_member(value, baseline)
    return obs, value, baseline, counterfactual.means(value, baseline, rollout, bound.settings)


def loss(
    bound: Bound, params: Params, batch: Batch, epsilon: jax.Array, beta: jax.Array, *, max_team: jax.Array
) -> tuple[jax.Array, Metrics]:
    """policy + 0.5 · (value + 0.5 · baseline) − β · entropy over a minibatch of team states [N, A, ...]."""
    dist = on_policy.applied(bound.actor)(params["actor"], batch.obs, part(batch.memory, "actor"))
    encoding = actions.one_hot(batch.action, bound.spec.action)
    memory = part(batch.memory, "critic")
    critic = partial(on_policy.applied(bound.critic), params["critic"])
    value, baseline = critic(batch.obs, encoding, batch.present, max_team, memory)
    return counterfactual.loss(dist, value, baseline, bound.spec, batch, epsilon, beta)
