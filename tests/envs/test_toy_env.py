"""The toy environment's own promises, on which other tests build."""

from __future__ import annotations

import numpy as np
import pytest
from toy_env import ToyEnv, ToySettings, no_actions

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.types import NO_GROUP, BehaviorMessage

NAME = "Toy?team=0"


def play(settings: ToySettings, count: int, worker: int = 0) -> list[BehaviorMessage]:
    environment = ToyEnv(worker, settings)
    result = environment.reset()
    history = [result.steps[NAME]]
    for _ in range(count):
        result = environment.step(no_actions(result, settings))
        history.append(result.steps[NAME])
    return history


def test_the_same_seed_gives_the_same_episodes_and_another_worker_others():
    settings = ToySettings(deaths=0.2, skips=0.2)
    first, again, other = (play(settings, 20, worker) for worker in (0, 0, 1))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.deciding.obs[0], two.deciding.obs[0])
    assert not np.array_equal(first[0].deciding.obs[0], other[0].deciding.obs[0])


def test_an_episode_ends_for_the_whole_team_and_the_next_begins_in_the_same_message():
    history = play(ToySettings(areas=1, episode_length=3, interrupted_every=2, group_reward=5.0), 6)
    np.testing.assert_array_equal(history[0].deciding.agent_id, [2, 3])  # 1 is the group
    assert [len(steps.ended.agent_id) for steps in history] == [0, 0, 0, 2, 0, 0, 2]
    np.testing.assert_array_equal(history[3].ended.agent_id, [2, 3])
    np.testing.assert_array_equal(history[3].deciding.agent_id, [5, 6])
    np.testing.assert_array_equal(history[3].ended.group_reward, [5.0, 5.0])
    assert not history[3].ended.truncated.any()
    assert history[6].ended.truncated.all()


def test_reward_is_for_the_target_less_the_distance_from_the_clock():
    settings = ToySettings(areas=1, agents_per_team=1, episode_length=4)
    history = play(settings, 2)
    target = history[0].deciding.obs[0][0, 1]
    # Zero actions: 1 if the target is 0, less |0 - clock / 4| at the clock of the decision.
    np.testing.assert_allclose(history[1].deciding.reward, (target == 0) - 0 / 4)
    np.testing.assert_allclose(history[2].deciding.reward, (target == 0) - 1 / 4)


def test_a_member_that_dies_does_not_ask_again_while_its_team_goes_on():
    history = play(ToySettings(areas=1, agents_per_team=3, episode_length=50, deaths=0.1), 10)
    dead: set[int] = set()
    for steps in history:
        dead |= set(steps.ended.agent_id.tolist())
        assert not dead & set(steps.deciding.agent_id.tolist())
    assert dead


def test_rewards_wait_for_an_agent_that_skips_its_decision():
    settings = ToySettings(
        areas=1, agents_per_team=4, episode_length=20, skips=0.5, living_reward=1.0, continuous=0, branches=()
    )
    total = dict.fromkeys((2, 3, 4, 5), 0.0)
    for steps in play(settings, 20)[:21]:
        for record in (steps.ended, steps.deciding):
            for agent, reward in zip(record.agent_id.tolist(), record.reward.tolist(), strict=True):
                total[agent] = total.get(agent, 0.0) + reward
    assert [total[agent] for agent in (2, 3, 4, 5)] == [20.0] * 4


def test_lone_agents_have_no_group_and_wrong_actions_are_refused():
    environment = ToyEnv(0, ToySettings(teams=False))
    result = environment.reset()
    assert (result.steps[NAME].deciding.group_id == NO_GROUP).all()
    wrong = {NAME: no_actions(result)[NAME]._replace(discrete=np.zeros((3, 1), np.int32))}
    with pytest.raises(EnvironmentFailure, match=r"got shapes \(4, 1\) and \(3, 1\), expected \(4, 1\) and \(4, 1\)"):
        environment.step(wrong)
