"""What the doctor says of environments: real processes that play, die, hang, or are not there."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.cli import main
from jaxrl.settings import EnvironmentSettings, RunSettings, load_run_settings
from jaxrl.tools.doctor import environment as doctor
from jaxrl.tools.doctor.findings import Outcome
from tests import trainer

sys.path.insert(0, str(Path(__file__).parents[2] / "envs"))

from unity_build import children, free_port, write_build

pytestmark = [*trainer.MARKS]
OK, WARN, FAIL = Outcome.OK, Outcome.WARN, Outcome.FAIL


def settings(path: str | None, scenario: str = "normal", **changes) -> RunSettings:
    options = {"timeout_wait": 2.0, "editor_wait": 0.0, "base_port": free_port(), "seed": 0, **changes}
    return RunSettings(env_settings=EnvironmentSettings(env_path=path, env_args=("--scenario", scenario), **options))


def told(found) -> list[tuple[str, str]]:
    return [(finding.outcome, finding.subject) for finding in found]


@pytest.mark.slow
def test_a_player_that_plays(tmp_path):
    config = trainer.config(tmp_path)
    options = {"env_settings": {"base_port": free_port(), "timeout_wait": 60.0, "num_areas": 2}}
    found = list(doctor.environment(load_run_settings(config, options, HYPERPARAMETER_TYPES)))
    subjects = ["environment", "port", "connection", "behaviors", "decision", "speed"]
    assert told(found) == [(OK, subject) for subject in subjects], found
    assert found[2].text.startswith("Connected to Unity environment with package version ")
    assert (
        found[3].text
        == "Countdown?team=0: 6 agent(s) in 2 team(s); sees countdown 5; does 1 continuous and branches of 3"
    )
    assert found[4].text.startswith("the first one for Countdown?team=0 after ")
    assert not [process for process in children() if "_player.py" in " ".join(process.cmdline())]


@pytest.mark.slow
def test_a_behavior_that_the_configuration_lacks(tmp_path):
    config = trainer.config(tmp_path, behavior="Walker")
    options = {"env_settings": {"base_port": free_port(), "num_areas": 1}}
    *_, last = doctor.environment(load_run_settings(config, options, HYPERPARAMETER_TYPES))
    assert (last.outcome, last.subject) == (FAIL, "decision")
    assert (
        "behaviors.Countdown: the environment has this behavior, the configuration does not (it lists: Walker)"
        in last.text
    )


def test_a_file_that_is_not_there(tmp_path):
    found = list(doctor.environment(settings(str(tmp_path / "gone"))))
    assert told(found) == [(FAIL, "environment")]
    assert f"tried {tmp_path / 'gone'}, {tmp_path / 'gone'}.x86_64" in found[0].text
    (tmp_path / "plain.x86_64").write_text("")
    found = list(doctor.environment(settings(str(tmp_path / "plain"))))
    assert found[0].text.endswith(f"run: chmod +x {tmp_path / 'plain.x86_64'}")


def test_names_that_do_not_exist():
    found = list(doctor.environment(settings("player:bal3d")))
    assert told(found) == [(FAIL, "environment")]
    assert "player:bal3d: no such environment, did you mean ball3d?" in found[0].text
    found = list(doctor.environment(settings("gymnsium:CartPole-v1")))
    assert told(found) == [(FAIL, "environment")]


def test_a_port_in_use(tmp_path):
    path = write_build(tmp_path)
    with socket.socket() as holder:
        holder.bind(("localhost", 0))
        holder.listen()
        port = holder.getsockname()[1]
        found = list(doctor.environment(settings(path, base_port=port)))
    assert told(found) == [(OK, "environment"), (FAIL, "port")], "nothing is started"
    assert f"port {port} is in use" in found[1].text
    assert found[1].remedy.startswith(f"--base-port {port + 100}, ")


def test_a_process_that_dies(tmp_path):
    found = list(doctor.environment(settings(write_build(tmp_path), "dies_at_once", timeout_wait=100.0)))
    assert told(found) == [(OK, "environment"), (OK, "port"), (FAIL, "connection")]
    assert "return code 3" in found[-1].text
    assert "no licence" in found[-1].text, "the player's log is quoted"


def test_a_process_that_hangs(tmp_path):
    begun = time.monotonic()
    found = list(doctor.environment(settings(write_build(tmp_path), "never_connects", timeout_wait=1.0)))
    assert told(found)[-1] == (FAIL, "connection")
    assert "did not connect within 1 seconds" in found[-1].text
    assert time.monotonic() - begun < 100
    assert not [process for process in children() if "scripted_player" in " ".join(process.cmdline())]


def test_the_command_ends_with_1_where_something_fails(tmp_path, capsys):
    arguments = ["doctor", "--env", str(tmp_path / "gone"), "--results-dir", str(tmp_path / "results")]
    assert main(arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:18].split()[1] for line in lines[:3]] == ["python", "packages", "protocol"]
    assert any(line.startswith("FAIL  environment  no executable environment at ") for line in lines)
    assert lines[-1].endswith("1 failed, 0 to look at.") or "to look at" in lines[-1]
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_without_an_environment_the_editor_is_waited_for_a_moment(capsys):
    begun = time.monotonic()
    code = main(["doctor", "--timeout-wait", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert any(line.startswith("WARN  connection   no Editor has connected within 2 s") for line in lines), lines
    assert any("press Play while it waits" in line for line in lines)
    assert time.monotonic() - begun < 60


@pytest.mark.slow
def test_environments_that_are_no_players(tmp_path):
    found = list(doctor.environment(settings("jax:basic")))
    assert told(found) == [(OK, "environment")]
    assert "jax:basic: 0 problem(s) in 20 decisions of 4 areas" in found[0].text
    found = list(doctor.environment(settings("jax:basik")))
    assert told(found) == [(FAIL, "environment")]
    assert "jax:basik: no such environment" in found[0].text
    (tmp_path / "never.py").write_text("import time\n\ndef make():\n    time.sleep(1000)\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "_COMPILED_SECONDS", 4.0)
        found = list(doctor.environment(settings(f"{tmp_path / 'never.py'}:make")))
    assert found[0].text.endswith("has not been played within 4 s")
    pytest.importorskip("gymnasium")
    options = {"env_settings": {"env_path": "gymnasium:CartPole-v1", "seed": 0}}
    made = load_run_settings(None, options, HYPERPARAMETER_TYPES)
    assert told(doctor.environment(made)) == [
        (OK, s) for s in ("environment", "connection", "behaviors", "decision", "speed")
    ]
