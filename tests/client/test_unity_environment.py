"""`jaxrl.unity_environment` in a loop of one's own, against real player processes."""

from __future__ import annotations

import importlib
import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import jaxrl
from jaxrl.client.environment import NoSuchBehaviorError
from jaxrl.envs.action_checks import ActionError
from jaxrl.envs.address import UnknownEnvironmentError
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.types import Action
from tests.envs.unity_build import BEHAVIOR, children, free_port, write_build


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    """Starts environments with a scenario of the scripted player; afterwards no process is left."""
    before = children()
    with ExitStack() as stack:

        def start_env(scenario: str = "normal", *words: str, **settings):
            env = jaxrl.unity_environment(
                write_build(tmp_path), base_port=free_port(), timeout_wait=20.0, log_folder=str(tmp_path / "logs"),
                env_args=("--scenario", scenario, *words), **settings,
            )  # fmt: skip
            return stack.enter_context(env)

        yield start_env
    assert children() == before


def test_a_loop_of_ones_own(start):
    env = start()
    assert "communication version 1.5.0" in env.about
    with pytest.raises(NoSuchBehaviorError, match="no behavior is known before the first reset"):
        env.get_steps(BEHAVIOR)
    steps = env.reset()
    assert list(env.specs) == list(steps) == [BEHAVIOR] and env.specs[BEHAVIOR].action.discrete_branches == (3, 2)
    assert steps[BEHAVIOR].deciding.agent_id.tolist() == [1, 2]
    env.set_actions(BEHAVIOR, continuous=np.full((2, 2), 0.5), discrete=[[1, 1], [1, 1]])
    steps = env.step()
    # Two agents, each 2 * 0.5 continuous and 1 + 1 discrete: 2 * (1 + 2) = 6.
    np.testing.assert_array_equal(steps[BEHAVIOR].deciding.obs[0], [[1, 1, 6], [1, 2, 6]])
    assert env.get_steps(BEHAVIOR) is steps[BEHAVIOR]
    with pytest.raises(NoSuchBehaviorError, match=r"Walkr: no such behavior, did you mean Walker\?team=0"):
        env.set_actions("Walkr")


def test_actions_are_set_anew_for_each_step_and_must_fit(start):
    env = start()
    env.reset()
    action = Action(np.zeros((2, 2), np.float32), np.zeros((2, 2), np.int32))
    env.set_actions(BEHAVIOR, action)
    env.step()
    with pytest.raises(ActionError, match="2 agents asked for actions and got none"):
        env.step()
    env.set_actions(BEHAVIOR, discrete=action.discrete)
    with pytest.raises(ActionError, match=r"expected actions of shapes \(\(2, 2\), \(2, 2\)\)"):
        env.step()
    with pytest.raises(ActionError, match=r"discrete actions: got \[1\.7\], expected whole numbers"):
        env.set_actions(BEHAVIOR, continuous=action.continuous, discrete=[[1.0, 1.7], [0, 0]])
    env.set_actions(BEHAVIOR, action)  # nothing was sent: it can be mended
    env.step()


def test_a_behavior_without_agents_in_a_message_is_there_and_empty(start):
    env = start("late")
    env.reset()
    for _ in range(2):
        env.set_actions(BEHAVIOR, Action(np.zeros((2, 2), np.float32), np.zeros((2, 2), np.int32)))
        steps = env.step()
    assert steps["Late?team=1"].deciding.agent_id.tolist() == [9]
    assert steps["Late?team=1"].ended.agent_id.tolist() == []
    assert set(env.reset()) == {BEHAVIOR, "Late?team=1"}
    assert env.get_steps("Late?team=1").deciding.obs[0].shape[0] in (0, 1)


def test_parameters_and_side_channels_of_ones_own(start, tmp_path):
    """Channel ...abcd sends; the parameters' channel is replaced by one's own, and set_parameters goes through it."""
    side_channel = importlib.import_module("mlagents_envs.side_channel.side_channel")
    parameters = importlib.import_module("mlagents_envs.side_channel.environment_parameters_channel")

    class Own(side_channel.SideChannel):
        def __init__(self) -> None:
            super().__init__(uuid.UUID("00000000-0000-0000-0000-00000000abcd"))
            self.heard = []

        def on_message_received(self, msg) -> None:
            self.heard.append(bytes(msg.get_raw_bytes()))

    own, record = Own(), tmp_path / "record.json"
    env = start("channels", "--record", str(record), side_channels=[own, parameters.EnvironmentParametersChannel()])
    env.set_parameters({"mass": 0.5})
    env.reset()
    assert len(own.heard) == 1
    assert [stat.name for stat in env.stats] == [f"stat{kind}" for kind in range(4)]
    sent = bytes.fromhex(json.loads(record.read_text())["side"])
    assert bytes.fromhex("04000000") + b"mass" + bytes.fromhex("000000000000003f") in sent


def test_s7_properties_of_the_environment_through_their_channel(start, tmp_path):
    """`Wind` is 0.5 with the answer to the reset and 1.5 after a step; 0.25 for `Mass` goes the other way."""
    floats = importlib.import_module("mlagents_envs.side_channel.float_properties_channel")
    properties, record = floats.FloatPropertiesChannel(), tmp_path / "record.json"
    env = start("properties", "--record", str(record), side_channels=[properties])
    properties.set_property("Mass", 0.25)
    env.reset()
    assert properties.get_property_dict_copy() == {"Mass": 0.25, "Wind": 0.5}
    env.set_actions(BEHAVIOR, Action(np.zeros((2, 2), np.float32), np.zeros((2, 2), np.int32)))
    env.step()
    assert properties.get_property("Wind") == 1.5
    sent = bytes.fromhex(json.loads(record.read_text())["side"])
    assert bytes.fromhex("04000000") + b"Mass" + bytes.fromhex("0000803e") in sent


def test_it_is_closed_with_the_block_and_when_it_cannot_start(tmp_path):
    before = children()
    with jaxrl.unity_environment(write_build(tmp_path), base_port=free_port()) as env:
        env.reset()
    assert children() == before
    env.close()
    with pytest.raises(EnvironmentFailure, match="is closed"):
        env.reset()
    with pytest.raises(EnvironmentFailure, match="no executable environment at"):
        jaxrl.unity_environment(str(tmp_path / "none"))
    with pytest.raises(UnknownEnvironmentError, match="jax:basic: is no player; expected the path of a build"):
        jaxrl.unity_environment("jax:basic")
