"""examples/own_dqn.py: what it learns has the value that it should have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from team_rollouts import quick_jit, random_rollout

import jaxrl
from jaxrl.algorithms.interface import store_rollout
from tests.helpers import make_spec

NAME = f"{Path(__file__).parents[2] / 'examples' / 'own_dqn.py'}:make_dqn"
SPEC = make_spec((3,), branches=(2,))
HYPER = {"batch_size": 32, "buffer_size": 200, "buffer_init_steps": 0, "learning_rate": 0.02, "tau": 0.2}


def made(spec: jaxrl.BehaviorSpec = SPEC, **more: Any) -> jaxrl.Algorithm:
    settings = jaxrl.make_settings(
        NAME,
        network_settings={"hidden_units": 16, "num_layers": 1},
        hyperparameters=HYPER | more,
        reward_signals={"extrinsic": {"gamma": 0.5}},
    )
    return jaxrl.make_algorithm(spec, settings)


def test_q_becomes_the_reward_and_half_of_what_follows() -> None:
    """State 0 pays 1 and leads to state 1, which pays 4 and ends: V(0) = 1 + 0.5 · 4 = 3, V(1) = 4."""
    algorithm = made(steps_per_update=16 / 480)  # 16 decisions pay for 480 updates
    rollout = random_rollout(0, t=3, b=8, a=1, spec=SPEC)
    shape = rollout.acted.shape
    clock = np.arange(3)[:, None, None]
    numbers = np.broadcast_to(clock, shape)
    no = np.zeros(shape, bool)
    rollout = rollout._replace(
        obs=(np.eye(3, dtype=np.float32)[numbers],),
        extras={},
        present=~no,
        acted=numbers < 2,
        terminated=numbers == 1,
        reward=np.where(numbers == 0, 1.0, 4.0).astype(np.float32),
        group_reward=np.zeros(shape, np.float32),
        **dict.fromkeys(("waiting", "truncated", "left", "cut"), no),
    )
    learn, state, store = (
        quick_jit(algorithm.learn),
        quick_jit(algorithm.init)(jax.random.key(0)),
        algorithm.storage.init(),
    )
    state, store = store_rollout(algorithm, state, store, rollout)
    state, _ = learn(state, store)
    of_each = [float(algorithm.estimate(state, rollout._replace(acted=numbers == n))["value_estimate"]) for n in (0, 1)]
    taken = [len(np.unique(np.asarray(rollout.action.discrete)[n])) for n in (0, 1)]
    assert taken == [2, 2]  # both choices are in the replay, so that max Q is that of what was seen
    assert of_each == pytest.approx([3.0, 4.0], abs=0.25)


def test_two_branches_are_refused() -> None:
    with pytest.raises(jaxrl.JaxrlError, match="one discrete branch"):
        made(make_spec((3,), branches=(2, 2)))
