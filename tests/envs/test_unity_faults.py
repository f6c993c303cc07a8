"""What goes wrong with players: each fault is reported at once, by name, and leaves no process behind."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import psutil
import pytest
from unity_build import BEHAVIOR, ROOT, actions, children, free_port, opener, write_build

from jaxrl.envs.interface import EnvironmentClosed, EnvironmentFailure
from jaxrl.envs.unity.decode import InvalidData, InvalidMessage
from jaxrl.envs.unity.environment import UnityHostEnv
from jaxrl.envs.unity.ports import EDITOR_PORT, port_problem
from jaxrl.envs.workers.worker import INCARNATION
from jaxrl.tools.doctor import environment as doctor

OF_AGENTS = (
    *("nan_observation", "infinite_reward", "wrong_shape", "broken_png", "camera_grows"),
    *("too_many_entities", "floats_missing", "twice", "ends_twice"),
)  # their data alone are wrong: `on_bad_data` decides


@pytest.fixture
def start(tmp_path):
    with opener(tmp_path) as open_env:
        yield open_env


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("nan_observation", ["worker 0", BEHAVIOR, "agent 2", "sensor 0 ('vector')", "nan"]),
        ("infinite_reward", [BEHAVIOR, "agent 1", "reward", "inf"]),
        ("wrong_shape", [BEHAVIOR, "agent 2", "sensor 0 ('vector')", "expected shape (3,)", "received (4,)"]),
        ("broken_png", ["worker 0", BEHAVIOR, "agent 2", "sensor 1 ('camera')", "broken PNG"]),
        ("camera_grows", [BEHAVIOR, "agent 2", "sensor 1 ('camera')", "expected shape (3, 4, 5), received (3, 8, 5)"]),
        ("too_many_entities", [BEHAVIOR, "agent 2", "sensor 1 ('tiles')", "received (3, 2)", "at most 2 entities fit"]),
        ("floats_missing", [BEHAVIOR, "agent 2", "sensor 0 ('vector')", "received (3,) with 2 numbers"]),
        ("twice", ["worker 0", BEHAVIOR, "agent 2", "asks twice in one message", "CollectObservations"]),
        ("ends_twice", ["worker 0", BEHAVIOR, "agent 2", "ends twice in one message"]),
        ("garbage", ["no ML-Agents message"]),
        ("unannounced", ["Ghost?team=0", "before its specification"]),
        ("unknown_aggregation", ["'Speed'", "unknown aggregation 4", "3 HISTOGRAM"]),
        ("cut_off_channel", ["cut off"]),
    ],
)
def test_invalid_messages_are_named(start, scenario, words):
    env = start(scenario)
    env.reset()
    if scenario == "ends_twice":
        env.step(actions())
    n = 1 if scenario == "infinite_reward" else 2
    with pytest.raises(InvalidMessage) as caught:
        env.step(actions(n))
    assert [word for word in words if word not in str(caught.value)] == []
    kind = InvalidData if scenario in OF_AGENTS else InvalidMessage
    assert type(pickle.loads(pickle.dumps(caught.value))) is kind


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("status_400", ["worker 0 (", "closed (status 400)"]),
        ("quits", ["worker 0 (", "quit (exit code 0)"]),
        ("last_words", ["(status 400): no more memory", "return code 3", "log line 0"]),
        ("crash", ["return code 7", "log line 29", "log line 10", "Last 20 lines", "To see its output, run: "]),
        ("killed", ["return code -9 (SIGKILL)"]),
        ("killed_while_it_sends", ["in the middle of a message", "return code -9 (SIGKILL)"]),
    ],
)
def test_end_of_the_player_is_reported_at_once(start, scenario, words):
    env = start(scenario, timeout_wait=30.0, wrapped=not scenario.startswith("killed"))
    env.reset()
    begin = time.monotonic()
    with pytest.raises(EnvironmentFailure) as caught:
        env.step(actions())
    assert time.monotonic() - begin < 3
    assert [word for word in words if word not in str(caught.value)] == []
    assert "log line 9\n" not in str(caught.value)
    assert isinstance(caught.value, EnvironmentClosed) == (scenario in {"status_400", "quits"})
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


def test_goodbye_while_the_learner_works(start):
    env = start("goodbye")
    env.reset()
    time.sleep(0.6)
    with pytest.raises(EnvironmentFailure, match=r"closed \(status 400\): told to stop by the system"):
        env.step(actions())


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
        ("quits_at_once", ["quit (exit code 0)"]),
        (
            "never_connects",
            ["did not connect within 0.5 seconds", "--no-graphics", "Behavior Type", "Decision Requester"],
        ),
    ],
)
def test_failed_start_leaves_nothing_behind(start, scenario, words):
    port, before = free_port(), children()
    with pytest.raises(EnvironmentFailure) as caught:  # also one that quits in order: nothing has begun
        start(scenario, timeout_wait=0.5 if scenario == "never_connects" else 20.0, base_port=port)
    assert [word for word in words if word not in str(caught.value)] == []
    assert not isinstance(caught.value, EnvironmentClosed)
    assert children() == before


def test_port_in_use(start):
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentFailure, match=f"worker 0 .*port {port} is in use.*--base-port"):
            start(base_port=port)


def test_the_editor_knows_no_other_port():
    with socket.socket() as taken:
        with suppress(OSError):  # then somebody else holds it
            taken.bind(("localhost", EDITOR_PORT))
            taken.listen()
        problem = port_problem(EDITOR_PORT)
        (found,) = doctor.ports(EDITOR_PORT, 1)
    assert problem.startswith("port 5004 is in use") and "the Unity Editor looks for a trainer at this port" in problem
    assert "base-port" not in problem + found.remedy and found.remedy == "end what holds it"


def test_port_is_free_again_after_close(start):
    port = free_port()
    for _ in range(2):
        env = start(base_port=port)
        with pytest.raises(EnvironmentFailure, match=f"port {port} is in use"):
            start(base_port=port)
        env.reset()
        env.close()


def test_u32_a_player_that_outlived_its_worker_does_not_speak_beside_the_next_one(start):
    """The worker was killed while its player loaded; the player still calls where it was told to."""
    port, again = free_port(), INCARNATION.set(1)
    command = [sys.executable, str(ROOT / "tests" / "envs" / "countdown_player.py"), "--mlagents-port", str(port)]
    orphan = subprocess.Popen([*command, "--connect-seconds", "30"], env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        env = start(base_port=port)
        for result in [env.reset(), *(env.step(actions()) for _ in range(20))]:
            assert set(result.steps) == {BEHAVIOR}
        assert ", on port " not in env.about, "it has its own port again"
        env.close()
        with socket.socket() as taken:
            taken.bind(("localhost", port))
            taken.listen()
            assert ", on port " in start(base_port=port).about, "and another one where that is held"
    finally:
        INCARNATION.reset(again)
        orphan.kill()
        orphan.wait(10)


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


def test_exception_while_open_does_not_hang_the_interpreter(tmp_path):
    build = write_build(tmp_path)
    code = f"""
from jaxrl.envs.unity.environment import UnityHostEnv
env = UnityHostEnv(worker=0, file_name={build!r}, base_port={free_port()}, seed=0)
env.reset()
import psutil, sys
print(*[child.pid for child in psutil.Process().children(recursive=True)])
assert "jax" not in sys.modules
raise KeyError("oops")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "oops" in done.stderr
    assert len(done.stdout.split()) == 3, done.stdout  # the wrapper script, the player, and the shell beside them
    assert [pid for pid in done.stdout.split() if psutil.pid_exists(int(pid))] == []
