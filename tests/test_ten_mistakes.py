"""The ten most common mistakes of ML-Agents' users, each made as they make it: a command line in a process of its own.

Each ends with exit code 1 and says, on standard error, what is wrong and what to do; nothing of a run is written and no
process is left. Variants, and what comes between, stand in test_bad_input.py.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import trainer

pytestmark = trainer.MARKS


@pytest.fixture
def refused(start: Any, tmp_path: Path) -> Any:
    """Train; what standard error says of the mistake, after a look at exit code, files and processes."""

    def check(configuration: Path, *flags: str) -> str:
        before = trainer.contents(tmp_path)
        process = start(configuration, *flags)
        assert process.wait(120) == 1, process.stdout + process.stderr
        assert process.leaves_nothing()
        assert "Traceback" not in process.stdout + process.stderr
        written = trainer.contents(tmp_path).keys() - before.keys()
        assert {name for name in written if not name.startswith("output")} == set()
        return process.stderr

    return check


def written(folder: Path, **sections: Any) -> Path:
    """A configuration for an environment that is never started."""
    path = folder / "config.yaml"
    game = folder / "Game.x86_64"
    game.write_text("#!/bin/sh\nexit 9\n")
    game.chmod(0o700)
    path.write_text(yaml.safe_dump({"env_settings": {"env_path": str(game)}, **sections}))
    return path


WALKER = {"behaviors": {"Walker": {"trainer_type": "ppo"}}}


def test_1_no_configuration_file(refused: Any, tmp_path: Path) -> None:
    assert refused(tmp_path / "confg.yaml") == f"configuration file not found: {tmp_path / 'confg.yaml'}\n"


def test_2_unknown_key(refused: Any, tmp_path: Path) -> None:
    path = written(tmp_path, behaviors={"Walker": {"trainer_type": "ppo", "hyperparameters": {"bufer_size": 5}}})
    key = "behaviors.Walker.hyperparameters.bufer_size"
    assert refused(path) == f"{path}: {key}: unknown key, did you mean buffer_size?\n"


def test_3_run_id_that_exists(refused: Any, tmp_path: Path) -> None:
    old = tmp_path / "results" / "run" / "configuration.yaml"
    old.parent.mkdir(parents=True)
    old.write_text("behaviors: {}\n")
    error = refused(written(tmp_path, **WALKER))
    assert error == (
        f"{old.parent} already holds a run. Choose another --run-id, continue the old run with --resume, or overwrite "
        "it with --force.\n"
    )
    assert old.read_text() == "behaviors: {}\n"


def test_4_resume_without_a_run(refused: Any, tmp_path: Path) -> None:
    assert refused(written(tmp_path, **WALKER), "--resume") == (
        f"{tmp_path}/results/run does not exist, so --resume has nothing to continue. Check --run-id and --results-dir"
        ", or leave --resume (checkpoint_settings.resume) out to start a new run.\n"
    )


def test_5_several_environments_of_the_editor(refused: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(WALKER))
    assert refused(path, "--num-envs=2") == (
        f"{path}: env_settings.num_envs: got 2, expected 1 without env_path: several environments need an executable "
        "(--env) (given on the command line)\n"
    )


def test_10_a_demonstration(refused: Any, tmp_path: Path) -> None:
    """A file that is not there, and one that was cut off. Of another agent: tests/demonstrations, tests/rewards."""
    cloning = {"behavioral_cloning": {"demo_path": "Other.demo"}}
    error = refused(written(tmp_path, behaviors={"Walker": {"trainer_type": "ppo", **cloning}}))
    key = "behaviors.Walker.behavioral_cloning.demo_path"
    assert f"{key}: Other.demo: there is no such file or folder of demonstrations" in error and error.count("\n") == 1
    cut = tmp_path / "Cut.demo"
    cut.write_bytes(bytes([9]))
    cloning = {"behavioral_cloning": {"demo_path": str(cut)}}
    error = refused(written(tmp_path, behaviors={"Walker": {"trainer_type": "ppo", **cloning}}))
    assert f"{key}: {cut}: it is cut off at byte 0: the header would have 9 bytes" in error and error.count("\n") == 1


@pytest.mark.slow
def test_6_behavior_that_is_not_listed(refused: Any, tmp_path: Path) -> None:
    error = refused(scripted(tmp_path, "normal", "Wlker"))
    assert error == (
        "behaviors.Walker: the environment has this behavior, the configuration does not (it lists: Wlker); did you "
        "mean Wlker? Add an entry `Walker:` below `behaviors:`, or a `default_settings:` section for all unlisted "
        "behaviors\n"
    )


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.socket() as somebody:
        somebody.bind(("localhost", 0))
        somebody.listen()
        yield somebody.getsockname()[1]


@pytest.mark.slow
def test_7_port_in_use(refused: Any, tmp_path: Path, taken: int) -> None:
    flags = [f"--base-port={taken}", "--max-lifetime-restarts=0"]  # else it is tried again, on a free port
    error = refused(scripted(tmp_path, "normal"), *flags)
    assert f"port {taken} is in use" in error and "--base-port" in error


@pytest.mark.slow
def test_8_start_up_time_out(refused: Any, tmp_path: Path) -> None:
    error = refused(scripted(tmp_path, "never_connects"), "--timeout-wait=2")
    assert "did not connect within 2 seconds" in error and "Behavior Type" in error and "--timeout-wait" in error


@pytest.mark.slow
def test_8_connected_and_nobody_asks_for_a_decision(refused: Any, tmp_path: Path) -> None:
    error = refused(scripted(tmp_path, "never_asks"), "--timeout-wait=2", "--max-lifetime-restarts=0")
    assert "no agent has asked for a decision for 2 seconds" in error
    assert "Decision Requester" in error and '"Inference Only" or "Heuristic Only"' in error


@pytest.mark.slow
def test_9_observation_that_is_no_number(start: Any, tmp_path: Path) -> None:
    """Found in the middle of a run, whose files are there: what it learned before is no policy yet."""
    process = start(scripted(tmp_path, "nan_observation"))
    assert process.wait(120) == 1 and process.leaves_nothing()
    error = process.stderr.strip()
    words = ["Walker?team=0", "agent 2", "sensor 0 ('vector')", "nan"]
    assert [word for word in words if word not in error] == [] and error.count("\n") == 0
    assert not list((tmp_path / "results").rglob("*.onnx"))


def scripted(folder: Path, scenario: str, behavior: str = "Walker") -> Path:
    """A configuration for the scripted player, whose behavior is Walker."""
    build = trainer.player(folder, "scripted_player.py", f"--scenario {scenario}")
    return trainer.config(folder, {"env_settings.env_path": str(build)}, behavior)
