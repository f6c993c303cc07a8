"""Copies of a single-agent environment as a `HostEnv`: endings, seeds, infos, masks, actions taken, and faults."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
from games import Stairs, choose, stairs_env
from gymnasium import spaces

from jaxrl.envs.action_checks import ActionError
from jaxrl.envs.foreign.environment import ForeignEnvironment, area_seeds
from jaxrl.envs.foreign.observations import SpaceError
from jaxrl.envs.gymnasium.area import GymnasiumArea
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.envs.workers.restarts import Loss, RestartLimits
from jaxrl.types import NO_GROUP, Action, Aggregation, SamplerSpec

NAME = "Stairs-v0"


def test_r14_m2_an_end_and_the_next_episode_come_in_one_message_and_a_cut_is_no_end():
    env = stairs_env(Stairs(), Stairs())
    first = env.reset()
    assert first.worker == 3 and first.new_specs[NAME].action.discrete_branches == (3,)
    assert first.steps[NAME].deciding.agent_id.tolist() == [0, 1]
    message = env.step(choose(first)).steps[NAME]
    assert len(message.ended.agent_id) == 0
    assert message.deciding.reward.tolist() == [1.0, 1.0] and message.deciding.agent_id.tolist() == [0, 1]
    message = (last := env.step(choose(first))).steps[NAME]
    assert message.ended.agent_id.tolist() == [0, 1] and message.ended.truncated.tolist() == [False, False]
    assert message.ended.reward.tolist() == [2.0, 2.0]
    np.testing.assert_array_equal(message.ended.obs[0], [[0, 2], [0, 2]])  # its own last observation
    np.testing.assert_array_equal(message.deciding.obs[0], [[1, 0], [1, 0]])  # and that of the next episode
    assert message.deciding.agent_id.tolist() == [2, 3] and message.deciding.reward.tolist() == [0.0, 0.0]
    assert message.deciding.group_id.tolist() == [NO_GROUP, NO_GROUP]
    for _ in range(3):
        last = env.step(choose(last))
    message = last.steps[NAME]
    assert message.ended.agent_id.tolist() == [2, 3] and message.ended.truncated.tolist() == [True, True]
    np.testing.assert_array_equal(message.ended.obs[0], [[1, 3], [1, 3]])


def test_choices_reach_the_environment_with_the_start_of_their_space():
    game = Stairs()
    env = stairs_env(game)
    env.step(choose(env.reset(), 2))
    assert game.given == [7]  # start 5


def test_actions_that_do_not_fit_are_refused_and_nothing_is_done():
    game = Stairs()
    env = stairs_env(game)
    env.reset()
    wrong = Action(np.zeros((1, 0), np.float32), np.full((1, 1), 3, np.int32))
    with pytest.raises(ActionError, match="outside"):
        env.step({NAME: wrong})
    with pytest.raises(ActionError, match="got none"):
        env.step({})
    assert game.given == []


def test_seeds_belong_to_worker_and_area_and_are_given_once():
    """The first reset seeds, a later one goes on, one with a seed begins again."""
    games = Stairs(), Stairs()
    env = stairs_env(*games, seed=7)
    env.reset()
    env.reset()
    env.reset(seed=7)
    assert [game.seeds for game in games] == [[seed, None, seed] for seed in area_seeds(7, 2)]
    assert len({*area_seeds(7, 3), *area_seeds(8, 3)}) == 6  # neighbouring workers share none
    assert all(0 <= seed < 2**31 for seed in area_seeds(7, 3))


def test_parameters_are_the_options_of_the_episodes_to_come():
    game = Stairs()
    env = stairs_env(game)
    message = env.reset({"gravity": 2.0})
    env.set_parameters({"wind": 1.0})
    for _ in range(2):
        message = env.step(choose(message))
    assert game.options == [{"gravity": 2.0}, {"gravity": 2.0, "wind": 1.0}]


def test_of_a_sampler_each_episode_of_each_copy_draws_one_number():
    """In their order, from its seed on; a seed of the reset makes another sequence, which repeats itself with it."""
    sampler = SamplerSpec("uniform", (2.0, 4.0), 5)
    drawn = np.random.default_rng(5).uniform(2.0, 4.0, 4).astype(np.float32)
    seeded = np.random.default_rng([5, 9]).uniform(2.0, 4.0, 4).astype(np.float32)
    for seed, expected in ((None, drawn), (None, drawn), (9, seeded), (9, seeded)):
        games = Stairs(), Stairs()
        env = stairs_env(*games)
        message = env.reset({"gravity": sampler, "wind": 0.1}, seed)
        for _ in range(2):  # their first episodes have two steps
            message = env.step(choose(message))
        options = [game.options[episode] or {} for episode in range(2) for game in games]
        assert [of_reset["gravity"] for of_reset in options] == expected.tolist()
        assert {of_reset["wind"] for of_reset in options} == {0.1}


def test_r24_infos_of_each_agent_are_kept_as_far_as_they_are_plain():
    env = stairs_env(Stairs())
    message = env.reset()
    assert message.steps[NAME].infos == {0: {"episode_number": 0}}
    message = env.step(choose(message))
    assert message.steps[NAME].infos == {0: {"clock": 1}}  # the entry `self` is no plain value
    message = env.step(choose(message))
    assert message.steps[NAME].infos == {0: {"clock": 2}, 1: {"episode_number": 1}}


@pytest.mark.parametrize("mask", [np.array([1, 0, 1], np.int8), (np.array([True, False, True]),)])
def test_masks_from_infos(mask):
    class Masked(Stairs):
        def reset(self, **arguments):
            return super().reset(**arguments)[0], {"action_mask": mask}

    assert stairs_env(Masked()).reset().steps[NAME].deciding.action_mask.tolist() == [[True, False, True]]


def test_r44_m21_an_action_that_the_environment_took_itself_is_told_with_its_outcome():
    class Stubborn(Stairs):
        def step(self, action):
            *answer, info = super().step(action)
            return (*answer, info | {"action_taken": 6})

    env = stairs_env(Stubborn())
    message = env.step(choose(env.reset(), 2))
    taken = message.steps[NAME].taken
    assert taken is not None and taken.agent_id.tolist() == [0]
    assert taken.action.discrete.tolist() == [[1]] and taken.action.continuous.shape == (1, 0)  # 6 less the start
    assert message.steps[NAME].infos[0] == {"clock": 1}


def test_x12_a_monitor_reports_the_whole_game_where_an_episode_is_one_life():
    """The monitor speaks only with the second life: one game of return 3 + 6, not two."""

    class Lives(Stairs):
        def step(self, action):
            *answer, info = super().step(action)
            game = {"episode": {"r": np.array([9.0]), "l": np.array([5]), "t": 0.1}}
            return (*answer, info | game if self.episode == 1 and self.clock == 3 else info)

    env = stairs_env(Lives())
    message = env.reset()
    stats = []
    for _ in range(5):
        message = env.step(choose(message))
        stats += [(stat.name, stat.value, stat.aggregation) for stat in message.stats]
    assert stats == [("Game/Return", 9.0, Aggregation.AVERAGE), ("Game/Length", 5.0, Aggregation.AVERAGE)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("raises", "worker 3 .*area 1: step raised ValueError: out of stairs"),
        ("four", "area 1: step raised ValueError: returned 4 values, expected .*truncated"),
        ("nan", "area 1, agent 'agent', sensor 'observation': nan is not a finite number"),
        ("shape", r"area 1, agent 'agent', sensor 'observation': got shape \(3,\), expected \(2,\)"),
        ("reward", "area 1, agent 'agent', reward: inf is not a finite number"),
        ("rewards", "area 1, agent 'agent', reward: got array.* expected one number"),
        ("mask", "area 1, agent 'agent', action_mask: got 4 entries, expected 3"),
    ],
)
def test_r64_a_fault_names_worker_area_agent_and_what_and_costs_its_own_copy_alone(wrong, words):
    """Agent 1 is heard of no more; agent 0 ends as it would, and both copies begin their next episode."""
    env = stairs_env(Stairs(), broken := Stairs(wrong))
    message = env.step(choose(env.reset()))
    message = env.step(choose(message))
    (fault,) = message.faults
    assert re.search(words, fault.why) and fault.bad_data == (wrong in ("nan", "shape", "reward")) and broken.closed
    (ended, deciding), lost = message.steps[NAME][:2], set(fault.agents[NAME])
    assert 1 in lost and ended.agent_id.tolist() == [0] and ended.reward.tolist() == [2.0]
    assert len(deciding.agent_id) == 2 and not lost & {0, *deciding.agent_id.tolist()}
    assert broken.seeds[0] != broken.seeds[-1] is not None, "repeats, and not what it did before"
    assert env.step(choose(message)).faults == ()


def test_r64_a_copy_that_is_made_anew_has_a_seed_of_its_own_that_follows_from_that_of_the_reset():
    def seeds(seed: int, reset: int | None) -> list[int | None]:
        games = Stairs("raises"), Stairs("raises")
        env = stairs_env(*games, seed=seed)
        message = env.step(choose(env.reset(seed=reset)))
        env.step(choose(message))
        return [game.seeds[-1] for game in games]

    assert len({*seeds(7, None), *area_seeds(7, 3)}) == 5
    assert seeds(7, None) == seeds(3, 7), "not only that with which it was made"


def test_r64_copies_that_failed_count_as_restarts_of_their_worker():
    def make(wrong: str, worker: int) -> ForeignEnvironment:
        return stairs_env(Stairs(), Stairs(wrong), Stairs(wrong), worker=worker)

    def played(wrong: str, lifetime: int, **options) -> list[Loss]:
        with EnvPool(
            partial(make, wrong), 1, inline=True, limits=RestartLimits(lifetime=lifetime, rate=-1), **options
        ) as pool:
            pool.reset()
            for _ in range(3):
                (result,) = pool.recv()
                pool.send(0, choose(result))
            pool.recv()
            return pool.losses()

    losses = played("raises", 2)
    assert [(loss.worker, loss.incarnation, dict(loss.agents or {})) for loss in losses] == [
        (0, 0, {NAME: [1]}),
        (0, 0, {NAME: [2]}),
    ]
    with pytest.raises(EnvironmentFailure, match=r"not started again: it has had 1, .*area 2: step raised ValueError"):
        played("raises", 1)
    with pytest.raises(EnvironmentFailure, match=r"area 1, agent 'agent', .*nan is not a finite.*on_bad_data: restart"):
        played("nan", 2)
    assert len(played("nan", 2, restart_bad_data=True)) == 2


def test_r65_an_agent_twice_and_a_name_that_means_all_are_refused():
    class Named(GymnasiumArea):
        names: tuple[str, ...] = ()

        def reset(self, seed, options):
            outcome = super().reset(seed, options)
            return outcome._replace(living=self.names, asked=self.names, obs={name: [0.0, 0.0] for name in self.names})

    for names, words in (("agent", "agent"), "agent 'agent': is asked twice"), (("__all__",), "'__all__' is no name"):
        area = Named(Stairs(), "Stairs-v0")
        area.names = names
        env = ForeignEnvironment(worker=0, name="x", make_area=lambda _, area=area: area, areas=1, seed=1)
        with pytest.raises(EnvironmentFailure, match=words):
            env.reset()


def test_a_copy_that_cannot_be_made_closes_the_others():
    game = Stairs()
    with pytest.raises(EnvironmentFailure, match="area 1: making it raised IndexError"):
        ForeignEnvironment(
            worker=0, name="x", make_area=lambda area: GymnasiumArea((game,)[area], "x"), areas=2, seed=0
        )
    assert game.closed


def test_a_space_that_means_nothing_to_a_policy_is_named():
    class Texts(Stairs):
        observation_space = spaces.Dict({"seen": spaces.Box(0, 1, (2,)), "heard": spaces.Text(3)})

    with pytest.raises(SpaceError, match=r"worker 3 .*observation space 'heard': Text.* is no Box, Disc"):
        stairs_env(Texts()).reset()


def test_closing_goes_on_where_one_copy_fails_to():
    class Stuck(Stairs):
        def close(self):
            raise RuntimeError("no")

    games = Stairs(), Stuck(), Stairs()
    env = stairs_env(*games)
    with pytest.raises(EnvironmentFailure, match="area 1: closing it raised RuntimeError: no"):
        env.close()
    assert games[0].closed and games[2].closed
    env.close()
