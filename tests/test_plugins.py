"""What packages offer: the examples as a package, as docs/extending.md says, in a run; plugins of ML-Agents; mistakes.

Packages are folders with a `*.dist-info`, as an installer leaves them, on the path.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

import jaxrl
from jaxrl import plugins
from jaxrl.algorithms import ALGORITHMS, BUILT_IN, HYPERPARAMETER_TYPES, TRAINER_TYPES
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.cli import main
from jaxrl.jax_envs import make_environment
from jaxrl.plugins import Kind, PluginError
from jaxrl.settings import SettingsError, load_run_settings
from jaxrl.training import registries
from jaxrl.training.saver import obstacles
from jaxrl.types import JaxrlError
from tests.helpers import make_spec

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
GUIDE = ROOT / "docs" / "extending.md"


def package(folder: Path, name: str, version: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """What an installer would write beside the modules of a package."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    entries = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in named.items()) for group, named in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(entries))


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose entry points are wrong in every way, and right ones."""
    (tmp_path / "acme_parts.py").write_text(ACME)
    groups = {
        "jaxrl.trainers": {"acme_ppo": "acme_parts:make_acme", "ppo": "acme_parts:make_acme", "broken": "acme_no:x"},
        "jaxrl.reward_signals": {"twice": "acme_parts:make_twice", "bad": "acme_parts:make_worse"},
        "jaxrl.encoders": {"means": "acme_parts:Means"},
        "jaxrl.environments": {"gate": "acme_parts:make_gate", "lost": "acme_parts:make_lost"},
        "mlagents.stats_writer": {"stats": "acme_parts:writers"},
        "mlagents.trainer_type": {"a2c": "acme_torch:get_type_and_setting"},
    }
    package(tmp_path, "acme", "1.2", groups)
    package(tmp_path, "rival", "3", {"jaxrl.reward_signals": {"shared": "rival:x"}, "jaxrl.encoders": {"means": "r:x"}})
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


ACME = """
import flax.linen as nn
import jaxrl
import own_environment

def make_acme(spec, settings):
    return jaxrl.make_ppo(spec, settings)

def make_twice(spec, settings):
    return jaxrl.RewardSignal(reward=lambda state, transitions, cooperative: 2 * transitions.reward)

def make_gate():
    return own_environment.make_env()

def make_lost():
    return 1 / 0
""".replace("import own_environment\n", f"import sys\nsys.path.append({str(EXAMPLES)!r})\nimport own_environment\n")


def test_installed_names_stand_beside_jaxrls_own(acme: Path) -> None:
    settings = jaxrl.make_settings("acme_ppo", reward_signals={"twice": {"gamma": 0.5}})
    assert isinstance(jaxrl.make_algorithm(make_spec((4,), branches=(2,)), settings), jaxrl.Algorithm)
    assert settings.reward_signals["twice"].gamma == 0.5
    assert "acme_ppo" in ALGORITHMS and "acme_ppo" not in list(ALGORITHMS) and set(BUILT_IN) == set(TRAINER_TYPES)
    assert make_environment("jax:gate").name == "Gate" and make_environment("gate").name == "Gate"
    assert "make_acme" not in str(ALGORITHMS["ppo"])  # whose name is jaxrl's


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"trainer_type": "broken"},
            r"trainer_type: broken of the package acme 1\.2 \(entry point jaxrl\.trainers: acme_no:x\) cannot be "
            "loaded: ModuleNotFoundError: No module named 'acme_no'$",
        ),
        (
            {"reward_signals": {"bad": {}}},
            r"reward_signals\.bad\.type: bad of the package acme 1\.2 .* cannot be loaded: AttributeError: .*worse",
        ),
        (
            {"trainer_type": "a2c"},
            r"trainer_type: a2c is a trainer for ML-Agents of the package acme 1\.2 "
            r"\(entry point mlagents\.trainer_type\), which needs PyTorch and cannot run in jaxrl",
        ),
        ({"trainer_type": "acme_poca"}, "trainer_type: got 'acme_poca', expected one of coma, mappo"),
        ({"reward_signals": {"twise": {}}}, r"reward_signals\.twise: unknown key"),
        (
            {"network_settings": {"vis_encode_type": "mean"}},
            "network_settings.vis_encode_type: got 'mean', expected one",
        ),
    ],
)
def test_a_name_that_cannot_be_used_is_one_sentence(acme: Path, settings: dict, said: str) -> None:
    path = acme / "config.yaml"
    path.write_text(yaml.safe_dump({"behaviors": {"A": settings}}))
    with pytest.raises(SettingsError, match=rf"config\.yaml: behaviors\.A\.{said}") as error:
        load_run_settings(path, {}, HYPERPARAMETER_TYPES)
    assert "\n" not in str(error.value)


def test_two_packages_with_one_name_are_refused(acme: Path) -> None:
    with pytest.raises(PluginError, match=r"acme 1\.2 and rival 3 both offer it .*: write acme_parts:Means or r:x"):
        plugins.load(Kind.ENCODER, "means")
    with pytest.raises(JaxrlError, match=r"jax:lost: lost\(\) raised ZeroDivisionError: .*acme_parts\.py, line \d+\)"):
        make_environment("jax:lost")


def test_the_command_lists_them_and_says_what_is_hidden(
    acme: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["plugins"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "jaxrl: poca, ppo, mappo, coma, sac" in lines and "jaxrl: extrinsic, gail, curiosity, rnd" in lines
    assert "acme 1.2: acme_ppo = acme_parts:make_acme" in lines
    assert "acme 1.2: ppo = acme_parts:make_acme (hidden: ppo is jaxrl's own)" in lines
    assert "rival 3: means = r:x (refused: several packages offer means)" in lines
    assert "acme 1.2: a2c = acme_torch:get_type_and_setting (refused: trainers of ML-Agents need PyTorch)" in lines
    registries.warn_of_hidden.cache_clear()
    registries.warn_of_hidden()
    said = "ppo of the package acme 1.2 (entry point jaxrl.trainers) is hidden: ppo is jaxrl's own."
    assert [record.getMessage() for record in caplog.records] == [said]


def test_nothing_is_looked_for_where_a_name_is_jaxrls() -> None:
    """Nor is anything imported that is merely installed."""
    code = (
        "import sys, importlib.metadata as m; import jaxrl, jaxrl.cli.train; m.entry_points = None; "
        "jaxrl.make_settings('poca', network_settings={'vis_encode_type': 'resnet'}); "
        "sys.exit(any(name.split('.')[0] in ('jax', 'flax') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60, cwd=ROOT).returncode == 0


def of_the_guide() -> dict[str, dict[str, str]]:
    """The entry points that docs/extending.md writes down."""
    (block,) = re.findall(r"```text\n(# pyproject\.toml\n.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
    project = tomllib.loads(block)["project"]
    assert (project["name"], project["version"]) == ("my-parts", "1.0")
    return project["entry-points"]


PLUGIN = """
from typing import Dict, List

from mlagents.trainers.settings import RunOptions
from mlagents.trainers.stats import StatsPropertyType, StatsSummary, StatsWriter

def get_writers(options: RunOptions) -> List[StatsWriter]:
    return [Failing(), Writer(options.checkpoint_settings.write_path, options.behaviors["Gate"].max_steps)]

class Failing:
    def write_stats(self, category, values, step):
        raise OSError("no room")

class Writer(StatsWriter):
    def __init__(self, path, steps):
        self.path = path + "/plugin.txt"
        self.lines = [f"made {steps}"]

    def add_property(self, category, kind, value):
        assert kind is StatsPropertyType.HYPERPARAMETERS
        self.lines.append(f"{category} {kind.value} {value['trainer_type']}")

    def on_add_stat(self, category, key, value, aggregation):
        if key == "Policy/Entropy":
            self.lines.append(f"{category} {aggregation.name} {value:.4f}")

    def write_stats(self, category, values, step):
        s = values["Policy/Entropy"]
        self.lines.append(f"{category} {step} {s.aggregated_value:.4f} {s.num}")
        with open(self.path, "w") as file:
            file.write("\\n".join(self.lines))
"""


def test_plugins_of_ml_agents_import_its_names_without_it(tmp_path: Path) -> None:
    """One derives from `StatsWriter`, as Unity's guide shows; one asks for a class that is not stood in for."""
    (tmp_path / "plugin.py").write_text(PLUGIN)
    (tmp_path / "other.py").write_text("from mlagents.trainers.stats import GaugeWriter")
    writers = {"stats": "plugin:get_writers", "other": "other:GaugeWriter"}
    package(tmp_path, "acme", "1.2", {"mlagents.stats_writer": writers})
    code = f"""
import logging, sys
from pathlib import Path
from jaxrl.artifacts.metrics.statistics import Summary
from jaxrl.artifacts.metrics.writers.interface import OfRun, Place
from jaxrl.artifacts.metrics.writers.mlagents import open_plugins
from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.settings import load_run_settings

logging.basicConfig(format="%(message)s")
where = {str(tmp_path)!r}
written = {{"behaviors": {{"Gate": {{}}}}, "checkpoint_settings": {{"run_id": "r", "results_dir": where}}}}
settings = load_run_settings(None, written, HYPERPARAMETER_TYPES)
Path(where, "r").mkdir()
place = Place("r", "Gate", "", Path(where), Path(where), None, "", {{}}, set(), run=OfRun(settings, {{}}))
writer = open_plugins(place)[-1]
assert "mlagents.trainers.settings" in sys.modules
writer.hyperparameters({{"trainer_type": "ppo"}}, 0)
writer.summaries(7, {{"Policy/Entropy": Summary(value=2.5, mean=2.5, std=0.0, sum=2.5, count=1, histogram=None)}})
writer.close()
"""
    place = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    ended = subprocess.run([sys.executable, "-c", code], env=place, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    lines = (tmp_path / "r" / "plugin.txt").read_text().splitlines()
    assert lines == ["made 500000", "Gate hyperparameters ppo", "Gate AVERAGE 2.5000", "Gate 7 2.5000 1"]
    missing = "ImportError: cannot import name 'GaugeWriter' from 'mlagents.trainers.stats' ("
    assert missing in ended.stderr and "writers/mlagents.py" in ended.stderr


@pytest.mark.timeout(300)
def test_b25_p10_the_examples_as_a_package_train_together(tmp_path: Path) -> None:
    """A trainer, a signal, hidden layers, an environment and a writer of one's own in one run, beside a plugin."""
    parts = tmp_path / "site" / "my_parts"
    parts.mkdir(parents=True)
    for example in EXAMPLES.glob("own_*.py"):
        shutil.copy(example, parts)
    (tmp_path / "site" / "stats_plugin.py").write_text(PLUGIN)
    writers = {"mlagents.stats_writer": {"stats": "stats_plugin:get_writers", "gone": "stats_plugin:no_such"}}
    package(tmp_path / "site", "my-parts", "1.0", of_the_guide() | writers)
    package(tmp_path / "site", "mlagents", "1.1.0", {"mlagents.stats_writer": {"default": "mlagents.plugins:x"}})
    behavior = {
        "trainer_type": "my_a2c",
        "hyperparameters": {"batch_size": 32, "buffer_size": 128, "value_weight": 0.25},
        "network_settings": {"hidden_units": 4, "num_layers": 1, "body_type": "residual"},
        "reward_signals": {"extrinsic": {}, "novelty": {"gamma": 0.5, "features": 3}},
        "max_steps": 500,
        "summary_freq": 250,
    }
    settings = {
        "behaviors": {"Gate": behavior},
        "env_settings": {"env_path": "jax:my_gate", "num_areas": 4, "seed": 3},
        "record_settings": {"writers": ["json_lines"]},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    place = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path / "site"))), "COLUMNS": "500"}
    quick = {"JAXRL_CACHE_DIR": str(tmp_path / "cache"), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    words = [sys.executable, "-m", "jaxrl.cli", "train", "config.yaml", "--run-id=one"]
    ended = subprocess.run(
        words, env={**os.environ, **place, **quick}, cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    said, run = ended.stdout + ended.stderr, tmp_path / "results" / "one"
    assert ended.returncode == 0, said
    assert "gone of the package my-parts 1.0 (entry point mlagents.stats_writer: stats_plugin:no_such) cannot" in said
    assert said.count("OSError: no room. The run goes on without it.") == 1 and "default of the package" not in said

    lines = [json.loads(line) for line in (run / "Gate" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0] == {"run": "one/Gate", "step": 0, "trainer_type": "my_a2c"}
    assert [line["step"] for line in lines[1:]] == [250, 500]
    for tag in ("Policy/Novelty Reward", "Losses/Novelty Loss", "Policy/Novelty Value Estimate"):
        steps, values = jaxrl.read_metrics(run).array(tag)
        np.testing.assert_allclose([line[tag] for line in lines[1:]], values[0], rtol=1e-6, err_msg=tag)
        assert (values[0] != 0).all() and steps.ravel().tolist() == [250, 500]

    entropy = [line["Policy/Entropy"] for line in lines[1:]]
    told = (run / "plugin.txt").read_text().splitlines()
    assert told[:2] == ["made 500", "Gate hyperparameters my_a2c"]
    assert told[2:] == [
        line
        for step, value in zip((250, 500), entropy, strict=True)
        for line in (f"Gate AVERAGE {value:.4f}", f"Gate {step} {value:.4f} {told[3].split()[-1]}")
    ]

    *_, last = checkpoints(run / "Gate")
    leaves = json.loads((last.path / "checkpoint.json").read_text())["leaves"]
    (predictor,) = (leaf for path, leaf in leaves.items() if path.endswith("signals/novelty/predictor"))
    assert predictor["shape"] == [4, 3]  # numbers seen, features
    assert not list(run.glob("*.onnx")) and "a file cannot hold the hidden layers residual" in said


def test_the_example_of_an_encoder_sees_the_quarters() -> None:
    """What the mean and the largest value of a quarter are, does not depend on the other quarters."""
    settings = jaxrl.make_settings("ppo", network_settings={"vis_encode_type": f"{EXAMPLES}/own_encoder.py:Quarters"})
    encoder = plugins.load(Kind.ENCODER, settings.network_settings.vis_encode_type)()
    images = np.random.default_rng(0).random((2, 24, 24, 3)).astype(np.float32)
    params = jax.jit(encoder.init)(jax.random.key(0), images)
    apply = jax.jit(encoder.apply)
    found = np.asarray(apply(params, images)).reshape(2, 4, 2, 16)
    assert (found[:, :, 1] >= found[:, :, 0]).all() and (found[:, :, 1] > 0).any()
    images[:, 14:, 14:] = 0.5
    other = np.asarray(apply(params, images)).reshape(2, 4, 2, 16)
    np.testing.assert_array_equal(found[:, 0], other[:, 0])
    assert not np.array_equal(found[:, 3], other[:, 3])
    spec = make_spec((3, 24, 24), branches=(2,))
    assert obstacles(spec, settings, None, ()) == [f"the image encoder {EXAMPLES}/own_encoder.py:Quarters"]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("environment", ["jax:basic", "player:basic"])
def test_the_example_of_a_signal_trains_in_both_loops(environment: str, tmp_path: Path) -> None:
    flags = ["--set", "max_steps=3000", "--set", "summary_freq=1000", "--env", environment, "--seeds=1", "--seed=2"]
    words = [sys.executable, "-m", "jaxrl.cli", "train", "own_reward_signal.yaml", "--run-id=n", *flags]
    place = {**os.environ, "PYTHONPATH": str(ROOT), "JAXRL_CACHE_DIR": str(tmp_path / "cache")}
    words += ["--results-dir", str(tmp_path), "--set", "record_settings.writers=own_writer.py:make_writer"]
    ended = subprocess.run(words, env=place, cwd=EXAMPLES, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    _, losses = jaxrl.read_metrics(tmp_path / "n").array("Losses/Novelty Loss")
    assert losses.shape == (1, 3) and losses[0, 2] < losses[0, 0]
    assert (tmp_path / "n" / "Basic.onnx").is_file()
    lines = (tmp_path / "n" / "Basic" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1000, 2000, 3000]
