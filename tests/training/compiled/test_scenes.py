"""Scenes with images, grids and goals in the compiled loop: two updates of each; the slow tests learn the scenes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl.algorithms import ALGORITHMS
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.contract import check_jax_env
from jaxrl.jax_envs.food_collector import FoodSettings, make_food_collector
from jaxrl.jax_envs.match3 import Match3Settings, make_match3, make_match3_vector
from jaxrl.training.compiled.trainer import make_jitted_trainer
from tests.helpers import settings_of
from tests.jax_envs.toy_jax_env import quick_compilation

ROOT = Path(__file__).parents[3]
BOARD = Match3Settings(rows=5, columns=5, colours=4, moves=10)
FOOD = FoodSettings(agents=2, good=4, bad=2, episode_limit=10)
SCENES = {
    "grid_world": (ENVIRONMENTS["grid_world"](), "ppo", "simple"),
    "grid_world_grid": (ENVIRONMENTS["grid_world_grid"](), "ppo", "match3"),
    "food_collector": (make_food_collector(FOOD), "ppo", "simple"),
    "food_collector as a team": (make_food_collector(FOOD), "poca", "fully_connected"),
    "match3": (make_match3(BOARD), "ppo", "match3"),
    "match3_vector": (make_match3_vector(BOARD), "ppo", "simple"),
}


QUICK = ("food_collector as a team",)  # the others compile as long and say little more


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SCENES]
)
def test_two_updates(name: str) -> None:
    """The networks move, all numbers are finite, and images are kept with a byte per number."""
    env, trainer_type, encoder = SCENES[name]
    settings = settings_of(
        trainer_type,
        {
            "hyperparameters__batch_size": 16,
            "hyperparameters__buffer_size": 32,
            "hyperparameters__num_epoch": 1,
            "network_settings__hidden_units": 8,
            "network_settings__num_layers": 1,
            "network_settings__vis_encode_type": encoder,
        },
    )
    check_jax_env(env)
    with quick_compilation():
        trainer = make_jitted_trainer(env, ALGORITHMS[trainer_type](env.spec, settings), settings, areas=2)
        before = trainer.init([3])
        params = jax.device_get(before.train.policy.params)
        assert [x.dtype for x in before.play.view.obs] == [sensor.dtype for sensor in env.spec.observations]
        after, log = trainer.run(before, 2)
    assert log.updates == 2 and (log.fault == -1).all()
    assert all(np.isfinite(value).all() for value in log.metrics.values())
    moved = jax.tree.map(lambda old, new: bool((old != np.asarray(new)).any()), params, after.train.policy.params)
    assert all(jax.tree.leaves(moved)), moved


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("config", "least"),
    [
        ("ppo/grid_world", 0.85),
        ("ppo/grid_world_grid", 0.9),
        ("ppo/food_collector", 9.5),
        ("poca/food_collector", 8.5),
        ("ppo/match3_vector", 38.0),
        ("ppo/match3", 37.8),
    ],
)
def test_the_configuration_learns_what_it_says(tmp_path: Path, config: str, least: float) -> None:
    """Mean return over the last two summaries of the whole run, one seed."""
    words = ["train", str(ROOT / "configs" / f"{config}.yaml"), "--run-id", "run", "--results-dir", str(tmp_path)]
    place = {**os.environ, "PYTHONPATH": str(ROOT), "JAXRL_CACHE_DIR": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-m", "jaxrl.cli", *words, "--seed", "1"],
        env=place,
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert ran.returncode == 0, ran.stderr
    means = [float(number) for number in re.findall(r"Mean Reward: (-?\d+\.\d+)", " ".join(ran.stdout.split()))][-2:]
    assert sum(means) / 2 >= least, means
