"""The Unity client against real, healthy player processes, and the Editor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from unity_build import BEHAVIOR, ROOT, SCRIPT, actions, free_port, opener, write_build

from jaxrl.envs.action_checks import ActionError
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.unity import environment as unity
from jaxrl.envs.unity.environment import UnityHostEnv
from jaxrl.envs.unity.side_channels import SilentChannel
from jaxrl.types import Action, Aggregation


@pytest.fixture
def start(tmp_path):
    with opener(tmp_path) as open_env:
        yield open_env


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
    assert SilentChannel.ID.bytes_le not in sent, "nothing for Unity's servers"


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
    build = write_build(tmp_path_factory.mktemp("build"), wrapped=False)
    env = UnityHostEnv(worker=0, file_name=build, base_port=free_port(), seed=0)
    env.reset()
    yield env
    env.close()


def test_editor(monkeypatch, capfd):
    monkeypatch.setattr(unity, "EDITOR_PORT", free_port())
    with pytest.raises(EnvironmentFailure, match="worker 0 only"):
        UnityHostEnv(worker=1, file_name=None, seed=0)
    command = [sys.executable, str(SCRIPT), "--mlagents-port", str(unity.EDITOR_PORT)]
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
