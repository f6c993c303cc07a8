"""SAC keeps what it has learned of hybrid actions: temperatures that grow without end drown what is paid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.sac_tasks import make_stop
from jaxrl import make_jitted_trainer, make_sac, make_settings


def trained(steps: int, **keys: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean return over the last tenth of the decisions, and temperature of the branch, of three seeds each [3]."""
    env = make_stop()
    hyper = {"batch_size": 64, "learning_rate": 1e-3, **keys}
    settings = make_settings(
        "sac", hyperparameters=hyper, network_settings={"hidden_units": 32, "num_layers": 2}, max_steps=10**6
    )
    trainer = make_jitted_trainer(env, make_sac(env.spec, settings), settings, areas=1, seeds=3)
    state, reward = trainer.init(range(3)), np.zeros(3)
    for _ in range(10):
        state, log = trainer.run(state, steps // 640)
        reward = np.asarray(log.reward)
    return reward, np.exp(np.asarray(state.train.own["log_alpha"]["discrete"]))[:, 0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hybrid_actions_are_learned_and_not_lost() -> None:
    """Best 1. ML-Agents' target rewards entropy, so that going on pays more than stopping, whatever stopping pays."""
    reward, temperature = trained(18_000)
    assert (reward > 0.7).all() and (temperature < 1.0).all(), (reward, temperature)
    reward, temperature = trained(18_000, original_losses=True)
    assert (reward < 0.65).all() and (temperature > 2.0).all(), (reward, temperature)
