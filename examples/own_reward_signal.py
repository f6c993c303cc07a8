"""A reward signal of one's own: novelty, the error of a small network that learns to foresee what a random one says.

    jaxrl train own_reward_signal.yaml --run-id=novelty         # novelty: {type: own_reward_signal.py:make_novelty}

What an agent has seen often is foreseen well and pays little (random network distillation, Burda et al. 2018, arXiv
1810.12894, with one layer). The signal has a stream: gamma, strength, a value of its own, and the tags
`Policy/Novelty Reward`, `Policy/Novelty Value Estimate` and `Losses/Novelty Loss`.
"""

import math

import jax
import jax.numpy as jnp
import optax
from pydantic import Field

import jaxrl
from jaxrl.learning.losses import masked_mean


class NoveltySettings(jaxrl.OwnSignalSettings):
    """gamma, strength and what the signal alone has."""

    learning_rate: float = Field(default=1e-2, ge=0, description="Adam step size of the predictor")
    features: int = Field(default=8, ge=1, description="numbers that the random network says")


@jaxrl.reward_signal(settings=NoveltySettings)
def make_novelty(spec, settings):
    """The signal for agents with this spec; it sees all numbers of their observations."""
    adam = optax.adam(settings.learning_rate)
    inputs = sum(math.prod(sensor.shape) for sensor in spec.observations)

    def init(key):
        target, predictor = jax.random.normal(key, (2, inputs, settings.features))
        return {"target": target, "predictor": predictor, "optimizer": adam.init(predictor)}

    def error(predictor, target, transitions):  # [T, B, A]
        lead = transitions.valid.shape
        seen = jnp.concatenate([obs.reshape(*lead, -1).astype(jnp.float32) for obs in transitions.obs], axis=-1)
        return jnp.square(jnp.tanh(seen @ predictor) - jnp.tanh(seen @ target)).mean(-1)

    def reward(state, transitions, *, cooperative):
        return error(state["predictor"], state["target"], transitions)

    def learn(state, transitions, key):
        def loss(predictor):
            return masked_mean(error(predictor, state["target"], transitions), transitions.valid)

        value, gradient = jax.value_and_grad(loss)(state["predictor"])
        change, optimizer = adam.update(gradient, state["optimizer"])
        return state | {"predictor": state["predictor"] + change, "optimizer": optimizer}, {"loss": value}

    return jaxrl.RewardSignal(reward=reward, init=init, learn=learn)
