"""An off-policy algorithm of one's own: DQN with a moving target, which draws from softmax(Q / temperature).

    jaxrl train own_dqn.yaml --run-id=dqn                     # which says trainer_type: own_dqn.py:make_dqn

The replay is the one of SAC. The network is the actor of every algorithm here, whose logits are read as Q /
temperature: so what it learns is what a file for Unity holds.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from pydantic import Field

import jaxrl
from jaxrl.learning import replay
from jaxrl.networks import actions, normalizer
from jaxrl.networks.models import Actor
from jaxrl.networks.policy import actor_network
from jaxrl.rollout.rollout import masked


class DQNHyperparameters(jaxrl.Hyperparameters):
    """What the file may say."""

    batch_size: int = Field(default=64, ge=1, description="transitions of a minibatch")
    buffer_size: int = Field(default=10000, ge=1, description="transitions that are held")
    initial: int = Field(default=500, ge=0, description="decisions before learning begins")
    per_update: int = Field(default=16, ge=1, description="decisions from one turn of minibatches to the next")
    minibatches: int = Field(default=8, ge=1, description="of a turn")
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

    def q_of(params, obs):
        return hyper.temperature * network.apply(params, obs).logits

    def init(key):
        network_key, key = jax.random.split(key)
        params = network.init(network_key, tuple(jnp.zeros((1, *s.shape), s.dtype) for s in spec.observations))
        return jaxrl.TrainState(
            policy=jaxrl.PolicyState(params=params, normalizer=normalizer.init_all(spec, False)),
            critic={},
            optimizer=optimizer.init(params),
            own={"target": jax.tree.map(jnp.copy, params)},
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

    def step(store, carry, key):
        params, target, moments = carry
        batch = replay.sample(store, key, hyper.batch_size)
        error, gradient = jax.value_and_grad(loss)(params, target, batch)
        change, moments = optimizer.update(gradient, moments)
        params = optax.apply_updates(params, change)
        return (params, optax.incremental_update(params, target, hyper.tau), moments), error

    def learn(state, store):
        key, next_key = jax.random.split(state.key)
        begun = state.policy.params, state.own["target"], state.optimizer
        keys = jax.random.split(key, hyper.minibatches)
        (params, target, moments), errors = jax.lax.scan(partial(step, store), begun, keys)
        policy = state.policy.replace(params=params)
        state = state.replace(policy=policy, own={"target": target}, optimizer=moments, key=next_key)
        return state, {"value_loss": errors.mean()}

    def estimate(state, rollout):
        best = q_of(state.policy.params, masked(rollout).obs).max(-1)
        return {"value_estimate": jnp.sum(best * rollout.acted) / jnp.maximum(rollout.acted.sum(), 1)}

    return jaxrl.Algorithm(
        init=init,
        act=act,
        storage=jaxrl.Storage(
            init=partial(replay.empty, spec, hyper.buffer_size),
            add=lambda store, rollout: replay.add(store, masked(rollout)),
            can_sample=lambda _, counts: counts.total >= hyper.initial,
            sample=partial(replay.sample, size=hyper.batch_size),
            kept=lambda store: store,
        ),
        learn=learn,
        estimate=estimate,
        collect_size=hyper.per_update,
        extras=(),
        memories=(),
        team_rows=False,
        policy=actor_network(spec, shape),
    )
