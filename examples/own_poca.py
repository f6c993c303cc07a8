"""MA-POCA with another baseline and an auxiliary loss; both are set in own_poca.yaml.

jaxrl train own_poca.yaml --run-id=mine                        # which says trainer_type: own_poca.py:make_my_poca
"""

from functools import partial

import jax.numpy as jnp
from pydantic import Field

import jaxrl
from jaxrl.algorithms import batches, on_policy, poca, streams
from jaxrl.networks import actions
from jaxrl.networks.memory import part
from jaxrl.networks.models import Actor, TeamCritic, update_max_team


class MyHyperparameters(jaxrl.PPOHyperparameters):
    """Those of MA-POCA, and two more."""

    counterfactual: bool = Field(default=False, description="the baseline of MA-POCA; false: the value of the team")
    value_decay: float = Field(default=1e-3, ge=0, description="factor on the mean square of the team's value")


@jaxrl.trainer_type(hyperparameters=MyHyperparameters)
def make_my_poca(spec, settings):
    """MA-POCA whose members share the advantage R - V of their team, with a decay of V."""
    networks, mine = settings.network_settings, settings.hyperparameters
    critic = TeamCritic(spec, networks, tuple(settings.reward_signals))
    bound = poca.Bound(Actor(spec, networks), critic, spec, settings)

    def loss(params, batch, epsilon, beta, max_team):
        total, metrics = poca.loss(bound, params, batch, epsilon, beta, max_team=max_team)
        encoding, memory = actions.one_hot(batch.action, spec.action), part(batch.memory, "critic")
        value, _ = on_policy.applied(critic)(params["critic"], batch.obs, encoding, batch.present, max_team, memory)
        decay = jnp.mean(jnp.square(value))
        return total + mine.value_decay * decay, metrics | {"decay_loss": decay}

    def learn(state, rollout):
        state, rollout = batches.observe(on_policy.applied(bound.actor), spec, state, rollout)
        largest = update_max_team(state.own["max_team"], rollout.present)
        state = state.replace(own={"max_team": largest})
        obs, value, counterfactual, means = poca.estimates(bound, state, rollout)
        paid = streams.rewards(spec, settings, state, rollout, cooperative=True)
        returns = batches.stream_returns(rollout, value, settings, cooperative=True, rewards=paid)
        baseline = counterfactual if mine.counterfactual else value
        batch = batches.make_batch(
            rollout, obs, returns, advantage=returns - baseline, baseline=counterfactual, memory=networks.memory
        )
        state, metrics = on_policy.update(partial(loss, max_team=largest), settings, state, batch)
        state, of_signals = streams.learn(spec, settings, state, rollout)
        return state, means | metrics | of_signals

    return jaxrl.make_poca(spec, settings)._replace(learn=learn)
