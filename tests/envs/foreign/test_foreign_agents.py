"""Copies of an environment whose agents come, are silent, vanish and end: `Relay`, of which every number is known."""

from __future__ import annotations

import numpy as np
import pytest
from games import Relay, choose, relay_env

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.types import NO_GROUP


def play(env, steps):
    """Messages of the reset and of so many steps."""
    messages = [env.reset()]
    for _ in range(steps):
        messages.append(env.step(choose(messages[-1])))
    return messages


def test_agents_of_one_name_and_equal_spaces_are_one_behavior_and_its_agents_in_an_area_one_team():
    env = relay_env(Relay(), Relay())
    (message,) = play(env, 0)
    assert {name: spec.observations[0].shape for name, spec in message.new_specs.items()} == {
        "runner": (2,),
        "guard": (3,),
    }
    runners = message.steps["runner"].deciding
    assert runners.agent_id.tolist() == [0, 1, 2, 4, 5, 6]
    assert runners.group_id.tolist() == [1, 1, 1, 2, 2, 2]
    assert message.steps["guard"].deciding.group_id.tolist() == [1, 2]
    alone = relay_env(Relay(), teams=False).reset().steps["runner"].deciding
    assert alone.group_id.tolist() == [NO_GROUP] * 3


def test_agents_of_one_name_and_other_spaces_are_another_behavior():
    class Odd(Relay):
        def action_space(self, agent):
            from gymnasium import spaces

            return spaces.Discrete(3 if agent == "runner_1" else 2)

    message = relay_env(Odd()).reset()
    assert list(message.new_specs) == ["runner", "runner-2", "guard"]
    assert message.steps["runner-2"].deciding.agent_id.tolist() == [1]


def test_r21_r28_r30_one_that_ended_is_asked_no_more_while_its_team_goes_on_though_it_is_shown():
    """runner_0 ends with step 2; the environment shows it on, which means nothing."""
    messages = play(relay_env(Relay()), 4)
    ended = messages[2].steps["runner"].ended
    assert ended.agent_id.tolist() == [0] and ended.truncated.tolist() == [False]
    np.testing.assert_array_equal(ended.obs[0], [[21, 21]])
    assert ended.reward.tolist() == [1.0]
    for message in messages[3:]:
        assert 0 not in message.steps["runner"].deciding.agent_id
        assert 0 not in message.steps["runner"].ended.agent_id


def test_r29_u2_m8_one_without_an_observation_is_not_asked_and_is_paid_later():
    """runner_2 is silent in step 1 and earns 3 with each of the steps 1 and 2."""
    game = Relay()
    messages = play(relay_env(game), 2)
    assert messages[1].steps["runner"].deciding.agent_id.tolist() == [0, 1]
    assert set(game.given[1]) == {"runner_0", "runner_1", "guard_0"}
    deciding = messages[2].steps["runner"].deciding
    assert deciding.agent_id.tolist() == [1, 2]
    assert deciding.reward.tolist() == [2.0, 6.0]


def test_r26_one_that_joins_late_begins_with_an_id_of_its_own_in_its_team():
    deciding = play(relay_env(Relay()), 3)[3].steps["runner"].deciding
    assert deciding.agent_id.tolist() == [2, 4] and deciding.group_id.tolist() == [1, 1]
    np.testing.assert_array_equal(deciding.obs[0], [[33, 33], [34, 34]])


def test_one_that_vanishes_while_others_go_on_is_truncated_with_its_last_observation():
    """runner_1 is seen last with step 2, as 10 * 2 + 2."""
    ended = play(relay_env(Relay()), 3)[3].steps["runner"].ended
    assert ended.agent_id.tolist() == [1] and ended.truncated.tolist() == [True]
    np.testing.assert_array_equal(ended.obs[0], [[22, 22]])
    assert ended.reward.tolist() == [2.0]


def test_r25_m5_those_of_whom_nothing_is_said_when_all_is_over_end_with_their_last_observation_and_reward():
    """Step 5: nobody is left. runners 2 and 3 were seen last with step 4, and are paid 3 and 4 with step 5."""
    message = play(relay_env(Relay()), 5)[5]
    runners, guard = message.steps["runner"].ended, message.steps["guard"].ended
    assert runners.agent_id.tolist() == [2, 4] and runners.truncated.tolist() == [False, False]
    np.testing.assert_array_equal(runners.obs[0], [[43, 43], [44, 44]])
    assert runners.reward.tolist() == [3.0, 4.0]
    assert guard.truncated.tolist() == [True] and guard.reward.tolist() == [10.0]
    # The next episode begins with the same message, under the same teams and new ids.
    assert message.steps["runner"].deciding.agent_id.tolist() == [5, 6, 7]
    assert message.steps["runner"].deciding.group_id.tolist() == [1, 1, 1]


def test_r22_one_that_is_first_seen_ended_is_ignored():
    class Stillborn(Relay):
        def step(self, actions):
            obs, rewards, terminated, truncated, infos = super().step(actions)
            return obs | {"runner_9": obs["runner_0"]}, rewards, terminated | {"runner_9": True}, truncated, infos

    message = play(relay_env(Stillborn()), 1)[1]
    assert message.steps["runner"].ended.agent_id.tolist() == []
    assert message.steps["runner"].deciding.agent_id.tolist() == [0, 1]


def test_r23_r24_missing_rewards_and_infos_are_nothing():
    class Terse(Relay):
        def step(self, actions):
            obs, _, terminated, truncated, _ = super().step(actions)
            return obs, {}, terminated, truncated, {}

    steps = play(relay_env(Terse()), 1)[1].steps["runner"]
    assert steps.deciding.reward.tolist() == [0.0, 0.0] and steps.infos == {}


def test_r16_infos_of_one_agent_and_of_all():
    message = play(relay_env(Relay(), Relay()), 1)[1]
    assert message.steps["guard"].infos == {3: {"training_enabled": False}, 7: {"training_enabled": False}}
    assert message.infos == {"0": {"clock": 1}, "1": {"clock": 1}}


def test_rewards_of_a_team_as_their_mean():
    """Step 2 pays the runners 1, 2 and 3, of which each gets 2; runner_2 has the 2 of step 1 yet to come."""
    message = play(relay_env(Relay(), team_reward=True), 2)[2]
    runner, guard = message.steps["runner"], message.steps["guard"]
    assert runner.ended.group_reward.tolist() == [2.0] and runner.ended.reward.tolist() == [0.0]
    assert runner.deciding.group_reward.tolist() == [2.0, 4.0]
    assert guard.deciding.group_reward.tolist() == [10.0]
    runner = play(relay_env(Relay(), team_reward=True), 3)[3].steps["runner"]  # pays 2 and 3; runner_3 has just come
    assert runner.ended.group_reward.tolist() == [2.5] and runner.deciding.group_reward.tolist() == [2.5, 0.0]


def test_r15_an_environment_in_which_nobody_asks_is_stepped_all_the_same():
    class Quiet(Relay):
        def step(self, actions):
            obs, *others = super().step(actions)
            return ({} if self.clock in (1, 2) else obs), *others

    game = Quiet()
    env = relay_env(game)
    messages = play(env, 1)
    assert game.clock == 2  # runner_0's end is worth a message
    assert messages[1].steps["runner"].ended.agent_id.tolist() == [0]
    env.step({})
    assert game.given[1] == game.given[2] == {}


def test_nobody_asks_for_longer_than_the_time_out():
    class Silent(Relay):
        def step(self, actions):
            return {}, {}, {}, {}, {}

    env = relay_env(Silent(), timeout=0.05)
    with pytest.raises(EnvironmentFailure, match=r"for 0.05 seconds no agent was given an observation"):
        play(env, 1)


def test_an_environment_without_agents():
    class Empty(Relay):
        def reset(self, seed=None, options=None):
            self.agents = []
            return {}, {}

    with pytest.raises(EnvironmentFailure, match="reset gave no agent"):
        relay_env(Empty()).reset()


def test_what_is_no_environment_of_pettingzoo():
    with pytest.raises(EnvironmentFailure, match="got a object, expected a ParallelEnv or an AECEnv"):
        relay_env(object())
