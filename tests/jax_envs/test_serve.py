"""Dungeon Escape as a player process: the executable, what a trainer sees, and that a seed repeats it to the byte."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from jaxrl.cache import cache_folder
from jaxrl.envs.address import UnknownEnvironmentError
from jaxrl.envs.protobuf import messages, register
from jaxrl.envs.unity.simulator import make_unity
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.served.launcher import make_player, resolve_player
from jaxrl.jax_envs.served.serve import make_served
from jaxrl.types import Action, DecisionSteps, JaxrlError

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))

from raw_trainer import RawTrainer, free_port

register()

from mlagents_envs.base_env import ActionTuple  # noqa: E402
from mlagents_envs.environment import UnityEnvironment  # noqa: E402
from mlagents_envs.side_channel.stats_side_channel import StatsSideChannel  # noqa: E402

BEHAVIOR = "DungeonEscape?team=0"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """One cache for all players here, so that only the first one compiles."""
    patch = pytest.MonkeyPatch()
    patch.setenv("JAXRL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    yield cache_folder()
    patch.undo()


def test_the_executable_stands_in_the_cache_and_names_this_python(cache):
    path = resolve_player("dungeon_escape")
    assert path.name == "DungeonEscape.x86_64" and path.is_relative_to(cache) and os.access(path, os.X_OK)
    assert sys.executable in path.read_text()
    assert resolve_player("dungeon_escape") == path and list(path.parent.iterdir()) == [path]


def test_a_wrong_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownEnvironmentError, match=r"player:dungon_escape: .*did you mean dungeon_escape"):
        resolve_player("dungon_escape")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JaxrlError, match=r"cannot write the player .*file/DungeonEscape"):
        make_player("dungeon_escape", tmp_path / "file")


def test_stepping_before_the_first_reset_is_refused():
    env = ENVIRONMENTS["dungeon_escape"]()
    simulation = make_served(env).open(1, 0)
    with pytest.raises(JaxrlError, match="before the first reset"):
        simulation.step((Action(np.zeros((1, env.members, 0)), np.zeros((1, env.members, 1))),), {})


def test_parameters_set_in_the_middle_of_a_run_hold_for_the_next_episodes(tmp_path):
    """Teams of three play on; when an area's episode is over, the next team has two. A reset begins teams of one."""
    arguments = {"file_name": str(make_player("dungeon_escape", tmp_path)), "base_port": free_port(), "num_areas": 2}
    factory = partial(make_unity, arguments | {"log_folder": str(tmp_path)}, 1, True, False)
    random = np.random.default_rng(0)

    def teams(deciding: DecisionSteps) -> list[int]:
        return [int((deciding.group_id == group).sum()) for group in (1, 2)]

    with EnvPool(factory, 1, inline=True) as pool:
        pool.reset({"team_size": 3.0})
        (result,) = pool.recv()
        assert teams(result.steps[BEHAVIOR].deciding) == [3, 3]
        pool.set_parameters({"team_size": 2.0})
        begun: dict[int, int] = {}  # group → size of its second team
        for _ in range(2000):
            deciding = result.steps[BEHAVIOR].deciding
            choice = [random.choice(np.flatnonzero(mask)) for mask in deciding.action_mask]
            action = Action(np.zeros((len(choice), 0), np.float32), np.array(choice, np.int32).reshape(-1, 1))
            before = {group: set(deciding.agent_id[deciding.group_id == group].tolist()) for group in (1, 2)}
            pool.send(0, {BEHAVIOR: action})
            (result,) = pool.recv()
            ended, after = set(result.steps[BEHAVIOR].ended.agent_id.tolist()), result.steps[BEHAVIOR].deciding
            for group in (1, 2):
                if before[group] <= ended:
                    begun.setdefault(group, int((after.group_id == group).sum()))
            if len(begun) == 2:
                break
        assert begun == {1: 2, 2: 2}
        pool.reset({"team_size": 1.0})
        assert teams(pool.recv()[0].steps[BEHAVIOR].deciding) == [1, 1]


def test_random_play_through_mlagents(tmp_path):
    stats, random = StatsSideChannel(), np.random.default_rng(0)
    log = tmp_path / "Player-0.log"
    environment = UnityEnvironment(
        str(make_player("dungeon_escape", tmp_path / "with space")), base_port=free_port(), num_areas=4, seed=1,
        side_channels=[stats], timeout_wait=60, no_graphics=True, log_folder=str(tmp_path),
        additional_args=["--some-game-option", "7"],
    )  # fmt: skip
    try:
        environment.reset()
        (sensor,) = environment.behavior_specs[BEHAVIOR].observation_specs
        assert sensor.shape == (34,)
        living: dict[int, int] = {}  # agent -> group
        gone: set[int] = set()  # died before their team
        again: list[int] = []  # ended with their team, and are there in the next episode
        rewards = []
        for _ in range(250):
            deciding, ended = environment.get_steps(BEHAVIOR)
            assert set(ended.agent_id) <= set(living) and not ended.interrupted.any()
            rewards += [float(reward) for reward in ended.group_reward]
            play_on = {group for agent, group in living.items() if agent not in ended.agent_id}
            gone |= {agent for agent in ended.agent_id.tolist() if living[agent] in play_on}
            again += set(deciding.agent_id.tolist()) & set(ended.agent_id.tolist())
            assert not gone & set(deciding.agent_id.tolist())
            living = dict(zip(deciding.agent_id.tolist(), deciding.group_id, strict=True))
            assert set(living.values()) == {1, 2, 3, 4}
            wish = random.random((len(deciding), 7)) - deciding.action_mask[0]
            environment.set_actions(BEHAVIOR, ActionTuple(discrete=wish.argmax(axis=1)[:, None].astype(np.int32)))
            environment.step()
    finally:
        environment.close()
    assert len(gone) > 10 and len(again) > len(set(again)) > 10
    assert {round(reward, 3) for reward in rewards} <= {0.0, 0.2, 1.0}
    figures = stats.get_and_reset_stats()
    assert set(figures) == {"Environment/Dragon Slain", "Environment/Escaped", "Environment/Held Out"}
    assert len(figures["Environment/Escaped"]) == len(figures["Environment/Dragon Slain"]) >= 8
    assert "player stops" in log.read_text()


def test_two_teams_play_through_mlagents(tmp_path):
    random, teams = np.random.default_rng(0), ("SoccerTwos?team=0", "SoccerTwos?team=1")
    environment = UnityEnvironment(
        str(make_player("soccer_twos", tmp_path)), base_port=free_port(), num_areas=2, seed=1, timeout_wait=60,
        no_graphics=True, log_folder=str(tmp_path),
    )  # fmt: skip
    try:
        environment.reset()
        assert tuple(environment.behavior_specs) == teams
        ended_ids, prizes = [], []
        while len(ended_ids) < 8:  # an episode of either area, at least
            for team, name in enumerate(teams):
                deciding, ended = environment.get_steps(name)
                assert list(deciding.group_id) == [1 + team, 1 + team, 3 + team, 3 + team]
                assert list(deciding.agent_id) == [2 * team, 2 * team + 1, 4 + 2 * team, 5 + 2 * team]
                ended_ids += ended.agent_id.tolist()
                prizes += zip(ended.interrupted.tolist(), ended.group_reward.tolist(), strict=True)
                actions = random.integers(0, 3, (4, 3)).astype(np.int32)
                environment.set_actions(name, ActionTuple(discrete=actions))
            environment.step()
    finally:
        environment.close()
    assert set(ended_ids) <= set(range(8))
    assert all(prize == 0 if cut else prize == -1 or 0 <= prize < 1 for cut, prize in prizes)


def test_one_seed_sends_the_same_bytes_and_another_does_not():
    executable = str(resolve_player("dungeon_escape"))
    trainers = [RawTrainer() for _ in range(3)]
    players = [
        subprocess.Popen([executable, "-nographics", "-batchmode", "--mlagents-port", str(trainer.port)])
        for trainer in trainers
    ]
    try:
        for trainer, seed in zip(trainers, (11, 11, 12), strict=True):
            random = np.random.default_rng(3)
            trainer.greet(seed=seed, areas=2)
            output = trainer.reset()
            for _ in range(120):
                infos = output.unity_output.rl_output.agentInfos[BEHAVIOR].value
                asking = sum(not info.done for info in infos)
                output = trainer.act(
                    BEHAVIOR, [{"discrete_actions": [a]} for a in random.integers(0, 7, asking).tolist()]
                )
            trainer.answer(command=messages().QUIT)
        assert [player.wait(10) for player in players] == [0, 0, 0]
    finally:
        for player, trainer in zip(players, trainers, strict=True):
            player.kill()
            player.wait()
            trainer.close()
    first, same, other = (trainer.sent for trainer in trainers)
    assert first == same
    assert first[2:] != other[2:]  # the handshake says nothing of the seed
