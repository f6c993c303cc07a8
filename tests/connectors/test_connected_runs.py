"""X4: connectors in whole runs: statistics in checkpoints, resuming, and what is refused before anything starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint.folder import checkpoints, remove
from jaxrl.cli import main
from jaxrl.rollout.booking.slots import Source
from jaxrl.settings import load_run_settings
from jaxrl.training.host.behaviors import Behaviors
from jaxrl.training.host.ghosts import Ghosts, Weights
from jaxrl.training.host.policies import copied, make_frozen, weights_of
from tests import trainer
from tests.envs.countdown_player import SPEC
from tests.helpers import decision_steps, message

CONNECTORS = [
    {"type": "clip", "low": -8, "high": 8},
    {"type": "normalize"},
    {"type": "normalize_rewards"},
    {"type": "unsquash", "low": -0.5, "high": 0.5},
]
SHORT = {"*.connectors": CONNECTORS, "*.network_settings.normalize": False, "*.max_steps": 600}
SOURCE = Source(0, "Countdown?team=0")
NAMED, NAME = "Countdown", "Basic"
COMPILED: dict[str, Any] = {
    "behaviors": {
        NAME: {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 32, "buffer_size": 64, "num_epoch": 1},
            "network_settings": {"hidden_units": 8, "num_layers": 1},
            "connectors": [
                {"type": "normalize"},
                {"type": "frame_stack", "frames": 2},
                {"type": "previous_action"},
                {"type": "normalize_rewards"},
                {"type": "previous_reward"},
            ],
            "max_steps": 500,
            "checkpoint_interval": 256,
        }
    },
    "env_settings": {"num_areas": 4, "seed": 5},
}


@pytest.fixture(scope="module")
def finished(runs, tmp_path_factory) -> Path:
    """The results folder of a run of the host loop."""
    folder = tmp_path_factory.mktemp("connected")
    assert trainer.train(trainer.config(folder, SHORT), folder / "results") == 0
    return folder / "results"


def statistics(results: Path, run_id: str = "run") -> dict[str, np.ndarray]:
    return {
        name: x
        for name, x in trainer.final_state(results, run_id).items()
        if name.startswith("train/policy/connectors")
    }


@pytest.mark.timeout(400)
def test_x4_statistics_are_part_of_a_checkpoint_and_go_on(finished: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(finished, tmp_path / "results")
    before = statistics(finished)
    (count,) = (x for name, x in before.items() if name.startswith("train/policy/connectors/1/") and "count" in name)
    assert count > 600.0  # one for each decision, and those that were open in the end
    assert (finished / "run" / "Countdown.onnx").is_file()
    changes = {**SHORT, "*.max_steps": 900}
    assert trainer.train(trainer.config(tmp_path, changes), tmp_path / "results", "--resume") == 0
    after = statistics(tmp_path / "results")
    (later,) = (x for name, x in after.items() if name.startswith("train/policy/connectors/1/") and "count" in name)
    assert later >= count + 300.0
    capsys.readouterr()
    other = [{"type": "mask", "sensors": ["VectorSensor_size4"], "columns": [0]}, *CONNECTORS]
    sensor = json.loads(next((finished / "run" / "Countdown").glob("*/checkpoint.json")).read_text())
    other[0] = {**other[0], "sensors": [sensor["spec"]["observations"][0]["name"]]}
    assert (
        trainer.train(trainer.config(tmp_path, {**changes, "*.connectors": other}), tmp_path / "results", "--resume")
        == 1
    )
    assert "connectors: " in capsys.readouterr().err


@pytest.mark.parametrize("inference", [False, True])
def test_x4_evaluation_leaves_the_statistics_alone(finished: Path, inference: bool) -> None:
    """What a frozen chain means is tested on the chain."""
    flags = {"checkpoint_settings": {"inference": inference, "resume": True}}
    settings = load_run_settings(finished / "run" / "configuration.yaml", flags, HYPERPARAMETER_TYPES)
    nobody: Any = None
    chain = Behaviors(settings, nobody, nobody, 1, nobody).make(NAMED, SPEC).algorithm.connectors
    assert chain is not None and chain.names == tuple(c["type"] for c in CONNECTORS)
    assert chain.learning != inference


def test_x4_r20_a_frozen_policy_has_the_statistics_of_its_model_and_keeps_them(finished: Path) -> None:
    """Nine agents see what they see, twice: the model's statistics move on, the frozen policy's do not."""
    settings = load_run_settings(finished / "run" / "configuration.yaml", {}, HYPERPARAMETER_TYPES)
    nobody: Any = None
    model = Behaviors(settings, nobody, nobody, 1, nobody).make(NAMED, SPEC)
    spoken = message(SPEC, deciding=decision_steps(SPEC, list(range(1, 10))))
    model.act({SOURCE: spoken})
    policy = weights_of(None, model, model.state, {}).policy
    held = make_frozen("still", model, policy, jax.random.key(1))
    for _ in range(2):
        held.act({SOURCE: spoken})
        model.act({SOURCE: spoken})
    counts = [next(iter(actor.statistics[1].values())).count for actor in (held.actor, model.actor)]
    assert counts == [9.0, 27.0]


def test_an_opponent_and_a_renewed_exploiter_have_the_statistics_of_what_they_act_as(finished: Path) -> None:
    """Nine agents: an opponent that has acted with those of nobody is sent the model's; then the model begins anew."""
    settings = load_run_settings(finished / "run" / "configuration.yaml", {}, HYPERPARAMETER_TYPES)
    nobody: Any = None
    behaviors = Behaviors(settings, nobody, nobody, 1, nobody)
    model = behaviors[NAMED] = behaviors.make(NAMED, SPEC)
    ghosts = Ghosts(behaviors.policies)
    ghosts.add("ghost", NAMED, Weights(copied(model.state.policy)))
    opponent = behaviors.policies._frozen["ghost"]
    spoken = {SOURCE: message(SPEC, deciding=decision_steps(SPEC, list(range(1, 10))))}

    def counts() -> list[float]:
        for policy in (opponent, model):
            policy.act(spoken)
        return [float(next(iter(of.statistics[1].values())).count) for of in (opponent.actor, model.actor)]

    assert counts() == [0.0, 9.0]
    ghosts.send("ghost", Weights(copied(model.state.policy)))
    assert counts() == [9.0, 18.0]
    model.renew(jax.random.key(2), None)
    assert counts() == [9.0, 9.0]


@pytest.mark.parametrize(
    "connector", [{"type": "frame_stack", "frames": 3}, {"type": "previous_action"}], ids=lambda c: c["type"]
)
def test_x7_what_unity_cannot_feed_is_refused_before_anything_starts(tmp_path: Path, capsys, connector: dict) -> None:
    configuration = trainer.config(tmp_path, {"*.connectors": [{"type": "clip", "low": 0, "high": 1}, connector]})
    assert trainer.train(configuration, tmp_path / "results") == 1
    error = capsys.readouterr().err
    assert f"behaviors.Countdown.connectors[1].type: {connector['type']} remembers" in error
    assert not (tmp_path / "results").exists()


def test_x4_a_connector_that_does_not_fit_is_named_with_its_behavior(runs, tmp_path: Path, capsys) -> None:
    changes = {**SHORT, "*.connectors": [{"type": "clip", "low": 0, "high": 1, "sensors": ["eye"]}]}
    assert trainer.train(trainer.config(tmp_path, changes), tmp_path / "results") == 1
    error = capsys.readouterr().err
    assert "behavior 'Countdown" in error and "connectors[0] (clip): sensors: got eye, expected one of" in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_x4_x7_a_resumed_compiled_run_equals_the_one_that_was_never_stopped(tmp_path: Path, capsys) -> None:
    """Bit for bit, what each agent's connectors remember included. No ONNX file, and the reason once."""
    configuration = tmp_path / "config.yaml"
    configuration.write_text(yaml.safe_dump(COMPILED))
    arguments = ["train", str(configuration), "--env", "jax:basic", "--results-dir", str(tmp_path)]
    assert main([*arguments, "--run-id", "whole"]) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert said.count("no ONNX files are written") == 1
    assert "frame_stack, previous_action, previous_reward" in said
    whole = checkpoints(tmp_path / "whole" / NAME)
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    remove(checkpoints(tmp_path / "stopped" / NAME)[-1])
    assert main([*arguments, "--run-id", "stopped", "--resume"]) == 0
    again = checkpoints(tmp_path / "stopped" / NAME)
    assert [found.step for found in whole] == [found.step for found in again] and len(whole) == 2
    one, other = (_arrays(found[-1].path) for found in (whole, again))
    assert one.keys() == other.keys() and any("play/connectors" in name for name in one)
    assert not [name for name in one if one[name].tobytes() != other[name].tobytes()]
    assert not list(tmp_path.rglob("*.onnx"))
    status = json.loads((tmp_path / "whole" / "run_logs" / "training_status.json").read_text())
    assert status[NAME]["final_checkpoint"]["file_path"].endswith(f"{NAME}-{whole[-1].step}")


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Every array of a checkpoint."""
    from jaxrl.artifacts.checkpoint import store

    return {name: np.asarray(array) for name, array in store.read_arrays(path).items()}
