"""A whole run of an environment of two behaviors: what it leaves, that a resumed one equals it, and what it refuses."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import yaml
from rich.console import Console

import jaxrl
from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.document import CheckpointError
from jaxrl.artifacts.checkpoint.folder import checkpoints, require_latest
from jaxrl.compilation import enable_compilation_cache
from jaxrl.settings import RunSettings, SettingsError, load_run_settings
from jaxrl.settings.sweep import Space
from jaxrl.training.compiled.run import train
from jaxrl.training.compiled.search import search, traced
from jaxrl.training.compiled.sweep_points import programs, train_points
from jaxrl.training.interrupt import Interrupt
from jaxrl.training.study import Study
from jaxrl.types import JaxrlError, PolicyError
from tests.artifacts.test_csv_file import rows
from tests.jax_envs.probe_scene import LENGTH, PARTS
from tests.jax_envs.toy_jax_env import quick_compilation

pytestmark = [pytest.mark.usefixtures("runs"), pytest.mark.timeout(500)]
ROOT = Path(__file__).parents[3]
ENV = f"{ROOT / 'tests/jax_envs/probe_scene.py'}:make_probe_scene"
HYPERPARAMETERS = {
    "batch_size": 32, "buffer_size": 64, "num_epoch": 1, "learning_rate": 0.02, "learning_rate_schedule": "constant",
}  # fmt: skip
BEHAVIOR = {
    "trainer_type": "ppo",
    "hyperparameters": HYPERPARAMETERS,
    "network_settings": {"hidden_units": 8, "num_layers": 1},
    "summary_freq": 200,
    "checkpoint_interval": 1000,
}
LAMP_STEPS, DIAL_STEPS = 500, 1000
EVALUATION = {"interval": 400, "episodes": 4}


def configured(
    folder: Path, run_id: str, *, behaviors: Any = None, dial: int = DIAL_STEPS, **options: Any
) -> RunSettings:
    named = {
        "Lamp": {**BEHAVIOR, "max_steps": LAMP_STEPS, "evaluation": EVALUATION},
        "Dial": {**BEHAVIOR, "max_steps": dial, "evaluation": EVALUATION},
    }
    written = {
        "behaviors": behaviors or named,
        "env_settings": {"env_path": ENV, "num_areas": 4, "seed": 3, "seeds": 2},
        "checkpoint_settings": {"run_id": run_id, "results_dir": str(folder / "results"), **options},
    }
    path = folder / f"{run_id}.yaml"
    path.write_text(yaml.safe_dump(written))
    return load_run_settings(path, {}, HYPERPARAMETER_TYPES)


def trained(settings: RunSettings) -> Path:
    with quick_compilation():
        train(settings)
    return Path(settings.checkpoint_settings.results_dir, settings.checkpoint_settings.run_id)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, runs: None) -> Path:
    enable_compilation_cache()  # one program for all runs here
    return tmp_path_factory.mktemp("scene")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """A run that nobody disturbed, and what it said."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, logger = Handler(), logging.getLogger("jaxrl")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield trained(configured(folder, "whole")), lines
    logger.removeHandler(handler)
    logger.setLevel(level)


def arrays(run: Path, behavior: str, step: int | None = None) -> dict[str, np.ndarray]:
    """Every array of a checkpoint, read without knowing what it should hold."""
    path = require_latest(run / behavior)
    if step is not None:
        path = next(item.path for item in checkpoints(run / behavior) if item.step == step)
    return dict(checkpoint.read_arrays(path))


def test_each_behavior_has_its_files(whole: tuple[Path, list[str]]) -> None:
    run, lines = whole
    assert {path.name for path in run.iterdir()} >= {"Lamp", "Dial", "Lamp.onnx", "Dial.onnx", "configuration.yaml"}
    status = json.loads((run / "run_logs" / "training_status.json").read_text())
    for name in ("Lamp", "Dial"):
        assert len(list((run / name).glob("seed_3/events.*"))) == len(list((run / name).glob("seed_4/events.*"))) == 1
        assert (run / name / "seed_4" / "metrics.csv").is_file() and status[name]["seed"] in (3, 4)
        assert status[name]["checkpoints"][-1]["steps"] == checkpoints(run / name)[-1].step
    shapes = {name: onnxruntime.InferenceSession(run / f"{name}.onnx").get_inputs()[0].shape for name in PARTS}
    assert shapes["Lamp"][1:] == [2] and shapes["Dial"][1:] == [3]
    assert any(line.startswith("Lamp (2 seeds). Step: 200.") for line in lines)
    assert sum(line.startswith("Lamp: mean reward") for line in lines) == 1


def test_b18_u43_the_one_that_is_done_goes_on_to_tell(whole: tuple[Path, list[str]]) -> None:
    run, lines = whole
    assert any("Lamp: learns no more after step 512" in line and "learn: Dial" in line for line in lines)
    assert any("Lamp" in line and "Step: 1800" in line and "Not Training" in line for line in lines)
    last = {name: checkpoints(run / name)[-1].step for name in PARTS}
    assert DIAL_STEPS < last["Dial"] <= DIAL_STEPS + 64 and last["Lamp"] == 2 * last["Dial"]
    at_end, then = (
        arrays(run, "Lamp"),
        arrays(run, "Lamp", min(s.step for s in checkpoints(run / "Lamp") if s.step > 512)),
    )
    learned = [name for name in at_end if name.startswith(("train/policy", "train/optimizer"))]
    assert learned and all(at_end[name].tobytes() == then[name].tobytes() for name in learned)
    steps = {name: {int(step) for step, *_ in rows(run / name / "seed_3" / "metrics.csv")} for name in PARTS}
    assert max(steps["Lamp"]) == 2000 and max(steps["Dial"]) == 1000


def test_evaluations_play_the_whole_scene(whole: tuple[Path, list[str]]) -> None:
    tag = "Evaluation/Cumulative Reward"
    found = [(int(step), float(value)) for step, at, value in rows(whole[0] / "Dial/seed_3/metrics.csv") if at == tag]
    assert [step for step, _ in found] == [400, 800] and all(-1.0 < value <= 1.0 for _, value in found)
    of_lamp = [int(step) for step, at, _ in rows(whole[0] / "Lamp/seed_3/metrics.csv") if at == tag]
    assert of_lamp == [400], "what it plays after its end is the same for ever"


@pytest.mark.slow
def test_a_resumed_run_equals_one_that_was_never_stopped(folder: Path, whole: tuple[Path, list[str]]) -> None:
    trained(configured(folder, "halves", dial=600))
    run = trained(configured(folder, "halves", resume=True))
    for name in PARTS:
        first, second = arrays(whole[0], name), arrays(run, name)
        assert first.keys() == second.keys()
        assert [leaf for leaf in first if first[leaf].tobytes() != second[leaf].tobytes()] == []


@pytest.mark.slow
def test_a_run_that_was_killed_between_two_saves_goes_on_from_the_moment_of_both(
    folder: Path, whole: tuple[Path, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    run = trained(configured(folder, "killed", dial=600))
    newest = checkpoints(run / "Dial")[-1]
    with caplog.at_level("WARNING", "jaxrl"):
        for path in sorted(newest.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        newest.path.rmdir()
        trained(configured(folder, "killed", resume=True))
    assert "Lamp: its newest checkpoint is of a later moment" in caplog.text
    for name in PARTS:
        first, second = arrays(whole[0], name), arrays(run, name)
        assert [leaf for leaf in first if first[leaf].tobytes() != second[leaf].tobytes()] == []


@pytest.mark.parametrize(
    ("behaviors", "words"),
    [
        ({"Lamp": BEHAVIOR, "Dail": BEHAVIOR, "Dial": BEHAVIOR}, "behaviors.Dail: Probe has no such behavior.*Dial"),
        ({"Lamp": BEHAVIOR}, "behaviors.Dial: the environment has this behavior, the configuration does not"),
    ],
)
def test_one_right_and_one_wrong_name_is_refused_before_anything_is_written(
    tmp_path: Path, behaviors: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        train(configured(tmp_path, "wrong", behaviors=behaviors))
    assert not (tmp_path / "results").exists()


def test_a_scene_is_no_environment_of_one_behavior() -> None:
    with pytest.raises(JaxrlError, match=r"Lamp, Dial.*jaxrl\.make_scene"):
        jaxrl.make_environment(ENV)
    assert jaxrl.make_scene(ENV).parts == tuple(PARTS.values())


def test_points_of_a_sweep_are_one_program(tmp_path: Path, whole: tuple[Path, list[str]]) -> None:
    """Each leaves what it would alone: the first has the settings of the run that nobody disturbed."""
    points = [configured(tmp_path, f"point{i}") for i in range(2)]
    other = points[1].behaviors["Dial"]
    slower = other.hyperparameters.model_copy(update={"learning_rate": 0.002})
    changed = {**points[1].behaviors, "Dial": other.model_copy(update={"hyperparameters": slower})}
    points[1] = points[1].model_copy(update={"behaviors": changed})
    assert len(programs(points, jaxrl.make_scene(ENV))) == 1
    with quick_compilation(), Interrupt() as interrupt:
        train_points(points, Console(file=io.StringIO()), interrupt, None)
    runs = [whole[0], *(tmp_path / "results" / f"point{i}" for i in range(2))]
    for name in PARTS:
        alone, first, second = (arrays(run, name) for run in runs)
        assert [leaf for leaf in alone if alone[leaf].tobytes() != first[leaf].tobytes()] == []
        differs = [
            leaf for leaf in alone if leaf.startswith("train/policy/params") and (alone[leaf] != second[leaf]).any()
        ]
        assert bool(differs) == (name == "Dial")
        assert (runs[2] / f"{name}.onnx").is_file()


@pytest.mark.slow
def test_trials_of_a_search_are_one_program(tmp_path: Path) -> None:
    base = configured(tmp_path, "search", dial=300)
    key, space = "behaviors.Dial.hyperparameters.learning_rate", Space(1e-4, 1e-1, log=True)
    assert traced([key], base, jaxrl.make_scene(ENV)) == {key: [("Dial", "hyperparameters.learning_rate")]}
    common = traced(["hyperparameters.beta"], base, jaxrl.make_scene(ENV))
    assert common == {"hyperparameters.beta": [(name, "hyperparameters.beta") for name in PARTS]}

    def runs(name: str, values: Mapping[str, float]) -> list[RunSettings]:
        made = configured(tmp_path, name, dial=300)
        dial = made.behaviors["Dial"]
        numbers = dial.hyperparameters.model_copy(update={"learning_rate": values[key]})
        changed = {**made.behaviors, "Dial": dial.model_copy(update={"hyperparameters": numbers})}
        return [made.model_copy(update={"behaviors": changed})]

    study = Study(tmp_path, {key: space}, 3, 3, prune=False, runs=runs)
    with quick_compilation(), Interrupt() as interrupt:
        search(base, [key], study, Console(file=io.StringIO()), interrupt, 2)
    made = dict(study.made())
    assert len(made) == 3 and study.has_scores
    weights = [arrays(tmp_path / "results" / name, "Dial") for name in made]
    (leaf, *_) = [name for name in weights[0] if name.startswith("train/policy/params")]
    assert all((weights[0][leaf] != of[leaf]).any() for of in weights[1:])
    assert all((tmp_path / "results" / name / "Lamp.onnx").is_file() for name in made)


def test_a_policy_of_one_of_the_behaviors_is_loaded(whole: tuple[Path, list[str]]) -> None:
    policy = jaxrl.load(whole[0], ENV, behavior="Dial", deterministic=True)
    assert policy.behavior == "Dial" and policy.spec == PARTS["Dial"].spec
    lamp = jaxrl.load(whole[0], ENV, behavior="Lamp", deterministic=True)
    scene = jaxrl.make_scene(ENV)
    dials, lamps = policy.rollout(scene, 32, others={"Lamp": lamp}), lamp.rollout(scene, 32, others={"Dial": policy})
    assert dials.returns.shape == (32, 1) and lamps.returns.shape == (32, 2) and (dials.lengths == LENGTH).all()
    assert lamps.returns.mean() > 0.8 and dials.returns.mean() > 0.6 and lamps.finished.all()
    with pytest.raises(PolicyError, match="others: Probe wants policies of Lamp beside Dial, got none"):
        policy.rollout(scene)
    with pytest.raises(PolicyError, match="Lamp, Dial, and none is named: say which with `behavior`"):
        jaxrl.load(whole[0], ENV)


@pytest.mark.slow
def test_a_moment_that_not_all_have_is_refused(folder: Path, whole: tuple[Path, list[str]], tmp_path: Path) -> None:
    run = trained(configured(folder, "apart", dial=600))
    for item in checkpoints(run / "Lamp")[:-1]:
        for path in sorted(item.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    for path in sorted(checkpoints(run / "Dial")[-1].path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(CheckpointError, match="different moments, and no older ones are left of Lamp"):
        trained(configured(folder, "apart", resume=True))
