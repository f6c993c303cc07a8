"""What a user can get wrong: exit code 1, one clear message that says how to mend it, nothing half-written, no strays.

What is found before anything starts stands in test_cli.py and test_settings*.py; here are complete command lines.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import psutil
import pytest

from tests import trainer

pytestmark = trainer.MARKS


@pytest.fixture
def refused(tmp_path, capsys):
    """Train; the one message that refuses it, after a look at what is left: no file, no process."""
    before = set(psutil.Process().children(recursive=True))

    def check(configuration: Path, *more: str, lines: int = 1) -> str:
        assert trainer.train(configuration, tmp_path / "results", *more) == 1
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err + printed.out and "[ERROR]" not in printed.out
        if lines:
            assert len(printed.err.strip().splitlines()) == lines, printed.err
        assert not [
            name for name in trainer.contents(tmp_path) if name.startswith("results") and "/run_logs/" not in name
        ]
        left = {p for p in psutil.Process().children(recursive=True) if "resource_tracker" not in " ".join(p.cmdline())}
        assert left <= before
        return printed.err

    return check


@pytest.mark.parametrize(
    ("changes", "flags", "message"),
    [
        ({"*.max_step": 5}, [], "behaviors.Countdown.max_step: unknown key, did you mean max_steps?"),
        ({"*.hyperparameters.batch_size": "many"}, [], "behaviors.Countdown.hyperparameters.batch_size: got 'many'"),
        (
            {"env_settings.env_path": None},
            ["--num-envs", "2"],
            "env_settings.num_envs: got 2, expected 1 without env_path",
        ),
        ({"env_settings.env_path": "/nowhere/Game"}, [], "no executable environment at '/nowhere/Game'"),
        ({"env_settings.env_path": "player:dungon_escape"}, [], "did you mean dungeon_escape?"),
        ({}, ["--resume"], "--resume has nothing to continue"),
        ({}, ["--initialize-from", "other"], "--initialize-from other: "),
        ({}, ["--run-id", "a/../b"], "--run-id 'a/../b' cannot be the name of a folder"),
    ],
)
def test_before_anything_starts(refused, tmp_path, changes, flags, message):
    assert message in refused(trainer.config(tmp_path, changes), *flags)
    assert not (tmp_path / "results").exists()


def test_file_that_may_not_be_executed(refused, tmp_path):
    game = tmp_path / "Game.x86_64"
    game.write_text("#!/bin/sh\n")
    game.chmod(0o600)
    assert "chmod +x" in refused(trainer.config(tmp_path, {"env_settings.env_path": str(game)}))


def test_file_that_is_no_program(refused, tmp_path):
    game = tmp_path / "Game.x86_64"
    game.write_text("not a program")
    game.chmod(0o700)
    error = refused(trainer.config(tmp_path, {"env_settings.env_path": str(game)}), lines=0)
    assert "Exec format error" in error and str(game) in error


def test_behavior_that_is_not_configured(refused, tmp_path):
    error = refused(trainer.config(tmp_path, {}, "Countdwn"))
    assert "behaviors.Countdown: the environment has this behavior" in error
    assert "did you mean Countdwn?" in error and "default_settings" in error


def test_one_right_and_one_wrong_behavior_fail_before_anything_is_written(tmp_path, start):
    """A command line as from ML-Agents, in a process of its own, against a player with both behaviors."""
    build = trainer.player(tmp_path, "scenes_player.py", "--behaviors Basic,3DBall")
    configuration = trainer.config(tmp_path, {"env_settings.env_path": str(build)}, "Basic")
    configuration.write_text(configuration.read_text().replace("env_settings:", "  3DBal: {}\nenv_settings:"))
    child = start(configuration, command="learn")
    assert child.wait(120) == 1
    message = "behaviors.3DBall: the environment has this behavior, the configuration does not (it lists: Basic, 3DBal)"
    assert message in child.stderr and "did you mean 3DBal?" in child.stderr and "Traceback" not in child.stderr
    written = [name for name in trainer.contents(tmp_path / "results") if "/Player-" not in name]
    assert written == [] and child.leaves_nothing()


def test_port_in_use(refused, tmp_path):
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        flags = ["--base-port", port, "--max-lifetime-restarts", "0"]  # else it is started again, on a free port
        error = refused(trainer.config(tmp_path), *flags, lines=0)
    assert f"port {port} is in use" in error and "--base-port" in error


def scripted(folder: Path, scenario: str) -> Path:
    """A configuration for the scripted player."""
    build = trainer.player(folder, "scripted_player.py", f"--scenario {scenario}")
    return trainer.config(folder, {"env_settings.env_path": str(build)}, "Walker")


def test_player_that_never_connects(refused, tmp_path):
    error = refused(scripted(tmp_path, "never_connects"), "--timeout-wait", "1", lines=0)
    assert "did not connect within 1 seconds" in error and "Behavior Type" in error and "--timeout-wait" in error


def test_player_that_dies_at_once(refused, tmp_path):
    error = refused(scripted(tmp_path, "dies_at_once"), lines=0)
    assert "return code 3" in error and "no licence" in error


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("nan_observation", ["Walker?team=0", "agent 2", "sensor 0 ('vector')", "nan"]),
        ("nan_reward", ["Walker?team=0", "agent 2", "reward", "nan"]),
    ],
)
def test_numbers_that_are_not_finite(tmp_path, capsys, scenario, words):
    assert trainer.train(scripted(tmp_path, scenario), tmp_path / "results") == 1
    error = capsys.readouterr().err
    assert [word for word in words if word not in error] == [] and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("table_sensor", ["observation 1 ('Table', shape (4, 2))", "remove the sensor"]),
        ("small_grid", ["observation 1 ('GridSensor', shape (6, 8, 20))", "vis_encode_type simple", "20 x 20 pixels"]),
    ],
)
def test_sensor_that_no_encoder_reads(tmp_path, capsys, scenario, words):
    """Found when the behavior shows itself, before a folder of it is made."""
    assert trainer.train(scripted(tmp_path, scenario), tmp_path / "results") == 1
    error, words = capsys.readouterr().err, ["behavior 'Walker?team=0'", *words]
    assert [word for word in words if word not in error] == [] and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "results" / "run" / "Walker").exists()


def test_results_folder_below_a_file(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert trainer.train(trainer.config(tmp_path), tmp_path / "file" / "results") == 1
    error = capsys.readouterr().err
    assert "file" in error and "--results-dir" in error and len(error.strip().splitlines()) == 1


def test_results_folder_that_may_not_be_written(tmp_path, capsys):
    if os.geteuid() == 0:  # root may write everywhere but here
        folder = Path("/proc/self/results")
    else:
        (tmp_path / "locked").mkdir(mode=0o500)
        folder = tmp_path / "locked" / "results"
    assert trainer.train(trainer.config(tmp_path), folder) == 1
    error = capsys.readouterr().err
    assert str(folder) in error and "--results-dir" in error and len(error.strip().splitlines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="limits of a running process can be set on Linux alone")
def test_disk_that_becomes_full(start, tmp_path):
    """The run goes on, and what it writes at its end is an error while there is still no room."""
    process = start(trainer.config(tmp_path, {"*.max_steps": trainer.ENDLESS}))
    process.says("Step: 600.")
    results = tmp_path / "results"
    psutil.Process(process.process.pid).rlimit(psutil.RLIMIT_FSIZE, (16384, 16384))  # no file may grow beyond 16 KiB
    process.says("cannot be written")
    assert process.process.poll() is None
    process.interrupt()
    assert process.wait() == 1 and process.leaves_nothing()
    error = process.stderr.strip().splitlines()
    assert "cannot be written" in error[-1]
    assert "Traceback" not in process.stdout + process.stderr
    unfinished = [name for name in trainer.contents(results) if name.endswith(("tmp", "partial"))]
    assert unfinished == []
    last = trainer.steps(results)[-1]
    assert trainer.final_state(results)["step"] == last
