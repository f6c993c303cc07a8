"""The host loop starts from a compiled run of several seeds: with the best seed's weights, never as a resumed run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES
from jaxrl.algorithms.interface import TrainState
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import CheckpointError, checkpoints, require_latest
from jaxrl.artifacts.checkpoint.tree import is_key, to_arrays
from jaxrl.artifacts.run_folder import RunFolder, RunFolderError
from jaxrl.cli import main
from jaxrl.jax_envs import make_environment
from jaxrl.settings import BehaviorSettings, load_run_settings
from jaxrl.training import saver
from jaxrl.training.compiled import run as train_jitted
from jaxrl.training.compiled.saver import _initialized
from jaxrl.training.host import run as train_host
from tests import trainer
from tests.jax_envs.toy_jax_env import quick_compilation, quick_jit
from tests.jitted_command import Command

NAME, SEEDS = "Basic", (7, 8, 9)
SETTINGS = {
    "behaviors": {
        NAME: {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 64, "buffer_size": 128, "learning_rate": 0.001, "num_epoch": 1},
            "network_settings": {"hidden_units": 16, "num_layers": 1, "normalize": True},
            "max_steps": 200,
            "checkpoint_interval": 100,
            "summary_freq": 100,
        }
    },
    "env_settings": {"num_areas": 4, "seed": SEEDS[0], "env_path": "player:basic"},
}
TAKEN = ("train/policy", "train/critic", "train/own")
pytestmark = trainer.MARKS


@pytest.fixture(scope="module")
def folder(runs: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configuration, and the results folder with the run `many` of the compiled loop."""
    path = tmp_path_factory.mktemp("seeds")
    (path / "config.yaml").write_text(yaml.safe_dump(SETTINGS))
    command = Command(path, "many", "--env", "jax:basic", "--seeds", str(len(SEEDS)))
    assert command.ends() == 0, command.output
    return path


@pytest.fixture
def results(folder: Path, tmp_path: Path) -> Path:
    """A copy of the results folder, to be changed."""
    shutil.copytree(folder / "results", tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture(scope="module")
def fresh(folder: Path) -> TrainState:
    """A learner that nothing was done with."""
    algorithm = ALGORITHMS["ppo"](make_environment("jax:basic").spec, behavior(folder))
    return quick_jit(algorithm.init)(jax.random.key(0))


@pytest.fixture
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


def behavior(folder: Path) -> BehaviorSettings:
    return load_run_settings(folder / "config.yaml", {}, HYPERPARAMETER_TYPES).behaviors[NAME]


def best_of(run: Path) -> int:
    return json.loads((run / "run_logs" / "training_status.json").read_text())[NAME]["seed"] - SEEDS[0]


def name_best(run: Path, index: int) -> None:
    """Let the run call another seed its best."""
    path = run / "run_logs" / "training_status.json"
    status = json.loads(path.read_text())
    status[NAME]["seed"] = SEEDS[0] + index
    path.write_text(json.dumps(status))


def learners(path: Path, fresh: TrainState, *seeds: int) -> dict[str, np.ndarray]:
    """Every array of the learner, or learners, in a checkpoint."""
    template = {"train": jax.tree.map(lambda x: jnp.broadcast_to(x, (*seeds, *x.shape)), fresh)}
    return to_arrays(checkpoint.restore_params_only(path, template, fields=("train",)))


def weights_of(run: Path, fresh: TrainState, index: int) -> dict[str, np.ndarray]:
    """What another run takes from this seed."""
    arrays = learners(require_latest(run / NAME), fresh, len(SEEDS))
    return {name: x[index] for name, x in arrays.items() if name.startswith(TAKEN)}


def host(folder: Path, results: Path, *flags: str, run_id: str = "child") -> int:
    return trainer.train(folder / "config.yaml", results, *flags, run_id=run_id)


def test_the_weights_are_those_of_the_onnx_file(folder: Path, results: Path, fresh: TrainState, capsys: Any) -> None:
    """The checkpoint before the first update shows them; then they learn."""
    best = best_of(results / "many")
    assert host(folder, results, "--initialize-from", "many") == 0
    printed = " ".join(capsys.readouterr().out.split())
    source = require_latest(results / "many" / NAME)
    expected = f"{NAME}: initialized from {source}, seed {SEEDS[best]} (index {best} of its 3 seeds)."
    assert expected in printed
    first, *_, last = checkpoints(results / "child" / NAME)
    assert first.step < SETTINGS["behaviors"][NAME]["hyperparameters"]["buffer_size"] < last.step
    exported = [results / "child" / NAME / f"{first.path.name}.onnx", results / "many" / f"{NAME}.onnx"]
    assert exported[0].read_bytes() == exported[1].read_bytes()
    before, after = learners(first.path, fresh), learners(last.path, fresh)
    assert not any(x.any() for name, x in before.items() if name.startswith("train/optimizer"))
    assert all(np.isfinite(x).all() for x in after.values())
    assert any(before[name].tobytes() != after[name].tobytes() for name in before if name.startswith("train/policy"))
    assert main(["watch", "jax:basic", "--run", str(results / "child"), "--out", str(results / "a.gif")]) == 0
    assert main(["watch", "jax:basic", "--run", str(results / "many"), "--out", str(results / "b.gif")]) == 0
    printed = capsys.readouterr().out
    assert f"{NAME}, {last.path.name}: reward" in printed
    assert f"{NAME}, {source.name}, seed {SEEDS[best]} of {len(SEEDS)} seeds: reward" in printed


def test_inference_starts_with_the_seed_that_is_named(folder: Path, results: Path, start: Any) -> None:
    other = (best_of(results / "many") + 1) % len(SEEDS)
    name_best(results / "many", other)
    process = start(folder / "config.yaml", "--inference", "--initialize-from", "many")
    process.says("Not Training.")
    process.interrupt()
    assert process.wait() == 0 and process.leaves_nothing()
    assert f"seed {SEEDS[other]} (index {other} of its 3 seeds)" in " ".join(process.stdout.split())
    assert not checkpoints(results / "run" / NAME)


def with_weights(path: Path, fresh: TrainState, folder: Path) -> tuple[dict[str, np.ndarray], str]:
    spec = make_environment("jax:basic").spec
    state, origin = saver.with_weights_of(path, fresh, spec, behavior(folder))
    return to_arrays({"train": state}), origin


@pytest.mark.parametrize("index", range(len(SEEDS)))
def test_each_seed_can_be_the_best(folder: Path, results: Path, fresh: TrainState, index: int) -> None:
    run = results / "many"
    name_best(run, index)
    state, origin = with_weights(require_latest(run / NAME), fresh, folder)
    assert f"seed {SEEDS[index]} (index {index}" in origin
    expected = weights_of(run, fresh, index)
    for name, x in state.items():
        untouched = to_arrays({"train": fresh})[name]
        np.testing.assert_array_equal(x, expected.get(name, untouched), err_msg=name)


def test_what_begins_anew_is_each_seeds_own(folder: Path, results: Path, fresh: TrainState) -> None:
    """The policy fits no more: its weights stay those that each seed has drawn, the critic is the same in all."""
    changed = {"behaviors": {NAME: {"network_settings": {"normalize": False}}}}
    given = {"checkpoint_settings": {"initialize_from": "many"}} | changed
    run = load_run_settings(folder / "config.yaml", given, HYPERPARAMETER_TYPES)
    one = fresh.replace(policy=fresh.policy.replace(normalizer=(None,)))
    train = jax.tree.map(lambda x: jnp.stack([x, x if is_key(x) else x + 1]), one)
    subject: Any = SimpleNamespace(name=NAME, spec=make_environment("jax:basic").spec, settings=run.behaviors[NAME])
    state: Any = SimpleNamespace(train=train, rivals=(), replace=lambda train: train)
    found = to_arrays({"train": _initialized(run, RunFolder(results, "child"), subject, state)})
    wanted, critic = to_arrays({"train": train}), weights_of(results / "many", fresh, best_of(results / "many"))
    for name, x in found.items():
        own = np.stack([critic[name]] * 2) if name.startswith("train/critic") else wanted[name]
        np.testing.assert_array_equal(x, own, err_msg=name)


def test_without_a_best_seed_the_first(
    folder: Path, results: Path, fresh: TrainState, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """A copy of the behavior's folder alone, given as it is seen from inside."""
    path = require_latest(results / "many" / NAME)
    shutil.rmtree(results / "many" / "run_logs")
    for seed in SEEDS:
        shutil.rmtree(path.parent / f"seed_{seed}")
    monkeypatch.chdir(path.parent)
    state, origin = with_weights(Path(path.name), fresh, folder)
    assert origin == f"{path.name}, the seed at index 0 of its 3 seeds" and "names no best seed" in caplog.text
    expected = weights_of(results / "many", fresh, 0)
    assert {name: state[name].tobytes() for name in expected} == {name: x.tobytes() for name, x in expected.items()}


def test_a_best_seed_that_the_checkpoint_has_not(folder: Path, results: Path, fresh: TrainState) -> None:
    name_best(results / "many", 3)
    with pytest.raises(RunFolderError, match=r"Basic\.seed = 10, but the checkpoint has 3 seeds, 7 to 9"):
        with_weights(require_latest(results / "many" / NAME), fresh, folder)


def everything(folder: Path) -> dict[str, bytes]:
    """Also the players' logs."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


COMPILED = [f"compiled with {len(SEEDS)} seed(s); a run with a player", "cannot resume it", "--initialize-from=many"]
HOST = ["was saved by a run with a player", "cannot resume it", "--initialize-from=child"]


def test_neither_loop_resumes_the_other(folder: Path, results: Path, capsys: Any, quick: None) -> None:
    """One error before anything is written or started; from the library before anything is changed."""
    assert host(folder, results, "--initialize-from", "many") == 0
    capsys.readouterr()
    for run_id, env, words in (("many", "player:basic", COMPILED), ("child", "jax:basic", HOST)):
        before = everything(results)
        assert host(folder, results, "--resume", "--env", env, run_id=run_id) == 1
        error = capsys.readouterr().err
        assert [word for word in words if word not in error] == [], error
        assert len(error.strip().splitlines()) == 1 and everything(results) == before
        options = {"results_dir": str(results), "run_id": run_id, "resume": True}
        given = {"checkpoint_settings": options, "env_settings": {"env_path": env, "base_port": trainer.free_ports()}}
        settings = load_run_settings(folder / "config.yaml", given, HYPERPARAMETER_TYPES)
        kept = trainer.contents(results)
        with pytest.raises(CheckpointError, match="cannot resume it"):
            (train_jitted if env.startswith("jax:") else train_host).train(settings)
        assert trainer.contents(results) == kept
