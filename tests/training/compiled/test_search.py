"""Trials of a search as one program: each plays what it was told to play."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict
from rich.console import Console

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint.spec import spec_from_json
from jaxrl.artifacts.checkpoint.store import read_arrays, read_info, require_latest, save
from jaxrl.jax_envs import environment_in
from jaxrl.settings import RunSettings, load_run_settings
from jaxrl.settings.sweep import Space
from jaxrl.settings.traced import variable
from jaxrl.tools.report.runs import read_run
from jaxrl.training.compiled.search import search, traced
from jaxrl.training.interrupt import Interrupt
from jaxrl.training.study import Study
from tests.jax_envs.shown_parameters import NAME, SIZE
from tests.jax_envs.toy_jax_env import quick_compilation

KEY = "environment_parameters.size"


def test_a_trial_has_its_parameters_from_the_first_episode_on(tmp_path: Path) -> None:
    """Its first episodes, in some tasks all that it has, had the usual size, 1. Three trials in two places: one also
    follows another, and begins with the critic of a run."""
    pytest.importorskip("optuna")
    behavior = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 16, "buffer_size": 32, "num_epoch": 1, "learning_rate": 0},
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

    def critic(name: str) -> dict[str, Any]:
        arrays = read_arrays(require_latest(tmp_path / name / NAME))
        return {at: x for at, x in arrays.items() if at.startswith("train/critic/")}

    def runs(name: str, values: Mapping[str, float]) -> list[RunSettings]:
        found = settings(name, values)
        if name != "trial_0002":
            return [found]
        info = read_info(require_latest(tmp_path / "trial_0000" / NAME))
        donor = unflatten_dict({at: 2 * x for at, x in critic("trial_0000").items()}, sep="/")
        save(tmp_path / "donor" / NAME, 1, donor, spec=spec_from_json(info.spec), settings=info.settings)
        options = found.checkpoint_settings.model_copy(update={"initialize_from": "donor"})
        return [found.model_copy(update={"checkpoint_settings": options})]

    study = Study(tmp_path, {KEY: Space(2.0, 5.0)}, 3, 3, prune=False, runs=runs)
    with quick_compilation(), Interrupt() as interrupt:
        search(settings("base", {}), [KEY], study, Console(file=io.StringIO()), interrupt, 2)
    begun = critic("trial_0002"), critic("trial_0000")  # where nothing is learned but by 1e-10
    jax.tree.map(lambda x, first: np.testing.assert_allclose(x, 2 * first, atol=1e-6), *begun)
    made = study.made()
    assert len({values[KEY] for _, values in made}) == 3
    for name, values in made:
        told = read_run(tmp_path / name).behaviors[NAME]["3"].curves[SIZE].value
        assert told == pytest.approx([values[KEY]] * len(told), rel=1e-6) and len(told) >= 2


def test_what_follows_a_searched_number_by_default_follows_it_in_each_trial() -> None:
    """Own settings of a trial say what it is: SAC's signals learn as often as its networks, unless told otherwise."""
    sac = {"trainer_type": "sac", "hyperparameters": {"steps_per_update": 2.0}}
    base = load_run_settings(
        None, {"behaviors": {"Basic": sac}, "env_settings": {"env_path": "jax:basic"}}, HYPERPARAMETER_TYPES
    )
    key, follows = "hyperparameters.steps_per_update", "hyperparameters.reward_signal_steps_per_update"
    found = traced([key], base, environment_in(base.env_settings))
    assert found == {key: [("Basic", key), ("Basic", follows)]}
    assert variable(base.behaviors["Basic"])[follows] == 2.0
