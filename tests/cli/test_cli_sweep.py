"""`jaxrl sweep` in processes of its own: what it leaves, what it refuses."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jaxrl.cli import main
from jaxrl.tools.report.runs import read_run
from jaxrl.tools.report.sweep import expanded

ROOT = Path(__file__).parents[2]
CONFIG = {
    "behaviors": {
        "Basic": {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 32, "buffer_size": 64, "learning_rate_schedule": "constant"},
            "network_settings": {"hidden_units": 8, "num_layers": 1},
            "max_steps": 600,
            "summary_freq": 200,
            "checkpoint_interval": 400,
        }
    }
}
RATE = "hyperparameters.learning_rate"
TWO = ("--set", "hyperparameters.learning_rate=1e-2,1e-3", "--set", "reward_signals.extrinsic.gamma=0.9,0.5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep")
    (path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    return path


def words_of(run_id: str, *flags: str, env: str = "jax:basic") -> list[str]:
    return ["sweep", "config.yaml", "--env", env, "--num-areas", "2", "--seed", "3", "--run-id", run_id, *flags]


def sweep(folder: Path, run_id: str, *flags: str, env: str = "jax:basic") -> subprocess.CompletedProcess[str]:
    place = {"PYTHONPATH": str(ROOT), "JAXRL_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    fast = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "jaxrl.cli", *words_of(run_id, *flags, env=env)],
        cwd=folder, env={**os.environ, **place, **fast}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture
def refused(folder, capsys, monkeypatch):
    """Why a sweep is refused, as its standard error says: here in this process, since nothing is begun."""

    def told(run_id: str, *flags: str) -> str:
        monkeypatch.chdir(folder)
        assert main(words_of(run_id, *flags)) == 1
        return capsys.readouterr().err

    return told


def test_each_point_is_a_run_with_its_own_numbers(folder, refused):
    ended = sweep(folder, "grid", *TWO, "--seeds", "2")
    assert ended.returncode == 0, ended.stderr
    assert "Program 1 of 1, 4 point(s)" in ended.stdout and ended.stdout.count("Compiling.") == 1
    place = folder / "results" / "grid"
    told = json.loads((place / "sweep.json").read_text())
    assert len(told["points"]) == 4
    for point in told["points"]:
        run = read_run(place / point["runs"][0])
        assert run.settings is not None
        rate, gamma = (
            point["values"][key] for key in ("hyperparameters.learning_rate", "reward_signals.extrinsic.gamma")
        )
        assert run.settings["behaviors.Basic.hyperparameters.learning_rate"] == float(rate)
        assert run.settings["behaviors.Basic.reward_signals.extrinsic.gamma"] == gamma
        assert sorted(run.behaviors["Basic"]) == ["3", "4"] == sorted(point["scores"])
        for seed in run.behaviors["Basic"].values():
            assert seed.curves["Policy/Learning Rate"].value == pytest.approx(float(rate))
            assert seed.curves["Policy/Learning Rate"].step.tolist() == [200, 400, 600]
        assert (place / point["runs"][0] / "Basic.onnx").is_file()
    assert sorted(expanded(place)) == sorted(place / point["runs"][0] for point in told["points"])
    means = [point["mean"] for point in told["points"]]
    assert means == sorted(means, reverse=True) and ended.stdout.rstrip().endswith("--out report.html")

    assert "already holds a run" in refused("grid", *TWO, "--seeds", "2")


@pytest.mark.slow
def test_a_sweep_goes_on(folder):
    """After a part of it is lost its numbers are those of the whole; and for longer."""
    assert sweep(folder, "lost", *TWO, "--seeds", "2").returncode == 0
    place = folder / "results" / "lost"
    told = json.loads((place / "sweep.json").read_text())
    shutil.rmtree(place / told["points"][0]["runs"][0])  # as if an interrupt had come before it
    ended = sweep(folder, "lost", *TWO, "--seeds", "2", "--seed", "-1", "--resume")
    assert ended.returncode == 0, ended.stderr
    again = json.loads((place / "sweep.json").read_text())
    scores, before = ({p["point"]: p["scores"] for p in of["points"]} for of in (again, told))
    assert scores == before and all(p["steps"] == 600 for p in again["points"])
    longer = sweep(folder, "lost", *TWO, "--seeds", "2", "--resume", "--set", "max_steps=800")
    assert longer.returncode == 0, longer.stderr
    points = json.loads((place / "sweep.json").read_text())["points"]
    assert [p["steps"] for p in points] == [800] * 4 and {p["point"] for p in points} == before.keys()


@pytest.mark.slow
def test_a_search_gives_up_and_goes_on(folder):
    pytest.importorskip("optuna")
    flags = ("--search", "hyperparameters.learning_rate=1e-4:1e-1:log", "--parallel", "2", "--prune")
    ended = sweep(folder, "search", *flags, "--trials", "3")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("Compiling.") == 1
    place = folder / "results" / "search"
    assert len(json.loads((place / "sweep.json").read_text())["points"]) == 3
    assert "already holds a search" in sweep(folder, "search", *flags).stderr
    more = sweep(folder, "search", *flags, "--trials", "4", "--resume")
    assert more.returncode == 0 and "trial_0003 begins" in more.stdout and "trial_0002 begins" not in more.stdout
    for name in ("trial_0000", "trial_0003"):
        rates = read_run(place / name).behaviors["Basic"]["3"].curves["Policy/Learning Rate"].value
        written = yaml.safe_load((place / name / "configuration.yaml").read_text())
        assert rates == pytest.approx(written["behaviors"]["Basic"]["hyperparameters"]["learning_rate"])
    anew = sweep(folder, "search", *flags, "--trials", "2", "--force")
    assert anew.returncode == 0 and "trial_0000 begins" in anew.stdout, anew.stderr
    assert len(json.loads((place / "sweep.json").read_text())["points"]) == 2


def test_trials_of_a_stranger_are_shown_and_nothing_in_them_is_called(folder):
    """A name of code among the values of a trial that has been made, which no flag and no file of the user has."""
    optuna = pytest.importorskip("optuna")
    place = folder / "results" / "theirs"
    place.mkdir(parents=True)
    (folder / "evil.py").write_text(f"open({str(folder / 'called')!r}, 'w').close()\nmake = None\n")
    backend = optuna.storages.journal.JournalFileBackend(str(place / "optuna.log"))
    study = optuna.create_study(storage=optuna.storages.JournalStorage(backend), study_name="jaxrl")
    for key in ("trainer_type", "env_settings.env_path"):
        trial = study.ask()
        trial.suggest_categorical(key, [f"{folder / 'evil.py'}:make"])
        study.tell(trial, 1.0)
    ended = sweep(folder, "theirs", "--search", f"{RATE}=1e-4:1e-1:log", "--trials", "2", "--resume")
    assert ended.returncode == 0, ended.stderr
    assert "All 2 trials have been made" in ended.stdout and "trial_0001" in ended.stdout
    assert not (folder / "called").exists()


@pytest.mark.slow
def test_a_population_is_one_run_whose_settings_change(folder):
    flags = ("--search", "hyperparameters.learning_rate=1e-4:1e-1:log", "--population", "4", "--every", "200")
    ended = sweep(folder, "population", *flags)
    assert ended.returncode == 0, ended.stderr
    place = folder / "results" / "population"
    rows = list(csv.DictReader((place / "population.csv").read_text().splitlines()))
    assert {row["step"] for row in rows} == {"200", "400"} and len(rows) % 4 == 0
    last = {row["member"]: float(row["hyperparameters.learning_rate"]) for row in rows[-4:]}
    seeds = read_run(place).behaviors["Basic"]
    rates = {seed: events.curves["Policy/Learning Rate"].value[-1] for seed, events in seeds.items()}
    assert rates == pytest.approx(last)  # all updates of the last summary


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "nothing is varied; write for example"),
        (("--set", "hyperparameters.lerning_rate=1,2"), "lerning_rate: unknown key, did you mean learning_rate?"),
        (("--set", "hyperparameters.beta=fast,slow"), "hyperparameters.beta: got 'fast', expected a number"),
        (("--search", "hyperparameters.beta=1:2", "--set", "max_steps=1,2"), "got several values beside --search"),
        (("--set", "hyperparameters.beta=1,2", "--population", "4"), "--population: needs a compiled environment"),
        (("--set", "hyperparameters.beta=1,2", "--prune"), "belong to --search"),
        (("--set", "hyperparameters.beta=1,2", "--initialize-from", "gone"), f"{Path('results', 'gone')} does not"),
        (("--search", "hyperparameters.beta=1:2", "--every", "9"), "--every belongs to --population"),
        (("--search", "hyperparameters.beta=1:2", "--population", "4", "--seeds", "2"), "--seeds: got a number beside"),
    ],
)
def test_what_is_refused(folder, refused, flags, words):
    assert words in refused("refused", *flags)
    assert not (folder / "results" / "refused").exists()


def test_a_search_over_sizes_is_refused_before_anything_is_written(folder, refused):
    told = refused("sizes", "--search", "network_settings.hidden_units=8:16:int")
    assert "hidden_units: is no number that trials of one program" in told
    assert not (folder / "results" / "sizes").exists()


@pytest.mark.slow
def test_points_of_a_served_environment_are_processes(folder):
    flags = (
        "--set",
        "hyperparameters.learning_rate=1e-2,1e-3",
        "--seeds",
        "2",
        "--parallel",
        "2",
        "--base-port",
        "6405",
    )
    ended = sweep(folder, "served", *flags, env="player:basic")
    assert ended.returncode == 0, ended.stderr
    told = json.loads((folder / "results" / "served" / "sweep.json").read_text())
    assert [len(point["runs"]) for point in told["points"]] == [2, 2]
    assert all(sorted(point["scores"]) == ["3", "4"] for point in told["points"])
