"""The 39 configurations of ML-Agents: each is read, and built for what its scene's agents see."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES, make_algorithm
from jaxrl.algorithms.interface import acting, nothing_remembered
from jaxrl.demonstrations import Pair, write
from jaxrl.envs.unity.environment import UnityHostEnv
from jaxrl.settings import (
    BehaviorSettings,
    RunSettings,
    SettingsError,
    behavior_settings_for,
    load_run_settings,
    to_yaml,
)
from jaxrl.training.checks import refuse_undemonstrated
from jaxrl.types import BehaviorSpec
from tests.envs.mlagents_scenes import SCENES, TEAMS
from tests.test_configs import CONFIGS, FILES, leaves
from tests.trainer import ENVS, ROOT, free_ports

FOLDER = CONFIGS / "mlagents"
LAYOUT = {
    "imitation": "Crawler Hallway PushBlock Pyramids",
    "poca": "DungeonEscape PushBlockCollab SoccerTwos StrikersVsGoalie",
    "ppo": "3DBall 3DBallHard 3DBall_randomize Basic Crawler FoodCollector GridWorld Hallway Match3 PushBlock Pyramids "
    "PyramidsRND Sorter_curriculum Visual3DBall VisualFoodCollector Walker WallJump WallJump_curriculum Worm",
    "sac": "3DBall 3DBallHard Basic Crawler FoodCollector GridWorld Hallway PushBlock Pyramids Walker WallJump Worm",
}
NAMES = [f"{folder}/{scene}" for folder, scenes in LAYOUT.items() for scene in scenes.split()]


def load(name: str) -> RunSettings:
    return load_run_settings(FOLDER / f"{name}.yaml", {}, HYPERPARAMETER_TYPES)


def test_there_are_39_in_the_original_layout():
    there = [path.relative_to(FOLDER).with_suffix("").as_posix() for path in FILES if path.is_relative_to(FOLDER)]
    assert sorted(there) == sorted(NAMES) and len(NAMES) == 39


@pytest.mark.parametrize("name", NAMES)
def test_it_is_read_and_every_value_is_kept(name, tmp_path):
    settings = load(name)
    written = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    read = dict(leaves(settings.model_dump(mode="json")))
    lists = {where: value for where, value in leaves(written) if where[-1] != "curriculum"}
    assert {where: read[where] for where in lists} == lists
    trainers = {behavior.trainer_type for _, behavior in settings.every_behavior()}
    assert trainers == {"ppo" if name.startswith("imitation") else name.partition("/")[0]}
    again = tmp_path / "configuration.yaml"
    again.write_text(to_yaml(settings), encoding="utf-8")
    assert load_run_settings(again, {}, HYPERPARAMETER_TYPES) == settings


def test_demonstrations_that_are_not_there_are_named_before_a_run_begins():
    with pytest.raises(SettingsError) as caught:
        refuse_undemonstrated(load("imitation/Pyramids"))
    for key in ("reward_signals.gail", "behavioral_cloning"):
        assert f"behaviors.Pyramids.{key}.demo_path: Project/Assets/" in str(caught.value)
    assert str(caught.value).count("ExpertPyramid.demo: there is no such file or folder of demonstrations") == 2


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BehaviorSpec]]:
    """What a player that shows the behaviors of all scenes says of them."""
    if os.name == "nt":
        pytest.skip("the player is a shell script")
    path = tmp_path_factory.mktemp("scenes") / "scenes.x86_64"
    path.write_text(f'#!/bin/sh\nexport PYTHONPATH="{ROOT}"\nexec "{sys.executable}" "{ENVS}/scenes_player.py" "$@"\n')
    path.chmod(0o755)
    logs = str(path.parent)
    env = UnityHostEnv(
        file_name=str(path), env_args=(), log_folder=logs, worker=0, base_port=free_ports(), seed=1, timeout_wait=60.0
    )
    try:
        yield {name.partition("?")[0]: spec for name, spec in env.reset({}).new_specs.items()}
    finally:
        env.close()


def test_the_player_shows_all_scenes(specs):
    assert specs == SCENES


def build(spec: BehaviorSpec, settings: BehaviorSettings, members: int) -> tuple[int, ...]:
    """Shapes of a fresh state and of one decision of a team; nothing is computed. Numbers that are sent to Unity."""
    algorithm = make_algorithm(spec, settings)
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    obs = tuple(np.zeros((members, *sensor.shape), sensor.dtype) for sensor in spec.observations)
    mask, carry = np.ones((members, spec.action.mask_size), bool), nothing_remembered(algorithm, (members,))
    decision = jax.eval_shape(algorithm.act, acting(algorithm, state), obs, mask, carry, jax.random.key(1))
    return decision.sent.continuous.shape + decision.sent.discrete.shape


def demonstrate(settings: RunSettings, specs: dict[str, BehaviorSpec]) -> None:
    """Two decisions of each agent, where its section looks for demonstrations."""
    for scene, behavior in settings.behaviors.items():
        for section in (behavior.reward_signals.get("gail"), behavior.behavioral_cloning):
            if section is not None:
                path, action = Path(section.demo_path), specs[scene].action
                path.parent.mkdir(parents=True, exist_ok=True)
                obs = tuple(np.zeros(sensor.shape, np.float32) for sensor in specs[scene].observations)
                chosen = [0.0] * action.continuous_size, [0] * len(action.discrete_branches)
                write(path, scene, specs[scene], [Pair(obs, *chosen), Pair(obs, *chosen), Pair(obs, done=True)])


@pytest.mark.parametrize("name", NAMES)
def test_it_is_built_for_its_scene(name, specs, tmp_path, monkeypatch):
    settings = load(name)
    monkeypatch.chdir(tmp_path)
    demonstrate(settings, specs)
    scenes = [*settings.behaviors, *(("Match3VectorObs", "Match3VisualObs") if name == "ppo/Match3" else ())]
    for scene in scenes:
        spec, members = specs[scene], 3 if scene in TEAMS else 1
        continuous, branches = spec.action.continuous_size, len(spec.action.discrete_branches)
        sent = build(spec, behavior_settings_for(settings, scene), members)
        assert sent == (members, continuous, members, branches)
