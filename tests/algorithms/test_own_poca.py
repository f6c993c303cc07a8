"""examples/own_poca.py: without its three changes it is MA-POCA, and each of them does what it should alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from team_rollouts import SPEC, fresh, quick_jit, random_rollout

import jaxrl
from jaxrl.algorithms import policy_gradient, ppo, updating
from jaxrl.algorithms.parts import AddedLoss
from tests.jax_envs.toy_jax_env import make_toy, quick_compilation

MINE = f"{Path(__file__).parents[2] / 'examples' / 'own_poca.py'}:make_my_poca"
NOTHING = {"counterfactual": True, "value_decay": 0.0, "foresight": 0.0}


def made(trainer: str, **own: Any) -> jaxrl.Algorithm:
    networks = {"hidden_units": 8, "num_layers": 1}
    hyper = {"batch_size": 16, "buffer_size": 64, "num_epoch": 1, **own}
    settings = jaxrl.make_settings(trainer, network_settings=networks, hyperparameters=hyper)
    return jaxrl.make_algorithm(SPEC, settings)


def updated(trainer: str, updates: int = 1, **own: Any) -> Any:
    """The state after some updates with one rollout, and the metrics of the first and the last."""
    algorithm, rollout = made(trainer, **own), random_rollout(0)
    if updates > 1:  # something that can be foreseen
        rollout = rollout._replace(obs=tuple(np.full_like(x, 2.0) for x in rollout.obs))
    learn, state, metrics = quick_jit(algorithm.learn), fresh(algorithm), []
    for _ in range(updates):
        state, found = learn(state, rollout)
        metrics.append(found)
    return state, metrics[0], metrics[-1]


def distance(x: Any, y: Any) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True))


@pytest.mark.slow
def test_without_its_changes_it_is_ma_poca() -> None:
    poca, *_ = updated("poca")
    same, metrics, _ = updated(MINE, **NOTHING)
    assert distance(same.policy.params, poca.policy.params) < 1e-6 and distance(same.critic, poca.critic) < 1e-6
    assert metrics["decay_loss"] > 0 and metrics["foresight_loss"] > 0


@pytest.mark.slow
def test_the_advantage_moves_the_policy_alone_and_the_decay_the_critic_alone() -> None:
    plain, *_ = updated(MINE, **NOTHING)
    shared, *_ = updated(MINE, **NOTHING | {"counterfactual": False})
    decayed, *_ = updated(MINE, **NOTHING | {"value_decay": 1.0})
    assert distance(shared.policy.params, plain.policy.params) > 1e-5 and distance(shared.critic, plain.critic) < 1e-6
    assert distance(decayed.critic, plain.critic) > 1e-5 and distance(decayed.policy.params, plain.policy.params) < 1e-6


def test_a_head_of_its_own_learns_by_its_own_optimizer() -> None:
    """The policy stands still; what is foreseen becomes better all the same, by the head's own step size."""
    state, first, last = updated(MINE, 200, **NOTHING | {"foresight": 1.0, "learning_rate": 1e-12})
    assert distance(state.policy.params, fresh(made("poca")).policy.params) < 1e-6
    assert 0 < float(last["foresight_loss"]) < 0.5 * float(first["foresight_loss"])
    assert set(state.optimizer.inner_states) == {"actor", "critic", "foresight"}


def test_what_a_loss_draws_is_new_for_each_minibatch() -> None:
    """The mean of 8 draws of a uniform number lies between them, and an update later it is another."""
    settings = jaxrl.make_settings(
        "ppo", network_settings={"hidden_units": 4, "num_layers": 1}, hyperparameters={"batch_size": 4, "num_epoch": 2}
    )

    def loss(params: Any, batch: Any, now: Any) -> Any:
        drawn = jax.random.uniform(now.key)
        return 0.0 * drawn, {"mean": drawn, "square": drawn**2}

    parts = ppo.parts_of(SPEC, settings)._replace(added={"drawn": AddedLoss(loss)})
    algorithm = policy_gradient.make(parts)
    learn, state = quick_jit(algorithm.learn), fresh(algorithm)
    state, one = learn(state, random_rollout(1, t=8, a=1))
    _, other = learn(state, random_rollout(1, t=8, a=1))
    assert one["square"] - one["mean"] ** 2 > 1e-3 and abs(one["mean"] - other["mean"]) > 1e-4


def test_a_group_that_is_not_there_is_named() -> None:
    parts = ppo.parts_of(SPEC, jaxrl.make_settings("ppo"))._replace(optimizers={"policy": updating.ADAM})
    with pytest.raises(ValueError, match="optimizers: there is no group policy, expected one of actor, critic"):
        policy_gradient.make(parts).init(jax.random.key(0))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_seeds_with_values_of_their_own_learn_with_them() -> None:
    """Two seeds in one program: where the learning rate is 0, the head alone learns, which has its own."""
    env = make_toy()
    settings = jaxrl.make_settings(
        MINE,
        network_settings={"hidden_units": 4, "num_layers": 1},
        hyperparameters={"batch_size": 16, "buffer_size": 32, "num_epoch": 1, "learning_rate_schedule": "constant"},
    )
    with quick_compilation():
        algorithm = jaxrl.make_algorithm(env.spec, settings)
        values = {"hyperparameters.learning_rate": [0.0, 0.01]}
        trainer = jaxrl.make_jitted_trainer(env, algorithm, settings, areas=3, seeds=2, values=values)
    begun = trainer.init([0, 1])
    before = jax.device_get(begun.train)
    after, _ = trainer.run(begun, 2)
    after = jax.device_get(after.train)

    def moved(x: Any, y: Any, seed: int) -> float:
        return distance(*(jax.tree.map(lambda leaf: np.asarray(leaf[seed]), tree) for tree in (x, y)))

    assert moved(before.policy.params, after.policy.params, 0) == 0.0 < moved(before.critic, after.critic, 1)
    assert moved(before.own["foresight"], after.own["foresight"], 0) > 1e-4
