"""An algorithm of one's own: advantage actor-critic (A2C), which is PPO with another loss and a single pass.

    jaxrl train own_algorithm.yaml --run-id=a2c               # which says trainer_type: own_algorithm.py:make_a2c

Everything else is taken over: networks, memory, normalisation, λ-returns, minibatches, Adam, schedules, checkpoints,
ONNX. In Python: `jaxrl.make_algorithm(env.spec, jaxrl.make_settings("own_algorithm.py:make_a2c"))`.
"""

import jax.numpy as jnp
from pydantic import Field

import jaxrl
from jaxrl.algorithms import actor_critic, on_policy, streams
from jaxrl.algorithms.ppo import make_networks
from jaxrl.learning import losses
from jaxrl.networks import actions


class A2CHyperparameters(jaxrl.PPOHyperparameters):
    """Those of PPO, of which epsilon is not used, and one more."""

    num_epoch: int = Field(default=1, ge=1, description="passes over the buffer per update")
    value_weight: float = Field(default=0.5, ge=0, description="factor on the value's squared error")


@jaxrl.trainer_type(hyperparameters=A2CHyperparameters)
def make_a2c(spec, settings):
    """A2C (Mnih et al. 2016, arXiv 1602.01783) for agents with this spec."""
    networks = make_networks(spec, settings)
    weight = settings.hyperparameters.value_weight

    def loss(params, batch, epsilon, beta):
        dist, value = networks.both(params, batch.obs, batch.present, batch.memory)
        log_prob = actions.log_prob(dist, batch.action, batch.action_mask, spec.action).sum(-1)
        entropy = losses.masked_mean(actions.entropy(dist, batch.action_mask, spec.action), batch.acted)
        policy_loss = -losses.masked_mean(log_prob * batch.advantage, batch.acted)
        value_loss = losses.squared_value_loss(value, batch.returns, batch.acted)
        total = policy_loss + weight * value_loss - beta * entropy
        return total, {"policy_loss": jnp.abs(policy_loss), "value_loss": value_loss, "entropy": entropy}

    def learn(state, rollout):
        state, batch, values = actor_critic.prepare(networks, spec, settings, state, rollout)
        state, metrics = on_policy.update(loss, settings, state, batch)
        state, of_signals = streams.learn(spec, settings, state, rollout)
        return state, values | metrics | of_signals

    made = actor_critic.make(networks, spec, settings, team_rows=False)
    return made._replace(learn=learn)
