"""Trials of a search as one program: each plays what it was told to play."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.settings import RunSettings, load_run_settings
from jaxrl.settings.sweep import Space
from jaxrl.tools.report.runs import read_run
from jaxrl.training.compiled.search import search
from jaxrl.training.interrupt import Interrupt
from jaxrl.training.study import Study
from tests.jax_envs.shown_parameters import NAME, SIZE
from tests.jax_envs.toy_jax_env import quick_compilation

KEY = "environment_parameters.size"


def test_a_trial_has_its_parameters_from_the_first_episode_on(tmp_path: Path) -> None:
    """Its first episodes, in some tasks all that it has, had the usual size, 1. Three trials in two places: one also
    follows another."""
    pytest.importorskip("optuna")
    behavior = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 16, "buffer_size": 32, "num_epoch": 1},
        "network_settings": {"hidden_units": 4, "num_layers": 1},
        "max_steps": 96,
        "summary_freq": 32,
    }

    def settings(name: str, values: Mapping[str, float]) -> RunSettings:
        written = {
            "behaviors": {NAME: behavior},
            "environment_parameters": {"size": values.get(KEY, 1.0)},
            "env_settings": {"env_path": "tests.jax_envs.shown_parameters:make_shown", "num_areas": 4, "seed": 3},
            "checkpoint_settings": {"run_id": name, "results_dir": str(tmp_path)},
        }
        return load_run_settings(None, written, HYPERPARAMETER_TYPES)

    def runs(name: str, values: Mapping[str, float]) -> list[RunSettings]:
        return [settings(name, values)]

    study = Study(tmp_path, {KEY: Space(2.0, 5.0)}, 3, 3, prune=False, runs=runs)
    with quick_compilation(), Interrupt() as interrupt:
        search(settings("base", {}), [KEY], study, Console(file=io.StringIO()), interrupt, 2)
    made = study.made()
    assert len({values[KEY] for _, values in made}) == 3
    for name, values in made:
        told = read_run(tmp_path / name).behaviors[NAME]["3"].curves[SIZE].value
        assert told == pytest.approx([values[KEY]] * len(told), rel=1e-6) and len(told) >= 2
