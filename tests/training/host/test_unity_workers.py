"""From settings to environments: the recipe for a worker, and that a worker needs no JAX to follow it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jaxrl.envs.unity import environment
from jaxrl.envs.unity.simulator import make_unity
from jaxrl.settings import EnvironmentSettings, RunSettings
from jaxrl.training.host.launch import make_factory
from jaxrl.types import JaxrlError


def settings_for(env_path: str) -> RunSettings:
    return RunSettings(env_settings=EnvironmentSettings(env_path=env_path, base_port=6000, seed=7, num_areas=3))


def test_a_recipe_holds_plain_values(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXRL_CACHE_DIR", str(tmp_path))
    arguments, seed, *_ = make_factory(settings_for("player:dungeon_escape"), "logs").args
    assert seed == 7
    assert arguments["file_name"].endswith("DungeonEscape.x86_64") and arguments["num_areas"] == 3
    assert arguments["base_port"] == 6000 and arguments["log_folder"] == "logs"


def test_seeds_of_workers_stay_within_what_a_message_holds(monkeypatch):
    seeds = []
    monkeypatch.setattr(environment, "UnityHostEnv", lambda *, seed, **_: seeds.append(seed))
    for worker in range(3):
        make_unity({}, 2**31 - 2, False, False, worker)
    assert seeds == [2**31 - 2, 2**31 - 1, 0]


def test_an_unknown_player_is_named():
    with pytest.raises(JaxrlError, match=r"player:dungeon_escpe: .*did you mean dungeon_escape"):
        make_factory(settings_for("player:dungeon_escpe"), "logs")


def test_what_a_worker_imports_and_the_start_of_environments_need_no_jax():
    program = (
        "import sys, jaxrl.cli.commands, jaxrl.training.host.launch, jaxrl.envs.unity.environment\n"
        "from jaxrl.algorithms import HYPERPARAMETER_TYPES\n"
        "from jaxrl.jax_envs.served.launcher import resolve_player\n"
        "print([name for name in ('jax', 'jaxlib', 'flax', 'optax', 'chex', 'orbax') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.stdout.strip(), ended.returncode) == ("[]", 0), ended.stderr
