"""examples/own_poca.py: with MA-POCA's own baseline and no decay it is MA-POCA, and each of its two changes acts."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
from team_rollouts import SPEC, fresh, quick_jit, random_rollout

import jaxrl

FILE = Path(__file__).parents[2] / "examples" / "own_poca.py"


def test_its_changes_and_nothing_else_make_it_differ_from_ma_poca() -> None:
    def updated(trainer, **own):
        networks = {"hidden_units": 8, "num_layers": 1}
        hyper = {"batch_size": 16, "buffer_size": 64, "num_epoch": 1, **own}
        settings = jaxrl.make_settings(trainer, network_settings=networks, hyperparameters=hyper)
        algorithm = jaxrl.make_algorithm(SPEC, settings)
        state, metrics = quick_jit(algorithm.learn)(fresh(algorithm), random_rollout(0))
        return jax.tree.map(np.asarray, (state.policy.params, state.critic)), metrics

    mine = f"{FILE}:make_my_poca"
    usual, _ = updated("poca")
    same, metrics = updated(mine, counterfactual=True, value_decay=0.0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), usual, same)
    assert metrics["decay_loss"] > 0
    shared, _ = updated(mine, counterfactual=False, value_decay=0.0)
    drawn, _ = updated(mine, counterfactual=True, value_decay=1.0)

    def distance(x, y):
        return max(float(np.abs(a - b).max()) for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True))

    assert distance(shared[0], usual[0]) > 1e-4 and distance(shared[1], usual[1]) < 1e-6  # only the policy's advantage
    assert distance(drawn[1], usual[1]) > 1e-5 and distance(drawn[0], usual[0]) < 1e-6  # only the critic's loss
