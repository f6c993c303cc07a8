"""Hallway (memory) and Sorter (a variable number of entities) are trained: two updates, a player, and to the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from jaxrl.algorithms import ALGORITHMS
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.contract import check_jax_env
from jaxrl.jax_envs.sorter import SorterSettings, make_sorter
from jaxrl.training.compiled.trainer import make_jitted_trainer
from tests import trainer
from tests.helpers import settings_of
from tests.jax_envs.toy_jax_env import quick_compilation

ROOT = Path(__file__).parents[2]
SCENES = {"Hallway": ENVIRONMENTS["hallway"](), "Sorter": make_sorter(SorterSettings(max_tiles=4))}
SMALL = {"hidden_units": 8, "num_layers": 1}
REMEMBERS: dict[str, Any] = {"memory": {"sequence_length": 4, "memory_size": 8}}
SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("name", ["Hallway", pytest.param("Sorter", marks=pytest.mark.slow)])
def test_two_updates(name: str) -> None:
    """Every parameter of actor and critic moves, and all numbers are finite."""
    env, network = SCENES[name], SMALL | (REMEMBERS if name == "Hallway" else {})
    hyperparameters = {"batch_size": 16, "buffer_size": 32, "num_epoch": 1}
    settings = settings_of("ppo", {"network_settings": network, "hyperparameters": hyperparameters})
    check_jax_env(env)
    with quick_compilation():
        made = make_jitted_trainer(env, ALGORITHMS["ppo"](env.spec, settings), settings, areas=2)
        state = made.init([3])
        before = jax.device_get((state.train.policy.params, state.train.critic))
        after, log = made.run(state, 2)
    assert log.updates == 2 and (log.fault == -1).all()
    assert all(np.isfinite(value).all() for value in log.metrics.values())
    learned = (after.train.policy.params, after.train.critic)
    moved = jax.tree.map(lambda old, new: bool((old != np.asarray(new)).any()), before, learned)
    still = [jax.tree_util.keystr(path) for path, x in jax.tree_util.tree_leaves_with_path(moved) if not x]
    assert not [path for path in still if "key" not in path], still  # softmax does not see a bias of keys


@pytest.mark.slow
@pytest.mark.usefixtures("runs")
@pytest.mark.timeout(400)
@pytest.mark.skipif(os.name == "nt", reason="players here are shell scripts")
@pytest.mark.parametrize(
    ("name", "behavior", "network"),
    [
        ("hallway", "Hallway", REMEMBERS),
        pytest.param("sorter", "Sorter", {}, marks=pytest.mark.slow),
        pytest.param("probe_mixed", "ProbeMixed", REMEMBERS, marks=pytest.mark.slow),
    ],
)
def test_a_short_run_with_a_player(tmp_path: Path, name: str, behavior: str, network: dict[str, Any]) -> None:
    """Over the wire; the policy is exported at the end and acts like the checkpoint."""
    settings = {
        "behaviors": {
            behavior: {
                "trainer_type": "ppo",
                "hyperparameters": {"batch_size": 32, "buffer_size": 128, "num_epoch": 1},
                "network_settings": SMALL | network,
                "max_steps": 300,
            }
        },
        "env_settings": {"env_path": f"player:{name}", "num_areas": 4, "seed": 1},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    assert trainer.train(path, tmp_path) == 0
    assert (tmp_path / "run" / f"{behavior}.onnx").is_file()


@pytest.mark.parametrize(
    ("config", "least"),
    [pytest.param("ppo/hallway", 0.95, marks=SLOW), pytest.param("ppo/sorter", 2.5, marks=SLOW)],
)
def test_the_configuration_learns_what_it_says(tmp_path: Path, config: str, least: float) -> None:
    """Mean return over the last two summaries of the whole run, one seed."""
    words = ["train", str(ROOT / "configs" / f"{config}.yaml"), "--run-id", "run", "--results-dir", str(tmp_path)]
    place = {**os.environ, "PYTHONPATH": str(ROOT), "JAXRL_CACHE_DIR": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "jaxrl.cli", *words, "--seed", "1"]
    ran = subprocess.run(command, env=place, capture_output=True, text=True, timeout=1700)
    assert ran.returncode == 0, ran.stderr
    means = [float(number) for number in re.findall(r"Mean Reward: (-?\d+\.\d+)", " ".join(ran.stdout.split()))][-2:]
    assert sum(means) / 2 >= least, means
