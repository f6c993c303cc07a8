"""examples/own_poca.py: with MA-POCA's own baseline and no decay it is MA-POCA, and each of its two changes acts."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from team_rollouts import SPEC, fresh, quick_jit, random_rollout

import jaxrl

MINE = f"{Path(__file__).parents[2] / 'examples' / 'own_poca.py'}:make_my_poca"


def updated(trainer, **own):
    """Parameters of policy and critic after one update, and its metrics."""
    networks = {"hidden_units": 8, "num_layers": 1}
    hyper = {"batch_size": 16, "buffer_size": 64, "num_epoch": 1, **own}
    algorithm = jaxrl.make_algorithm(
        SPEC, jaxrl.make_settings(trainer, network_settings=networks, hyperparameters=hyper)
    )
    state, metrics = quick_jit(algorithm.learn)(fresh(algorithm), random_rollout(0))
    return *jax.tree.map(np.asarray, (state.policy.params, state.critic)), metrics


def distance(x, y):
    return max(float(np.abs(a - b).max()) for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True))


def test_with_the_usual_baseline_and_no_decay_it_is_ma_poca() -> None:
    policy, critic, _ = updated("poca")
    same = updated(MINE, counterfactual=True, value_decay=0.0)
    assert distance(same[0], policy) < 1e-6 and distance(same[1], critic) < 1e-6 and same[2]["decay_loss"] > 0


@pytest.mark.slow
def test_the_baseline_moves_the_policy_alone_and_the_decay_the_critic_alone() -> None:
    policy, critic, _ = updated(MINE, counterfactual=True, value_decay=0.0)
    shared, decayed = updated(MINE, value_decay=0.0), updated(MINE, counterfactual=True, value_decay=1.0)
    assert distance(shared[0], policy) > 1e-5 and distance(shared[1], critic) < 1e-6
    assert distance(decayed[1], critic) > 1e-5 and distance(decayed[0], policy) < 1e-6
