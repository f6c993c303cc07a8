"""MA-POCA with a stream that each member earns for itself: what value and baselines learn of it, and that it serves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms import poca
from jaxrl.algorithms.parts import Seen, groups_of
from jaxrl.types import Action
from tests.helpers import settings_of
from tests.jax_envs.toy_jax_env import quick_compilation
from tests.rewards.own_signals import PLACE
from tests.rewards.two_corridors import LENGTH, make_two_corridors

ENV = make_two_corridors()
EXTRINSIC = {"extrinsic": {"gamma": 0.99}}
NETWORK = {"hidden_units": 32, "num_layers": 1}
SIZES = {
    "batch_size": 256, "buffer_size": 2048, "learning_rate": 3e-3, "learning_rate_schedule": "constant", "beta": 0.01,
}  # fmt: skip


def trained(signals: Any, iterations: int, seeds: int) -> tuple[Any, Any, Any]:
    """Settings, the state after so many updates, and the log of the last ten."""
    written = {"hyperparameters": SIZES, "network_settings": NETWORK, "reward_signals": signals, "max_steps": 1_000_000}
    settings = settings_of("poca", written)
    with quick_compilation():
        made = jaxrl.make_algorithm(ENV.spec, settings)
        trainer = jaxrl.make_jitted_trainer(ENV, made, settings, areas=16, seeds=seeds)
    state, _ = trainer.run(trainer.init(range(1, 1 + seeds)), iterations - 10)
    return settings, *trainer.run(state, 10)


@pytest.mark.slow
def test_curiosity_alone_finds_what_a_team_is_paid_for() -> None:
    """30 updates of 2,048 decisions, three seeds: 0 without it, since nobody was ever paid; all of 1 with it."""
    _, _, log = trained(EXTRINSIC, 30, 3)
    assert np.max(log.group_reward) < 0.02
    curiosity = {"strength": 0.1, "gamma": 0.95, "learning_rate": 1e-3, "network_settings": NETWORK}
    _, _, log = trained(EXTRINSIC | {"curiosity": curiosity}, 30, 3)
    assert np.min(log.group_reward) > 0.9


@pytest.mark.slow
def test_value_learns_what_members_earn_on_average_and_each_baseline_its_own() -> None:
    """Who is at home is paid 1, with gamma 0: V is 1 with both at home, 0.5 with one, 0 with none; b_i is 1 or 0."""
    settings, state, _ = trained({"home": {"type": f"{PLACE}:make_home", "gamma": 0.0}}, 40, 1)
    train = jax.tree.map(lambda x: x[0], state.train)
    parts = poca.parts_of(ENV.spec, settings)
    places = np.array([[0, 0], [0, 1], [1, 2]])
    own = np.eye(LENGTH, dtype=np.float32)[places]  # [N, A, LENGTH]
    obs = jnp.concatenate([own, own[:, ::-1]], axis=-1)
    still = Action(jnp.zeros((3, 2, 0)), jnp.ones((3, 2, 1), jnp.int32))
    seen = Seen((obs,), still, jnp.ones((3, 2), bool), ())
    value, baseline = parts.estimates(groups_of(parts, train), seen, train.own)
    np.testing.assert_allclose(value[..., 0], [[1, 1], [0.5, 0.5], [0, 0]], atol=0.1)
    np.testing.assert_allclose(baseline[..., 0], [[1, 1], [1, 0], [0, 0]], atol=0.1)
