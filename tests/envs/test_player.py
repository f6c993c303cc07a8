"""The player over real gRPC in a real process, seen by `mlagents_envs` and by a trainer that shows bare messages."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from jaxrl.envs.player.link import PlayerOptions
from jaxrl.envs.player.messages import PlayerMessages
from jaxrl.envs.player.player import ServedScene, serve
from jaxrl.envs.player.teams import BehaviorPart
from jaxrl.envs.protobuf import messages, register
from jaxrl.types import JaxrlError

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from countdown_player import MEMBERS, SPEC, Countdown  # noqa: E402
from raw_trainer import RawTrainer, free_port  # noqa: E402

register()

from mlagents_envs.base_env import ActionTuple  # noqa: E402
from mlagents_envs.environment import UnityEnvironment  # noqa: E402
from mlagents_envs.side_channel.environment_parameters_channel import EnvironmentParametersChannel  # noqa: E402
from mlagents_envs.side_channel.stats_side_channel import StatsSideChannel  # noqa: E402

SCRIPT = str(HERE / "countdown_player.py")
BEHAVIOR = "Countdown?team=0"
REST = {"continuous_actions": [0.0], "discrete_actions": [0]}


@contextmanager
def countdown(port: int, *arguments: str):
    command = [sys.executable, SCRIPT, "--mlagents-port", str(port), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as player:
        try:
            yield player
        finally:
            player.kill()


@contextmanager
def unity_environment(tmp_path: Path, areas: int, *arguments: str, channels: tuple = ()):
    """`UnityEnvironment` with an executable, as users start it."""
    executable = tmp_path / "Countdown.x86_64"
    executable.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SCRIPT}" "$@"\n')
    executable.chmod(0o755)
    environment = UnityEnvironment(
        str(executable), base_port=free_port(), num_areas=areas, side_channels=list(channels), timeout_wait=30,
        no_graphics=True, additional_args=list(arguments), log_folder=str(tmp_path),
    )  # fmt: skip
    try:
        yield environment
    finally:
        environment.close()


def finish(player: subprocess.Popen, seconds: float = 10.0) -> tuple[int, str]:
    _, text = player.communicate(timeout=seconds)
    return player.returncode, text


def test_an_episode_as_mlagents_sees_it(tmp_path):
    stats, parameters = StatsSideChannel(), EnvironmentParametersChannel()
    parameters.set_float_parameter("bonus", 0.5)
    with unity_environment(tmp_path, 2, channels=(stats, parameters)) as environment:
        environment.reset()
        spec = environment.behavior_specs[BEHAVIOR]
        assert spec.action_spec.continuous_size == 1 and spec.action_spec.discrete_branches == (3,)
        assert [(sensor.name, sensor.shape) for sensor in spec.observation_specs] == [("countdown", (5,))]
        deciding, ended = environment.get_steps(BEHAVIOR)
        assert len(ended) == 0 and deciding.agent_id.tolist() == [0, 1, 2, 3, 4, 5]
        assert list(deciding.group_id) == [1, 1, 1, 2, 2, 2]
        assert deciding.action_mask[0].tolist() == [[False] * 3, [False, False, True], [False] * 3] * 2  # True: no

        def act(count):
            continuous, discrete = np.full((count, 1), 0.25, np.float32), np.arange(count, dtype=np.int32)[:, None] % 3
            environment.set_actions(BEHAVIOR, ActionTuple(continuous=continuous, discrete=discrete))
            environment.step()
            return environment.get_steps(BEHAVIOR)

        deciding, ended = act(6)
        assert len(ended) == 0
        assert deciding.obs[0][4].tolist() == [1, 1, 1, 1, 0.25]  # area 1, member 1, step 1, its own two actions
        assert deciding.reward.tolist() == [1.5] * 6 and deciding.group_reward.tolist() == [10.0] * 6

        deciding, ended = act(6)  # member 0 of each area ends alone
        assert ended.agent_id.tolist() == [0, 3] and not ended.interrupted.any()
        assert ended.reward.tolist() == [1.5, 1.5] and ended.obs[0][:, :3].tolist() == [[0, 0, 2], [1, 0, 2]]
        assert deciding.agent_id.tolist() == [1, 2, 4, 5]

        act(4)
        deciding, ended = act(4)  # the rest is cut off, and asks again in the same message; the others are new
        assert ended.agent_id.tolist() == [1, 2, 4, 5] and ended.interrupted.all()
        assert ended.obs[0][:, 2].tolist() == [4.0] * 4 and ended.group_reward.tolist() == [10.0] * 4
        assert deciding.agent_id.tolist() == [6, 1, 2, 7, 4, 5] and not deciding.reward.any()
        assert deciding.obs[0][:, 2:].tolist() == [[0.0] * 3] * 6
        assert [value for value, _ in stats.get_and_reset_stats()["Countdown/Areas"]] == [0.0, 1.0]


def test_between_two_decisions_rewards_are_summed_and_ends_come_alone(tmp_path):
    with unity_environment(tmp_path, 1, "--decision-period", "3") as environment:
        environment.reset()
        seen = []
        for _ in range(6):
            deciding, ended = environment.get_steps(BEHAVIOR)
            seen.append((deciding.agent_id.tolist(), ended.agent_id.tolist()))
            if len(ended):
                seen[-1] += (ended.reward.tolist(), ended.obs[0][:, 3].tolist())
            if len(deciding):
                continuous = np.zeros((len(deciding), 1), np.float32)
                discrete = np.ones((len(deciding), 1), np.int32)
                environment.set_actions(BEHAVIOR, ActionTuple(continuous=continuous, discrete=discrete))
            environment.step()
    assert seen == [
        ([0, 1, 2], []),  # reset
        ([], [0], [2.0], [1.0]),  # step 2: member 0 ends with the rewards of two steps, its action repeated
        ([1, 2], []),  # step 3: a decision is due
        ([], [1, 2], [1.0, 1.0], [1.0, 1.0]),  # step 4: cut off; they go on with the next decision
        ([1, 2], [3], [2.0], [0.0]),  # step 6: agent 3 ends before it ever decided, its mates are due
        ([], [1, 2], [2.0, 2.0], [1.0, 1.0]),  # step 8
    ]


def test_handshake_then_specs_with_the_first_agents_only():
    with RawTrainer() as trainer, countdown(trainer.port) as player:
        introduction = trainer.greet(areas=2)
        hello = introduction.unity_output.rl_initialization_output
        assert (introduction.header.status, hello.communication_version) == (200, "1.5.0")
        assert hello.capabilities.multiAgentGroups and hello.capabilities.hybridActions
        assert not hello.brain_parameters and not introduction.unity_output.rl_output.agentInfos
        assert not messages().UnityMessageProto.FromString(trainer.sent[1]).HasField("unity_output")

        first = trainer.reset().unity_output
        (brain,) = first.rl_initialization_output.brain_parameters
        assert brain.brain_name == BEHAVIOR and list(brain.action_spec.discrete_branch_sizes) == [3]
        for step in range(4):
            infos = first.rl_output.agentInfos[BEHAVIOR].value
            done = [info.done for info in infos]
            assert done == sorted(done, reverse=True), f"step {step}: ended agents come first"
            first = trainer.act(BEHAVIOR, [REST] * done.count(False)).unity_output
            assert not first.rl_initialization_output.brain_parameters
        trainer.answer(command=messages().QUIT)
        assert finish(player)[0] == 0


def test_teams_are_behaviors_of_their_own(tmp_path):
    with unity_environment(tmp_path, 2, "--teams", "3") as environment:
        environment.reset()
        names = [f"Countdown?team={team}" for team in range(3)]
        assert list(environment.behavior_specs) == names
        seen = []
        for step in range(4):
            views = [environment.get_steps(name) for name in names]
            seen.append([(deciding.agent_id.tolist(), ended.agent_id.tolist()) for deciding, ended in views])
            for team, (deciding, _) in enumerate(views):
                assert not any(deciding.group_id) and (deciding.obs[0][:, 1] == team).all()
                assert step == 0 or (deciding.obs[0][:, 3] == team).all()  # each has got its own last action
                continuous = np.zeros((len(deciding), 1), np.float32)
                discrete = np.full((len(deciding), 1), team, np.int32)
                environment.set_actions(names[team], ActionTuple(continuous=continuous, discrete=discrete))
            environment.step()
        everybody = [([0, 3], []), ([1, 4], []), ([2, 5], [])]  # ids go by area
        late = [([], []), *everybody[1:]]
        assert seen == [everybody, everybody, [([], [0, 3]), *late[1:]], late]  # team 0 ends alone, then is silent
        deciding, ended = environment.get_steps(names[2])
        assert ended.agent_id.tolist() == [2, 5] and deciding.agent_id.tolist() == [2, 5]


def test_a_reset_begins_new_episodes_of_the_same_agents_without_an_ending() -> None:
    """As Unity's: who had ended has a new id, and what was earned since the last request comes with the next one."""
    with RawTrainer() as trainer, countdown(trainer.port, "--decision-period", "3") as player:
        trainer.greet()
        trainer.reset()
        trainer.act(BEHAVIOR, [REST] * MEMBERS)  # until step 2, with which member 0 ends
        infos = trainer.reset().unity_output.rl_output.agentInfos[BEHAVIOR].value
        assert [(info.id, info.done, info.reward) for info in infos] == [(3, False, 0), (1, False, 2), (2, False, 2)]
        trainer.answer(status=400)
        assert finish(player)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_makes_the_player_say_400_and_stop(number):
    with RawTrainer() as trainer, countdown(trainer.port) as player:
        trainer.greet()
        trainer.reset()  # from now on the player waits for an answer
        time.sleep(0.2)
        player.send_signal(number)
        assert trainer.receive(5).header.status == 400
        trainer.answer(status=400)
        assert finish(player)[0] == 0


def test_a_closed_trainer_ends_the_player():
    with RawTrainer() as trainer, countdown(trainer.port) as player:
        trainer.greet()
        trainer.reset()
        trainer.close()
        assert finish(player)[0] == 0


def test_a_killed_trainer_ends_the_player_within_seconds():
    command = [sys.executable, str(HERE / "raw_trainer.py"), SCRIPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        player = psutil.Process(int(trainer.stdout.readline()))
        trainer.send_signal(signal.SIGKILL)
    assert psutil.wait_procs([player], timeout=5)[1] == []


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([REST] * 2, "3 agents asked for a decision, 2 actions came"),
        ([REST, REST, {"continuous_actions": [0.0, 1.0], "discrete_actions": [0]}], "2 continuous actions, expected 1"),
        ([REST, REST, {"continuous_actions": [0.0]}], "0 discrete actions, expected 1"),
        ([REST, REST, {**REST, "discrete_actions": [3]}], "leave the branches"),
    ],
)
def test_actions_that_do_not_fit_are_named(rows, text):
    inputs = messages().UnityRLInputProto()
    for row in rows:
        inputs.agent_actions[BEHAVIOR].value.add(**row)
    with pytest.raises(JaxrlError, match=text):
        PlayerMessages("Countdown", SPEC).read_actions(inputs, [3])


def test_wrong_actions_end_the_player_with_status_400_and_the_reason():
    with RawTrainer() as trainer, countdown(trainer.port) as player:
        trainer.greet()
        trainer.reset()
        last = trainer.act(BEHAVIOR, [REST])
        assert last.header.status == 400 and "3 agents asked for a decision, 1 actions came" in last.header.message
        trainer.answer(status=400)
        code, text = finish(player)
        assert code == 1 and "1 actions came" in text


def test_without_a_trainer_the_player_says_where_it_looked():
    port = free_port()
    with countdown(port, "--connect-seconds", "0.5") as player:
        code, text = finish(player)
    assert code == 1 and f"no trainer answered at localhost:{port} within 0.5 s" in text


def test_a_silent_trainer_is_given_up():
    with RawTrainer() as trainer, countdown(trainer.port, "--answer-seconds", "0.5") as player:
        trainer.greet()
        trainer.reset()
        code, text = finish(player)
        assert code == 1 and "did not answer for 0.5 s" in text


def test_a_decision_period_below_one_is_refused():
    part = BehaviorPart("Countdown", SPEC, MEMBERS)
    served = ServedScene("Countdown", (part,), {"bonus": 0.0}, Countdown)
    with pytest.raises(ValueError, match="decision_period = 0"):
        serve(served, PlayerOptions(port=free_port(), decision_period=0))


def test_the_player_itself_never_imports_jax():
    check = "import sys, jaxrl.envs.player.player; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=30).returncode == 0
