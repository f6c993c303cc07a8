"""An algorithm of one's own: advantage actor-critic (A2C), which is PPO with another loss and a single pass.

    jaxrl train own_algorithm.yaml --run-id=a2c               # which says trainer_type: own_algorithm.py:make_a2c

Everything else is taken over: networks, memory, normalisation, λ-returns, minibatches, Adam, schedules, checkpoints,
ONNX. In Python: `jaxrl.make_algorithm(env.spec, jaxrl.make_settings("own_algorithm.py:make_a2c"))`.
"""

import jax.numpy as jnp
from pydantic import Field

import jaxrl
from jaxrl.algorithms import policy_gradient, ppo
from jaxrl.learning import losses
from jaxrl.networks import actions


class A2CHyperparameters(jaxrl.PPOHyperparameters):
    """Those of PPO, of which epsilon is not used, and one more."""

    num_epoch: int = Field(default=1, ge=1, description="passes over the buffer per update")
    value_weight: float = Field(default=0.5, ge=0, description="factor on the value's squared error")


@jaxrl.trainer_type(hyperparameters=A2CHyperparameters)
def make_a2c(spec, settings):
    """A2C (Mnih et al. 2016, arXiv 1602.01783) for agents with this spec."""
    parts, weight = ppo.parts_of(spec, settings), settings.hyperparameters.value_weight

    def loss(dist, value, baseline, batch, now):
        log_prob = actions.log_prob(dist, batch.action, batch.action_mask, spec.action).sum(-1)
        entropy = losses.masked_mean(actions.entropy(dist, batch.action_mask, spec.action), batch.acted)
        policy_loss = -losses.masked_mean(log_prob * batch.advantage, batch.acted)
        value_loss = losses.squared_value_loss(value, batch.returns, batch.acted)
        total = policy_loss + weight * value_loss - now.beta * entropy
        return total, {"policy_loss": jnp.abs(policy_loss), "value_loss": value_loss, "entropy": entropy}

    return policy_gradient.make(parts._replace(loss=loss))
