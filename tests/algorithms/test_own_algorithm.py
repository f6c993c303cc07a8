"""An algorithm of one's own by name: trained in both loops, resumed, watched, exported; every mistake is a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import pytest
import yaml

import jaxrl
from jaxrl.algorithms import ALGORITHMS, TRAINER_TYPES
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.cli import main
from jaxrl.cli.device import _show_as
from jaxrl.own_code import OwnCodeError, load
from jaxrl.settings import SettingsError
from jaxrl.training.saver import obstacles
from tests.helpers import make_spec

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_algorithm.py"
NAME = f"{EXAMPLE}:make_a2c"
SPEC = make_spec((4,), branches=(2,))


def command(folder: Path, *argv: str) -> tuple[int, str]:
    """Exit code and all output of a process of its own, beside the example."""
    place = {**os.environ, "PYTHONPATH": str(ROOT), "JAXRL_CACHE_DIR": str(folder / "cache"), "COLUMNS": "500"}
    words = [sys.executable, "-m", "jaxrl.cli", *argv]
    ended = subprocess.run(
        words, cwd=EXAMPLE.parent, env=place, capture_output=True, text=True, timeout=200, check=False
    )
    return ended.returncode, ended.stdout + ended.stderr


def configured(folder: Path, **changes: Any) -> Path:
    """The example's configuration, shorter."""
    settings = yaml.safe_load((EXAMPLE.parent / "own_algorithm.yaml").read_text())
    behavior = settings["behaviors"]["Basic"]
    behavior["hyperparameters"] |= {"batch_size": 32, "buffer_size": 64, "learning_rate_schedule": "constant"}
    behavior["network_settings"]["hidden_units"] = 4
    behavior |= {"max_steps": 256, "summary_freq": 64, "checkpoint_interval": 128} | changes
    settings["env_settings"] |= {"num_areas": 4, "seed": 3, "seeds": 1}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.mark.timeout(300)
def test_the_example_trains_and_is_exported(tmp_path: Path) -> None:
    arguments = ["--run-id", "a2c", "--results-dir", str(tmp_path / "results")]
    code, said = command(tmp_path, "train", str(configured(tmp_path)), *arguments)
    run = tmp_path / "results" / "a2c"
    assert code == 0 and (run / "Basic.onnx").is_file(), said
    assert [found.step for found in checkpoints(run / "Basic")] == [128, 256, 320]  # it ends above max_steps
    losses = jaxrl.read_metrics(run).array("Losses/Policy Loss")[1]
    assert losses.shape == (1, 4) and np.isfinite(losses).all() and np.ptp(losses) > 0
    document = json.loads((run / "Basic" / "Basic-320" / "checkpoint.json").read_text())
    assert document["settings"]["hyperparameters"]["value_weight"] == 0.5


MARKED = """
from dataclasses import replace

import numpy as np

import jaxrl
from jaxrl.networks.policy import write_actor


def write(graph, *rest):
    write_actor(graph, *rest)
    graph.constant_output("of_its_own", np.float32([7.0]))


def make_marked(spec, settings):
    made = jaxrl.make_ppo(spec, settings)
    return made._replace(policy=replace(made.policy, write=write))
"""


@pytest.mark.usefixtures("runs")
def test_a_compiled_run_writes_the_file_that_its_algorithm_says(tmp_path: Path) -> None:
    (tmp_path / "marked.py").write_text(MARKED)
    config = configured(tmp_path, trainer_type=f"{tmp_path}/marked.py:make_marked", max_steps=64)
    config.write_text(config.read_text().replace("value_weight: 0.5", ""))  # the example's own
    assert main(["train", str(config), "--run-id", "m", "--results-dir", str(tmp_path)]) == 0
    assert "of_its_own" in [output.name for output in onnx.load(tmp_path / "m" / "Basic.onnx").graph.output]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_it_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was stopped ends as what was not."""
    monkeypatch.chdir(EXAMPLE.parent)  # where the run's own_algorithm.py is
    monkeypatch.setenv("JAXRL_CACHE_DIR", str(tmp_path / "cache"))  # which remembers whose code it is
    runs = {}
    for run_id, parts in (("whole", [320]), ("parts", [128, 320])):
        for number, steps in enumerate(parts):
            arguments = ["--run-id", run_id, "--results-dir", str(tmp_path / "results"), *["--resume"] * number]
            code, said = command(tmp_path, "train", str(configured(tmp_path, max_steps=steps)), *arguments)
            assert code == 0, said
        runs[run_id] = jaxrl.load(tmp_path / "results" / run_id)
    one, other = (jax.tree.leaves(policy.state.params) for policy in runs.values())
    assert runs["whole"].step == runs["parts"].step
    for x, y in zip(one, other, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_trains_in_the_host_loop_and_is_watched(tmp_path: Path) -> None:
    arguments = ["--run-id", "a2c", "--results-dir", str(tmp_path / "results"), "--env", "player:basic"]
    code, said = command(tmp_path, "train", str(configured(tmp_path)), *arguments)
    run = tmp_path / "results" / "a2c"
    assert code == 0 and (run / "Basic.onnx").is_file(), said
    code, said = command(tmp_path, "watch", "jax:basic", "--run", str(run), "--out", str(tmp_path / "a.gif"))
    assert code == 0 and "reward" in said, said


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_example_learns(tmp_path: Path) -> None:
    """The far goal is worth 0.93, the near one 0.07."""
    arguments = ["--run-id", "a2c", "--results-dir", str(tmp_path / "results")]
    code, said = command(tmp_path, "train", "own_algorithm.yaml", *arguments)
    assert code == 0, said
    _, returns = jaxrl.read_metrics(tmp_path / "results" / "a2c").array()
    assert returns[:, -1].max() > 0.8


def test_it_stands_in_the_registry() -> None:
    settings = jaxrl.make_settings(NAME, hyperparameters={"value_weight": 0.25})
    assert settings.hyperparameters.value_weight == 0.25 and settings.hyperparameters.num_epoch == 1
    assert NAME in ALGORITHMS and NAME not in list(ALGORITHMS) and not TRAINER_TYPES[NAME].cooperative
    made = jaxrl.make_algorithm(SPEC, settings)
    assert isinstance(made, jaxrl.Algorithm) and made.collect_size == settings.hyperparameters.buffer_size
    with pytest.raises(SettingsError, match=r"value_weigth: unknown key, did you mean value_weight\?"):
        jaxrl.make_settings(NAME, hyperparameters={"value_weigth": 0.25})


OWN = """
import jax.numpy as jnp
import jaxrl
from jaxrl.algorithms.hyperparameters import POCAHyperparameters

@jaxrl.trainer_type(hyperparameters=POCAHyperparameters, cooperative=True)
def make_mates(spec, settings):
    return jaxrl.make_poca(spec, settings)

def make_plain(spec, settings):
    return jaxrl.make_ppo(spec, settings)

def make_wide(spec, settings):
    made = jaxrl.make_ppo(spec, settings)
    def init(key):
        state = made.init(key)
        return state.replace(policy=state.policy.replace(params={"mine": state.policy.params}))
    return made._replace(init=init)

def make_nothing(spec, settings):
    return None

def make_raises(spec, settings):
    return jnp.zeros(2) @ jnp.zeros(3)

not_callable = 3
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "mine.py"
    path.write_text(OWN)
    return path


def test_what_it_says_of_itself(own: Path) -> None:
    assert TRAINER_TYPES[f"{own}:make_mates"].cooperative and not TRAINER_TYPES[f"{own}:make_plain"].cooperative
    assert hasattr(jaxrl.make_settings(f"{own}:make_plain").hyperparameters, "shared_critic")
    assert not hasattr(jaxrl.make_settings(f"{own}:make_mates").hyperparameters, "shared_critic")


def test_connectors_stand_in_front_of_it_once(own: Path) -> None:
    """It calls make_ppo, which puts them there as well."""
    settings = jaxrl.make_settings(f"{own}:make_plain", connectors=[{"type": "frame_stack", "frames": 3}])
    made = jaxrl.make_algorithm(SPEC, settings)
    assert made.connectors is not None and [o.shape for o in made.connectors.spec.observations] == [(12,)]


def test_a_policy_of_its_own_has_no_onnx_file(own: Path) -> None:
    for function, found in (("make_plain", []), ("make_wide", [f"the network of {own}:make_wide, which is not"])):
        settings = jaxrl.make_settings(f"{own}:{function}")
        made = jaxrl.make_algorithm(SPEC, settings)
        params = jax.eval_shape(made.init, jax.random.key(0)).policy.params
        texts = obstacles(SPEC, settings, None, params)
        assert len(texts) == len(found) and all(map(str.startswith, texts, found))


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("make_plane", SettingsError, "has no function make_plane, did you mean make_plain"),
        ("not_callable", SettingsError, r"is a int, expected a function \(spec, settings\)"),
        ("make_nothing", OwnCodeError, r"returns a NoneType, expected a jaxrl\.Algorithm"),
        ("make_raises", OwnCodeError, r"raised TypeError: .*mine\.py, line 24\)"),
    ],
)
def test_mistakes_are_one_sentence(own: Path, name: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=f"trainer_type: .*{words}") as error:
        jaxrl.make_algorithm(SPEC, jaxrl.make_settings(f"{own}:{name}"))
    assert "\n" not in str(error.value)


def test_on_the_command_line_too(tmp_path: Path) -> None:
    path = configured(tmp_path, trainer_type="own_algoritm.py:make_a2c")
    code, said = command(tmp_path, "train", str(path), "--results-dir", str(tmp_path / "results"))
    assert code == 1 and not (tmp_path / "results").exists()
    wanted = f"{path}: behaviors.Basic.trainer_type: own_algoritm.py:make_a2c: there is no file"
    assert said.startswith(wanted) and said.count("\n") == 1


def test_code_that_computes_when_it_is_imported_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Then JAX has started with the devices that it had."""
    before = len(jax.devices())
    _show_as(before + 3)
    assert len(jax.devices()) == before and "all seeds share one CPU device" in caplog.text


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "changing.py"
    path.write_text("def make_x(spec, settings):\n    return None\n")
    first = ALGORITHMS[f"{path}:make_x"]
    assert first.args[1] is ALGORITHMS[f"{path}:make_x"].args[1]  # pyright: ignore[reportFunctionMemberAccess]
    path.write_text("import jaxrl\n\n\ndef make_x(spec, settings):\n    return jaxrl.make_ppo(spec, settings)\n")
    assert isinstance(jaxrl.make_algorithm(SPEC, jaxrl.make_settings(f"{path}:make_x")), jaxrl.Algorithm)


def test_one_of_ones_own_learns_with_the_numbers_in_which_seeds_differ(tmp_path):
    """It is made anew with them, as jaxrl's own are: otherwise all points of a sweep would be the first."""
    path = tmp_path / "noting.py"
    path.write_text(
        "import jaxrl\nrates = []\n\ndef make_noting(spec, settings):\n"
        "    rates.append((settings.hyperparameters.learning_rate, settings.postprocess))\n"
        "    return jaxrl.make_ppo(spec, settings)\n"
    )
    env, settings = jaxrl.make_environment("jax:basic"), jaxrl.make_settings(f"{path}:make_noting")
    algorithm = jaxrl.make_algorithm(env.spec, settings)
    assert algorithm.with_traced_settings is not None
    algorithm.with_traced_settings({"hyperparameters.learning_rate": 0.5})  # pyright: ignore[reportArgumentType]
    assert load(f"{path}:make_noting").__globals__["rates"] == [(3e-4, None), (0.5, None)]
