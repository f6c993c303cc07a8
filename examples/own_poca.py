"""MA-POCA with another advantage, an added loss, and one with a head of its own; all are set in own_poca.yaml.

jaxrl train own_poca.yaml --run-id=mine                        # which says trainer_type: own_poca.py:make_my_poca
"""

import flax.linen as nn
import jax.numpy as jnp
import optax
from pydantic import Field

import jaxrl
from jaxrl.algorithms import poca, policy_gradient
from jaxrl.algorithms.parts import AddedLoss
from jaxrl.learning.losses import masked_mean
from jaxrl.networks.models import Actor


class MyHyperparameters(jaxrl.POCAHyperparameters):
    """Those of MA-POCA, and three more."""

    counterfactual: bool = Field(default=False, description="the baseline of MA-POCA; false: the value of the team")
    value_decay: float = Field(default=1e-3, ge=0, description="factor on the mean square of the team's value")
    foresight: float = Field(default=0.1, ge=0, description="factor on the error of what is foreseen")


@jaxrl.trainer_type(hyperparameters=MyHyperparameters, cooperative=True)
def make_my_poca(spec, settings):
    """MA-POCA whose members share the advantage R - V of their team, with a decay of V and a head that foresees."""
    mine, parts = settings.hyperparameters, poca.parts_of(spec, settings)
    if not mine.counterfactual:
        parts = parts._replace(advantage=lambda returns, value, baseline, rollout: returns - value)
    added = {"decay": decay(parts, mine.value_decay), "foresight": foresight(spec, settings, mine.foresight)}
    return policy_gradient.make(parts._replace(added=added, optimizers={"foresight": optax.adam(1e-3)}))


def decay(parts, weight):
    """V is drawn to 0."""

    def loss(params, batch, now):
        square = jnp.mean(jnp.square(parts.estimates(params, batch.seen, now.own)[0]))
        return weight * square, {"decay_loss": square}

    return AddedLoss(loss)


def foresight(spec, settings, weight):
    """A head on the policy's body says what its agent will see next, in the first sensor."""
    actor, head = Actor(spec, settings.network_settings), nn.Dense(spec.observations[0].shape[-1])

    def init(key):
        return head.init(key, jnp.zeros((1, settings.network_settings.hidden_units)))

    def loss(params, batch, now):
        next_obs, seen = batch.inputs["foresight"]
        said = head.apply(params["foresight"], actor.apply(params["actor"], batch.obs, method="encode"))
        error = masked_mean(jnp.square(said - next_obs), seen)
        return weight * error, {"foresight_loss": error}

    def next_obs(state, rollout):
        found = jaxrl.transitions(rollout)
        return found.next_obs[0], found.seen

    return AddedLoss(loss, init, next_obs)
