"""The Unity client against real player processes, healthy and faulty."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from jaxrl.envs import unity
from jaxrl.envs.decode import InvalidMessage
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.unity import ActionError, UnityHostEnv
from jaxrl.types import Action, Aggregation

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BEHAVIOR = "Walker?team=0"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@pytest.fixture
def build(tmp_path) -> str:
    """An executable, as a game developer would have one, named without its suffix."""
    path = tmp_path / "game.x86_64"
    script = f'#!/bin/sh\nPYTHONPATH="{ROOT}" "{sys.executable}" "{HERE / "scripted_player.py"}" "$@"\n'
    path.write_text(script)
    path.chmod(0o755)
    return str(tmp_path / "game")


@pytest.fixture
def start(build, tmp_path):
    """Start environments with a scenario; afterwards close them and make sure that no process is left."""
    opened = []

    def open_env(scenario: str = "normal", **settings) -> UnityHostEnv:
        args = ("--scenario", scenario, *settings.pop("env_args", ()))
        settings = {"worker": 0, "base_port": free_port(), "seed": 5, "timeout_wait": 10.0} | settings
        env = UnityHostEnv(file_name=build, env_args=args, log_folder=str(tmp_path / "logs"), **settings)
        opened.append(env)
        return env

    yield open_env
    for env in opened:
        env.close()
    assert psutil.Process().children(recursive=True) == []


def actions(n: int = 2, value: float = 0.5) -> dict[str, Action]:
    return {BEHAVIOR: Action(continuous=np.full((n, 2), value, np.float32), discrete=np.ones((n, 2), np.int32))}


def test_reset_step_and_launch_arguments(start, tmp_path):
    record = tmp_path / "record.json"
    env = start(
        env_args=("--record", str(record)), worker=2, num_areas=3, no_graphics=True, base_port=free_port() - 2, seed=11
    )
    result = env.reset({"gravity": 9.5})
    assert result.worker == 2
    spec = result.new_specs[BEHAVIOR]
    assert (spec.action.continuous_size, spec.action.discrete_branches) == (2, (3, 2))
    assert [(sensor.name, sensor.shape) for sensor in spec.observations] == [("vector", (3,))]
    result = env.step(actions())
    assert dict(result.new_specs) == {}
    deciding = result.steps[BEHAVIOR].deciding
    # Two agents, each 2 * 0.5 continuous and 1 + 1 discrete: 2 * (1 + 2) = 6.
    np.testing.assert_array_equal(deciding.obs[0], [[1, 1, 6], [1, 2, 6]])
    np.testing.assert_array_equal(deciding.agent_id, [1, 2])
    assert deciding.action_mask.shape == (2, 5) and deciding.action_mask.all()
    env.reset()
    env.close()
    seen = json.loads(record.read_text())
    assert (seen["seed"], seen["num_areas"], seen["version"]) == (11, 3, "1.5.0")
    assert "-nographics" in seen["argv"] and "-batchmode" in seen["argv"]
    assert str(tmp_path / "logs" / "Player-2.log") in seen["argv"]
    assert (tmp_path / "logs" / "Player-2.log").read_text() == "told to stop\n"


def test_first_message_carries_engine_settings_and_parameters(start, tmp_path):
    record = tmp_path / "record.json"
    env = start(env_args=("--record", str(record)), time_scale=20.0)
    env.reset({"mass": 0.5})
    sent = bytes.fromhex(json.loads(record.read_text())["side"])
    # Time scale: kind 2, float 20.0 = 0x41a00000. Parameter: length 4, "mass", type 0, float 0.5 = 0x3f000000.
    assert bytes.fromhex("020000000000a041") in sent
    assert bytes.fromhex("04000000") + b"mass" + bytes.fromhex("000000000000003f") in sent


def test_statistics_and_one_warning_per_unknown_channel(start, caplog):
    env = start("channels")
    first = env.reset()
    second = env.step(actions())
    assert [(s.name, s.value, s.aggregation) for s in first.stats] == [
        (f"stat{kind.value}", 0.5 + kind.value, kind) for kind in Aggregation
    ]
    assert [s.value for s in second.stats] == [1.5, 2.5, 3.5, 4.5]
    assert [record.message for record in caplog.records if "unknown side channel" in record.message] == [
        "data of unknown side channel 00000000-0000-0000-0000-00000000abcd is ignored (this is said once per channel)"
    ]


def test_messages_without_agents_are_passed_over(start):
    env = start("gaps")
    first = env.reset()
    np.testing.assert_array_equal(first.steps[BEHAVIOR].deciding.obs[0][:, 0], [2, 2])
    assert [s.value for s in first.stats] == [0, 1, 2]
    ended = env.step(actions()).steps[BEHAVIOR]
    assert ended.ended.truncated.tolist() == [True]
    assert len(ended.deciding.agent_id) == 0
    assert env.step({}).steps[BEHAVIOR].deciding.obs[0][0, 0] == 6


def test_behavior_that_appears_late(start):
    env = start("late")
    assert set(env.reset().new_specs) == {BEHAVIOR}
    assert set(env.step(actions()).new_specs) == set()
    result = env.step(actions())
    assert set(result.new_specs) == {"Late?team=1"}
    assert result.steps["Late?team=1"].deciding.agent_id.tolist() == [9]
    late = {"Late?team=1": Action(continuous=np.zeros((1, 2), np.float32), discrete=np.zeros((1, 2), np.int32))}
    assert dict(env.step(actions() | late).new_specs) == {}


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("nan_observation", ["worker 0", BEHAVIOR, "agent 2", "sensor 0 ('vector')", "nan"]),
        ("infinite_reward", [BEHAVIOR, "agent 1", "reward", "inf"]),
        ("wrong_shape", [BEHAVIOR, "agent 2", "sensor 0 ('vector')", "expected shape (3,)", "received (4,)"]),
        ("garbage", ["no ML-Agents message"]),
        ("unannounced", ["Ghost?team=0", "before its specification"]),
        ("unknown_aggregation", ["'Speed'", "unknown aggregation 4", "3 HISTOGRAM"]),
        ("cut_off_channel", ["cut off"]),
    ],
)
def test_invalid_messages_are_named(start, scenario, words):
    env = start(scenario)
    env.reset()
    n = 1 if scenario == "infinite_reward" else 2
    with pytest.raises(InvalidMessage) as caught:
        env.step(actions(n))
    assert [word for word in words if word not in str(caught.value)] == []
    assert type(pickle.loads(pickle.dumps(caught.value))) is InvalidMessage


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("status_400", ["closed (status 400)"]),
        ("crash", ["return code 7", "log line 29", "log line 10", "Last 20 lines", "To see its output, run: "]),
        ("killed", ["return code 137"]),  # the shell that wraps the player reports signal 9 as 128 + 9
    ],
)
def test_end_of_the_player_is_reported_at_once(start, scenario, words):
    env = start(scenario, timeout_wait=30.0)
    env.reset()
    begin = time.monotonic()
    with pytest.raises(EnvironmentFailure) as caught:
        env.step(actions())
    assert time.monotonic() - begin < 3
    assert [word for word in words if word not in str(caught.value)] == []
    assert "log line 9\n" not in str(caught.value)


def test_hanging_player_times_out_and_is_killed(start):
    env = start("silent", timeout_wait=3.0)
    env.reset()
    with pytest.raises(EnvironmentFailure, match="no answer within 3 seconds"):
        env.step(actions())
    begin = time.monotonic()
    env.close()
    env.close()
    assert time.monotonic() - begin < 8
    with pytest.raises(EnvironmentFailure, match="is closed"):
        env.step({})


def test_nobody_asks_for_a_decision(start):
    env = start("never_asks", timeout_wait=3.0)
    with pytest.raises(EnvironmentFailure, match=r"Decision Requester.*Behavior Type"):
        env.reset()


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("old_version", ["1.5.0", "0.9.0"]),
        ("no_version", ["communication version ''"]),
        ("dies_at_once", ["return code 3", "no licence"]),
        (
            "never_connects",
            ["did not connect within 0.5 seconds", "--no-graphics", "Behavior Type", "Decision Requester"],
        ),
    ],
)
def test_failed_start_leaves_nothing_behind(start, scenario, words):
    port = free_port()
    with pytest.raises(EnvironmentFailure) as caught:
        start(scenario, timeout_wait=0.5 if scenario == "never_connects" else 20.0, base_port=port)
    assert [word for word in words if word not in str(caught.value)] == []
    assert psutil.Process().children(recursive=True) == []


def test_port_in_use(start):
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentFailure, match=f"worker 0 .*port {port} is in use.*--base-port"):
            start(base_port=port)


def test_port_is_free_again_after_close(start):
    port = free_port()
    for _ in range(2):
        env = start(base_port=port)
        with pytest.raises(EnvironmentFailure, match=f"port {port} is in use"):
            start(base_port=port)
        env.reset()
        env.close()


def test_missing_and_unstartable_files(tmp_path):
    settings: dict[str, Any] = {"worker": 0, "base_port": free_port(), "seed": 0}
    with pytest.raises(EnvironmentFailure, match=r"'/nowhere/game'; tried /nowhere/game, /nowhere/game\.x86_64"):
        UnityHostEnv(file_name="/nowhere/game", **settings)
    with pytest.raises(EnvironmentFailure, match="is a folder"):
        UnityHostEnv(file_name=str(tmp_path), **settings)
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    if os.geteuid() != 0:
        plain.chmod(0o644)
    with pytest.raises(EnvironmentFailure, match=r"not executable; run: chmod \+x"):
        UnityHostEnv(file_name=str(plain), **settings)
    plain.chmod(0o755)
    with pytest.raises(EnvironmentFailure, match="Exec format error"):
        UnityHostEnv(file_name=str(plain), **settings)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "2 agents asked for actions and got none"),
        (actions(3), r"expected .*\(\(2, 2\), \(2, 2\)\)"),
        (actions(2, float("nan")), "agent 1: continuous action .* not finite"),
        (actions() | {"Other": actions()[BEHAVIOR]}, "'Other': no agent"),
        (
            {BEHAVIOR: actions()[BEHAVIOR]._replace(discrete=np.array([[0, 0], [2, 2]]))},
            r"agent 2: .*\[2, 2\].*\(3, 2\)",
        ),
    ],
)
def test_wrong_actions_are_refused_and_nothing_is_sent(shared_env, given, words):
    with pytest.raises(ActionError, match=words):
        shared_env.step(given)
    assert set(shared_env.step(actions()).steps) == {BEHAVIOR}


@pytest.fixture(scope="module")
def shared_env(tmp_path_factory):
    path = tmp_path_factory.mktemp("build") / "game"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "{HERE / "scripted_player.py"}" "$@"\n')
    path.chmod(0o755)
    env = UnityHostEnv(worker=0, file_name=str(path), base_port=free_port(), seed=0)
    env.reset()
    yield env
    env.close()


def test_editor(monkeypatch, capfd):
    monkeypatch.setattr(unity, "EDITOR_PORT", free_port())
    with pytest.raises(EnvironmentFailure, match="worker 0 only"):
        UnityHostEnv(worker=1, file_name=None, seed=0)
    command = [sys.executable, str(HERE / "scripted_player.py"), "--mlagents-port", str(unity.EDITOR_PORT)]
    editor = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        env = UnityHostEnv(worker=0, file_name=None, seed=0, base_port=1, timeout_wait=20)
        assert "press Play" in capfd.readouterr().err
        assert len(env.reset().steps[BEHAVIOR].deciding.agent_id) == 2
        threading.Timer(0.2, editor.kill).start()
        time.sleep(1.0)  # the Editor goes away while the learner works
        begin = time.monotonic()
        with pytest.raises(EnvironmentFailure, match="closed: the connection broke"):
            env.step(actions())
        assert time.monotonic() - begin < 2
        env.close()
    finally:
        editor.kill()
        editor.wait(5)


def test_exception_while_open_does_not_hang_the_interpreter(build):
    code = f"""
from jaxrl.envs.unity import UnityHostEnv
env = UnityHostEnv(worker=0, file_name={build!r}, base_port={free_port()}, seed=0)
env.reset()
import psutil, sys
print(*[child.pid for child in psutil.Process().children(recursive=True)])
assert "jax" not in sys.modules
raise KeyError("oops")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "oops" in done.stderr
    assert len(done.stdout.split()) == 2, done.stdout  # the wrapper script and the player
    assert [pid for pid in done.stdout.split() if psutil.pid_exists(int(pid))] == []
