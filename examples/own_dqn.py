"""An off-policy algorithm of one's own: DQN with a moving target, which draws from softmax(Q / temperature).

    jaxrl train own_dqn.yaml --run-id=dqn                     # which says trainer_type: own_dqn.py:make_dqn

The replay is the one of SAC, and so is the count of updates that decisions pay for. The network is the actor of every
algorithm here, whose logits are read as Q / temperature: so what it learns is what a file for Unity holds.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from pydantic import Field

import jaxrl
from jaxrl.algorithms import off_policy
from jaxrl.networks import actions, normalizer
from jaxrl.networks.models import Actor
from jaxrl.networks.policy import actor_network
from jaxrl.rollout.rollout import masked


class DQNHyperparameters(jaxrl.Hyperparameters):
    """What the file may say."""

    batch_size: int = Field(default=64, ge=1, description="transitions of a minibatch")
    buffer_size: int = Field(default=10000, ge=1, description="transitions that are held")
    buffer_init_steps: int = Field(default=500, ge=0, description="decisions before learning begins")
    steps_per_update: float = Field(default=2.0, gt=0, description="decisions for one minibatch")
    save_replay_buffer: bool = Field(default=False, description="keep the replay with the checkpoint")
    tau: float = Field(default=0.05, gt=0, le=1, description="share of the new parameters in the target")
    temperature: float = Field(default=0.1, gt=0, description="of what is drawn from")


@jaxrl.trainer_type(hyperparameters=DQNHyperparameters)
def make_dqn(spec, settings):
    """DQN (Mnih et al. 2015; the target as in Lillicrap et al. 2016) for agents with one discrete branch."""
    if spec.action.continuous_size or len(spec.action.discrete_branches) != 1:
        raise jaxrl.JaxrlError(f"own_dqn.py: made for one discrete branch, got {spec.action}")
    hyper, shape, gamma = (
        settings.hyperparameters,
        settings.network_settings,
        settings.reward_signals["extrinsic"].gamma,
    )
    network, optimizer = Actor(spec, shape), optax.adam(hyper.learning_rate)
    storage = off_policy.storage_of(spec, hyper, memory=None)

    def q_of(params, obs):
        return hyper.temperature * network.apply(params, obs).logits

    def init(key):
        network_key, key = jax.random.split(key)
        params = network.init(network_key, tuple(jnp.zeros((1, *s.shape), s.dtype) for s in spec.observations))
        return jaxrl.TrainState(
            policy=jaxrl.PolicyState(params=params, normalizer=normalizer.init_all(spec, False)),
            critic={},
            optimizer=optimizer.init(params),
            own={
                "target": jax.tree.map(jnp.copy, params),
                "fresh": jnp.zeros((), jnp.int32),  # decisions since the last turn
                "owed": jnp.zeros(()),  # updates that they have paid for
                "told": {"value_loss": jnp.zeros(())},
            },
            signals={},
            step=jnp.zeros((), jnp.int32),
            key=key,
        )

    def act(policy, obs, action_mask, carry, key):
        action = actions.sample(key, network.apply(policy.params, obs), action_mask, spec.action)
        return jaxrl.Decision(action=action, sent=action, extras={}, carry=carry)

    def loss(params, target, batch):
        later = q_of(target, batch.next_obs).max(-1)
        q = jnp.take_along_axis(q_of(params, batch.obs), batch.action.discrete, axis=-1)[:, 0]
        return jnp.square(batch.reward + gamma * batch.discount * batch.seen * later - q).mean()

    def update(learner, batch, key):
        params, target, moments = learner
        error, gradient = jax.value_and_grad(loss)(params, target, batch)
        change, moments = optimizer.update(gradient, moments)
        params = optax.apply_updates(params, change)
        target = optax.incremental_update(params, target, hyper.tau)
        return (params, target, moments), {"value_loss": error}

    def watch(state, rollout):
        return off_policy.counted(hyper, state, rollout)

    def learn(state, store):
        key, next_key = jax.random.split(state.key)
        own, draw, key_of = state.own, partial(storage.sample, store), partial(jax.random.fold_in, key)
        learner, owed = (state.policy.params, own["target"], state.optimizer), own["owed"]
        owed += own["fresh"] / hyper.steps_per_update
        learner, owed, told = off_policy.turn(update, learner, owed, own["told"], draw, key_of)
        params, target, moments = learner
        own = {"target": target, "fresh": jnp.zeros_like(own["fresh"]), "owed": owed, "told": told}
        policy = state.policy.replace(params=params)
        return state.replace(policy=policy, own=own, optimizer=moments, key=next_key), told

    def estimate(state, rollout):
        best = q_of(state.policy.params, masked(rollout).obs).max(-1)
        return {"value_estimate": jnp.sum(best * rollout.acted) / jnp.maximum(rollout.acted.sum(), 1)}

    return jaxrl.Algorithm(
        init=init,
        act=act,
        storage=storage,
        learn=learn,
        estimate=estimate,
        watch=watch,
        collect_size=off_policy.collect_size(hyper, memory=None),
        extras=(),
        memories=(),
        team_rows=False,
        policy=actor_network(spec, shape),
    )
