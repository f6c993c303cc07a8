"""What one run leaves: the files, their formats, the console, and an ONNX file that acts like the checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import numpy as np
import onnxruntime
import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.networks import actions, normalizer
from jaxrl.networks.models import Actor
from jaxrl.settings import load_run_settings, to_yaml
from tests import trainer
from tests.event_files import read_events

pytestmark = trainer.MARKS
NAME = "DungeonEscape"
LINE = re.compile(
    rf"\[INFO\] {NAME}\. Step: (\d+)\. Time Elapsed: \d+\.\d{{3}} s\. "
    r"(?:No episode was completed since last summary|"
    r"Mean Reward: -?\d+\.\d{3}\. (?:Mean Group Reward: -?\d+\.\d{3}\. )?Std of (?:Group )?Reward: \d+\.\d{3})\. "
    r"Training\."
)
TAGS = {
    "Environment/Cumulative Reward", "Environment/Cumulative Reward_hist", "Environment/Group Cumulative Reward",
    "Environment/Group Cumulative Reward_hist", "Environment/Episode Length", "Policy/Entropy", "Policy/Learning Rate",
    "Policy/Epsilon", "Policy/Beta", "Policy/Extrinsic Value Estimate", "Policy/Extrinsic Baseline Estimate",
    "Policy/Extrinsic Reward", "Policy/Largest Log Ratio", "Losses/Policy Loss", "Losses/Value Loss",
    "Losses/Baseline Loss", "Environment/Finished Episodes", "Time/Steps per Second",
}  # fmt: skip
FROM_THE_ENVIRONMENT = {"Environment/Dragon Slain", "Environment/Escaped", "Environment/Held Out"}


class Run:
    def __init__(self, configuration: Path, path: Path, output: str) -> None:
        self.configuration = configuration
        self.path = path
        self.output = output

    def json(self, name: str) -> dict:
        return json.loads((self.path / "run_logs" / name).read_text())

    def steps(self) -> list[int]:
        """Steps of the kept checkpoints."""
        return sorted(int(path.name.rpartition("-")[2]) for path in (self.path / NAME).glob("*-*") if path.is_dir())


@pytest.fixture(scope="module")
def run(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / trainer.AWKWARD
    folder.mkdir()
    changes = {"env_settings.env_path": "player:dungeon_escape", "*.max_steps": 1500, "*.time_horizon": 32}
    configuration = trainer.config(folder, changes, NAME)
    with pytest.MonkeyPatch.context() as patch, (folder / "output").open("w+") as output:
        patch.setattr("sys.stdout", output)
        patch.setattr("sys.stderr", output)
        assert trainer.train(configuration, folder / "results") == 0
    return Run(configuration, folder / "results" / "run", (folder / "output").read_text())


def test_exactly_these_files(run):
    steps = run.steps()
    assert len(steps) == 3 and steps[-1] > 1500
    expected = {"configuration.yaml", f"{NAME}.onnx", f"{NAME}/checkpoint", f"{NAME}/metrics.csv"}
    logs = ("manifest.json", "timers.json", "training_status.json", "Player-0.log")
    expected |= {f"run_logs/{name}" for name in logs}
    expected |= {f"{NAME}/{NAME}-{step}.onnx" for step in steps}
    expected |= {f"{NAME}/{NAME}-{step}/{name}.json" for step in steps for name in ("checkpoint", "manifest")}
    found = {path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file()}
    found = {name for name in found if "/arrays/" not in name}
    events = {name for name in found if name.startswith(f"{NAME}/events.out.tfevents.")}
    assert len(events) == 1
    assert found - events == expected
    final = (run.path / f"{NAME}.onnx").read_bytes()
    assert final == (run.path / NAME / f"{NAME}-{steps[-1]}.onnx").read_bytes()


def test_tensorboard_shows_the_tags_of_ml_agents(run):
    events = read_events(next((run.path / NAME).glob("events.*")))
    values = [(event.step, value) for event in events for value in event.summary.value]
    assert {value.tag for _, value in values if value.tag != "Hyperparameters/text_summary"} == (
        TAGS | FROM_THE_ENVIRONMENT
    )
    assert values[0][1].tag.startswith("Hyperparameters")
    entropy = [(step, value.simple_value) for step, value in values if value.tag == "Policy/Entropy"]
    assert [step for step, _ in entropy] == [300, 600, 900, 1200, 1500]
    assert all(0 < value <= np.log(7) + 1e-6 for _, value in entropy)  # 7 actions, fewer where some are forbidden


def test_configuration_loads_back_equal(run):
    path = run.path / "configuration.yaml"
    again = load_run_settings(path, {}, HYPERPARAMETER_TYPES)
    assert to_yaml(again) == path.read_text()
    given = load_run_settings(run.configuration, {}, HYPERPARAMETER_TYPES)
    assert again.behaviors == given.behaviors
    assert again.checkpoint_settings.run_id == "run" and again.env_settings.seed == 1
    assert list(yaml.safe_load(path.read_text())) == [
        "default_settings", "behaviors", "env_settings", "engine_settings", "environment_parameters",
        "checkpoint_settings", "torch_settings", "debug",
    ]  # fmt: skip


def test_training_status(run):
    status = run.json("training_status.json")
    assert set(status) == {NAME, "metadata"} and status["metadata"]["stats_format_version"] == "0.3.0"
    entries = status[NAME]["checkpoints"]
    assert [entry["steps"] for entry in entries] == run.steps()
    final = status[NAME]["final_checkpoint"]
    assert final["steps"] == run.steps()[-1] and final["file_path"] == (run.path / f"{NAME}.onnx").as_posix()
    for entry in [*entries, final]:
        assert set(entry) == {"steps", "file_path", "reward", "creation_time", "auxillary_file_paths"}
        assert Path(entry["file_path"]).is_file() and all(Path(path).exists() for path in entry["auxillary_file_paths"])
        assert entry["reward"] is None or isinstance(entry["reward"], float)


def test_timers(run):
    tree = run.json("timers.json")
    assert tree["name"] == "root" and tree["metadata"]["timer_format_version"] == "0.1.0"
    assert set(tree["children"]) == {"run_training.setup", "TrainerController.start_learning", "RLTrainer._checkpoint"}
    learning = tree["children"]["TrainerController.start_learning"]["children"]
    assert set(learning) == {"TrainerController._reset_env", "TrainerController.advance"}
    turn = learning["TrainerController.advance"]["children"]
    assert set(turn) == {"env_step", "TorchPolicy.evaluate", "SubprocessEnvManager._take_step", "trainer_advance"}
    assert turn["env_step"]["children"]["workers"]["is_parallel"]
    trainer_advance = turn["trainer_advance"]["children"]
    assert set(trainer_advance) == {"process_trajectory", "_update_policy", "RLTrainer._checkpoint"}
    assert turn["env_step"]["count"] == learning["TrainerController.advance"]["count"], "one turn, one wait"
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        assert 0 <= node["self"] <= node["total"] and node["count"] >= 1
        nodes += node.get("children", {}).values()
    gauges = tree["gauges"]
    assert {f"{NAME}.Policy.Entropy.mean", f"{NAME}.Environment.CumulativeReward.sum"} <= set(gauges)
    updates = gauges[f"{NAME}.Buffer.AgentSteps"]["count"]
    assert trainer_advance["_update_policy"]["count"] == updates, "each is timed once, with its wait"
    assert all(set(gauge) == {"value", "min", "max", "count"} for gauge in gauges.values())


def test_console(run):
    lines = run.output.splitlines()
    assert [int(match[1]) for line in lines if (match := LINE.fullmatch(line))] == [300, 600, 900, 1200, 1500]
    assert lines.count(f"[INFO] Hyperparameters for behavior name {NAME}:") == 1
    exports = [line for line in lines if ".onnx" in line and "difference" in line]
    named = [int(line.split(".onnx")[0].rpartition("-")[2]) for line in exports]
    assert named == sorted(set(named)) and named[-len(run.steps()) :] == run.steps()  # each once; old ones are dropped
    assert sum("Copied" in line for line in lines) == 1
    assert not any(word in run.output for word in ("WARNING", "ERROR", "Traceback"))


def test_onnx_acts_like_the_checkpoint(run):
    env = ENVIRONMENTS["dungeon_escape"]()
    settings = load_run_settings(run.configuration, {}, HYPERPARAMETER_TYPES).behaviors[NAME]
    template = trainer.template(run.configuration, NAME, env.spec)
    saved = checkpoint.restore(run.path / NAME / f"{NAME}-{run.steps()[-1]}", template)
    assert int(saved.step) == run.steps()[-1] and saved.decisions > 0
    random = np.random.default_rng(0)
    obs = random.normal(size=(50, *env.spec.observations[0].shape)).astype(np.float32)
    masks = random.random((50, env.spec.action.mask_size)) < 0.7
    masks[:, 0] = True
    actor = Actor(env.spec, settings.network_settings)

    @jax.jit
    def best(policy, obs, masks):
        dist = actor.apply(policy.params, normalizer.normalize_all(policy.normalizer, obs))
        return actions.mode(dist, masks, env.spec.action)

    expected = best(saved.train.policy, (obs,), masks)
    session = onnxruntime.InferenceSession(run.path / f"{NAME}.onnx")
    inputs = {"obs_0": obs, "action_masks": masks.astype(np.float32)}
    (found,) = session.run(["deterministic_discrete_actions"], inputs)
    np.testing.assert_array_equal(found, expected.discrete)
    assert len(np.unique(found)) > 1
