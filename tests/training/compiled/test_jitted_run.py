"""`jaxrl train CONFIG --env jax:NAME --seeds 3` in real processes: what it leaves, and that no interruption shows."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime
import pytest
import yaml
from rich.console import Console

from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import checkpoints, require_latest
from jaxrl.artifacts.checkpoint.tree import to_arrays
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.jax_envs import make_environment
from jaxrl.settings import RunSettings, load_run_settings
from jaxrl.training.compiled.recorder import JittedRecorder
from jaxrl.training.compiled.saver import Subject, restored
from jaxrl.training.compiled.state import JittedState, SceneState
from tests.artifacts.test_csv_file import rows
from tests.event_files import read_events
from tests.jitted_command import Command
from tests.trainer import AWKWARD
from tests.training.compiled.alone import fresh_states
from tests.training.compiled.test_kill import MINUTES, assert_only_whole

NAME, ENV, SEEDS, AREAS = "SimpleSpread", "jax:simple_spread", (7, 8, 9), 4
FLAGS = ("--env", ENV, "--seeds", str(len(SEEDS)))
MAX_STEPS, INTERVAL = 4500, 1500
SETTINGS = {
    "behaviors": {
        NAME: {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 64, "buffer_size": 256, "learning_rate": 0.001, "num_epoch": 1},
            "network_settings": {"hidden_units": 16, "num_layers": 1, "normalize": True},
            "max_steps": MAX_STEPS,
            "checkpoint_interval": INTERVAL,
            "summary_freq": 750,
        }
    },
    "env_settings": {"num_areas": AREAS, "seed": SEEDS[0]},
}
TAGS = {
    "Environment/Cumulative Reward", "Environment/Group Cumulative Reward", "Environment/Episode Length",
    "Policy/Entropy", "Policy/Learning Rate", "Policy/Epsilon", "Policy/Beta", "Policy/Extrinsic Value Estimate",
    "Policy/Extrinsic Reward", "Policy/Largest Log Ratio", "Losses/Policy Loss", "Losses/Value Loss",
    "Environment/Uncovered Distance", "Environment/Touching Pairs",  # of this environment
    "Environment/Finished Episodes", "Time/Steps per Second",
}  # fmt: skip
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.name == "nt", reason="the signals are those of POSIX"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configuration, results and compiled programs of all runs here."""
    path = tmp_path_factory.mktemp("jitted") / AWKWARD
    path.mkdir()
    (path / "config.yaml").write_text(yaml.safe_dump(SETTINGS))
    return path


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """The results folder of a run that nobody disturbed."""
    command = Command(folder, "whole", *FLAGS)
    assert command.ends() == 0, command.output
    assert "WARNING" not in command.output and "Traceback" not in command.output
    return folder / "results" / "whole"


@pytest.fixture
def begin(folder: Path) -> Iterator[Any]:
    """Starts commands; none outlives the test."""
    commands: list[Command] = []

    def run(run_id: str, *flags: str) -> Command:
        commands.append(Command(folder, run_id, *FLAGS, *flags))
        return commands[-1]

    yield run
    for command in commands:
        command.process.kill()
        command.process.wait(10)


@cache
def settings(folder: Path, **changes: Any) -> RunSettings:
    """Of the runs, as the command reads them."""
    options = {"results_dir": str(folder / "results"), **changes}
    return load_run_settings(folder / "config.yaml", {"checkpoint_settings": options}, HYPERPARAMETER_TYPES)


@cache
def shapes(folder: Path) -> JittedState:
    """What a checkpoint of these runs holds."""
    env, behavior = make_environment(ENV), settings(folder).behaviors[NAME]
    algorithm = ALGORITHMS["ppo"](env.spec, behavior)
    return jax.eval_shape(partial(fresh_states, env, algorithm, behavior, AREAS, 1), np.asarray(SEEDS, np.uint32))


def zeros(folder: Path) -> JittedState:
    """A state that nothing was done with."""

    def zero(leaf: Any) -> Any:
        if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return np.zeros(leaf.shape, leaf.dtype)
        return jax.random.wrap_key_data(np.zeros((*leaf.shape, 2), np.uint32))

    # which seeds are frozen stands in a checkpoint only if one is, returns of late never
    return jax.tree.map(zero, shapes(folder).replace(frozen=(), recent=()))


def restored_alone(run: RunSettings, folder: RunFolder, subject: Subject, fresh: JittedState) -> JittedState:
    """`restored` of one behavior."""
    return restored(run, folder, [subject], SceneState.made_of({NAME: fresh})).of(NAME)


def state_of(run: Path) -> dict[str, np.ndarray]:
    """Every array of the last checkpoint."""
    return to_arrays(checkpoint.restore(require_latest(run / NAME), zeros(run.parents[1])))


def test_files(whole: Path) -> None:
    steps = [found.step for found in checkpoints(whole / NAME)]
    assert len(steps) == MAX_STEPS // INTERVAL and steps[-1] > MAX_STEPS
    expected = {"configuration.yaml", f"{NAME}.onnx", f"{NAME}/checkpoint"}
    expected |= {"run_logs/manifest.json", "run_logs/timers.json", "run_logs/training_status.json"}
    expected |= {f"{NAME}/seed_{seed}/metrics.csv" for seed in SEEDS}
    expected |= {
        f"{NAME}/{NAME}-{step}{rest}" for step in steps for rest in (".onnx", "/checkpoint.json", "/manifest.json")
    }
    found = {path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file()}
    found = {name for name in found if "/arrays/" not in name}
    events = {name for name in found if "/events.out.tfevents." in name}
    assert sorted(name.split("/")[1] for name in events) == [f"seed_{seed}" for seed in SEEDS]
    assert found - events == expected
    status = json.loads((whole / "run_logs" / "training_status.json").read_text())
    assert [entry["steps"] for entry in status[NAME]["checkpoints"]] == steps
    places = [place for entry in status[NAME]["checkpoints"] for place in entry["auxillary_file_paths"]]
    assert places == [f"results/whole/{NAME}/{NAME}-{step}" for step in steps]
    assert status[NAME]["seed"] in SEEDS
    loop = json.loads((whole / "run_logs" / "timers.json").read_text())["children"]
    assert {nodes.ITERATIONS, nodes.CHECKPOINT} <= set(loop[nodes.LEARNING]["children"])
    again = load_run_settings(whole / "configuration.yaml", {}, HYPERPARAMETER_TYPES)
    assert again.env_settings.seeds == len(SEEDS) and again.env_settings.env_path == ENV


def test_each_seed_has_its_events(whole: Path) -> None:
    curves = []
    for seed in SEEDS:
        events = read_events(next((whole / NAME / f"seed_{seed}").glob("events.*")))
        values = [(event.step, value) for event in events for value in event.summary.value]
        assert values[0][1].tag.startswith("Hyperparameters")
        assert {value.tag for _, value in values[1:]} == TAGS
        entropy = [(step, value.simple_value) for step, value in values if value.tag == "Policy/Entropy"]
        assert [step for step, _ in entropy] == list(range(750, MAX_STEPS + 1, 750))
        assert all(0 < value < np.log(5) + 1e-6 for _, value in entropy)
        curves.append([value for _, value in entropy])
    assert curves[0] != curves[1] != curves[2]


def stored_seeds(onnx: Path, arrays: dict[str, np.ndarray]) -> list[bool]:
    """Whose first layer is in the file."""
    (kernels,) = (x for name, x in arrays.items() if "policy" in name and name.endswith("layer_0/kernel"))
    data = onnx.read_bytes()
    return [kernel.tobytes() in data or kernel.T.tobytes() in data for kernel in kernels]


def test_the_onnx_file_is_the_best_seed(whole: Path) -> None:
    """The one that training_status.json names; and it decides."""
    best = SEEDS.index(json.loads((whole / "run_logs" / "training_status.json").read_text())[NAME]["seed"])
    assert stored_seeds(whole / f"{NAME}.onnx", state_of(whole)) == [i == best for i in range(len(SEEDS))]
    session = onnxruntime.InferenceSession(whole / f"{NAME}.onnx")
    obs, mask = session.get_inputs()
    inputs = {obs.name: np.zeros((2, obs.shape[1]), np.float32), mask.name: np.ones((2, mask.shape[1]), np.float32)}
    assert session.run(["deterministic_discrete_actions"], inputs)[0].shape == (2, 1)


def test_no_interruption_shows(whole: Path, folder: Path, begin: Any) -> None:
    """Killed, resumed, interrupted by Ctrl-C, resumed: every array is what it is without, bit for bit.

    The seeds stay the run's own, whatever the command says. `test_kill.py` does it at random moments, and more often.
    """
    broken = folder / "results" / "broken"
    killed = begin("broken", *MINUTES)
    killed.says("Exported")
    killed.process.kill()
    assert killed.ends() == -9 and "Traceback" not in killed.output
    first = assert_only_whole(broken / NAME, 1)
    interrupted = begin("broken", "--resume", "--seed=-1")
    interrupted.says("resuming from")
    interrupted.process.send_signal(2)
    assert interrupted.ends() == 0, interrupted.output
    assert "Learning was interrupted" in interrupted.output and "Traceback" not in interrupted.output
    assert (broken / f"{NAME}.onnx").is_file()
    steps = [found.step for found in checkpoints(broken / NAME)]
    assert assert_only_whole(broken / NAME, first) == steps[-1] < MAX_STEPS
    resumed = begin("broken", "--resume", "--seed=55")
    assert resumed.ends() == 0 and "Traceback" not in resumed.output, resumed.output
    assert_only_whole(broken / NAME, MAX_STEPS)
    assert not [path for path in broken.rglob("*") if path.suffix in (".partial", ".tmp", ".old")]
    assert "env_settings.seed: 55 has no effect" in resumed.output and "drew" not in interrupted.output
    assert {path.name for path in (broken / NAME).glob("seed_*")} == {f"seed_{number}" for number in SEEDS}
    assert f"{NAME}-{steps[-1]}" in resumed.output
    for number in SEEDS:  # no line twice, none missing
        tables = [rows(run / NAME / f"seed_{number}" / "metrics.csv") for run in (broken, whole)]
        assert [row[:2] for row in tables[0]] == [row[:2] for row in tables[1]]
    found, expected = state_of(broken), state_of(whole)
    assert found.keys() == expected.keys() and len(found) > 20
    assert [name for name in found if found[name].tobytes() != expected[name].tobytes()] == []


def test_initialize_from(whole: Path, folder: Path) -> None:
    """Every seed has the weights and the normaliser of the best; step, optimiser and keys are fresh."""
    run = settings(folder, run_id="child", initialize_from="whole")
    env = make_environment(ENV)
    subject = Subject(NAME, env.spec, run.behaviors[NAME], (1, 2, 3), AREAS)
    state = restored_alone(run, RunFolder(folder / "results", "child"), subject, zeros(folder))
    best = SEEDS.index(json.loads((whole / "run_logs" / "training_status.json").read_text())[NAME]["seed"])
    source = state_of(whole)
    for name, x in to_arrays(state).items():
        taken = name.startswith(("train/policy", "train/critic", "train/own"))
        expected = np.stack([source[name][best]] * len(SEEDS)) if taken else np.zeros_like(x)
        np.testing.assert_array_equal(x, expected, err_msg=name)
    assert not (folder / "results" / "child").exists()


def test_saving_a_run_that_is_done_keeps_its_best_seed(whole: Path, folder: Path, caplog: Any) -> None:
    """Resumed, no episode ends any more."""
    shutil.copytree(whole, folder / "results" / "done")
    run, target = settings(folder, run_id="done", resume=True), RunFolder(folder / "results", "done")
    subject = Subject(NAME, make_environment(ENV).spec, run.behaviors[NAME], SEEDS, AREAS)
    status = json.loads(target.status.read_text())
    status[NAME]["seed"] = SEEDS[2]
    target.status.write_text(json.dumps(status))
    silent = ProgressBar(Console(file=io.StringIO()))
    with caplog.at_level("WARNING", "jaxrl"), JittedRecorder(run, target, subject, silent) as recorder:
        state = jax.tree.map(jax.numpy.asarray, restored_alone(run, target, subject, zeros(folder)))
        recorder.begin(step := int(state.train.step.min()))
        recorder.finish(state, step)
    assert f"has passed max_steps ({MAX_STEPS}) already" in caplog.text
    assert json.loads(target.status.read_text())[NAME]["seed"] == SEEDS[2]
    assert stored_seeds(target.final_onnx(NAME), state_of(whole)) == [False, False, True]


def test_other_seeds_than_the_checkpoint_has(whole: Path, folder: Path) -> None:
    run = settings(folder, run_id="whole", resume=True)
    subject = Subject(NAME, make_environment(ENV).spec, run.behaviors[NAME], SEEDS[:2], AREAS)
    fewer = jax.tree.map(lambda x: x[:2], zeros(folder))
    with pytest.raises(checkpoint.CheckpointError, match="seeds: 3 in the checkpoint, 2 now"):
        restored_alone(run, RunFolder(folder / "results", "whole"), subject, fewer)
