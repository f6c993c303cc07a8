"""`pettingzoo:MODULE`: real environments of PettingZoo, in parallel and in turns."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from jaxrl.envs.address import UnknownEnvironmentError
from jaxrl.envs.foreign.arguments import ArgumentsError
from jaxrl.envs.foreign.environment import area_seeds
from jaxrl.envs.foreign.options import AreaOptions
from jaxrl.envs.foreign.simulator import make_environment
from jaxrl.envs.pettingzoo import simulator
from jaxrl.envs.pettingzoo.area import PettingZooArea
from jaxrl.envs.pettingzoo.simulator import check, open_area
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.settings import EnvironmentSettings, RunSettings, SettingsError
from jaxrl.training.checks import check_environment_settings
from jaxrl.types import Action, EnvMessage

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pygame's and PettingZoo's own


def factory(name: str, **settings: Any):
    arguments = settings.pop("arguments", {})
    opened = partial(open_area, name, arguments, options=AreaOptions(teams=settings.pop("teams", True)))
    return partial(make_environment, opened, f"pettingzoo:{name}", **{"seed": 3, "timeout": 10.0} | settings)


def first_allowed(message: EnvMessage) -> dict[str, Action]:
    """For one branch: the first choice that is allowed."""
    chosen = {}
    for name, steps in message.steps.items():
        mask = steps.deciding.action_mask
        discrete: Any = np.argmax(mask, axis=1).astype(np.int32)[:, None]
        chosen[name] = Action(np.zeros((len(mask), 0), np.float32), discrete)
    return chosen


def test_simple_tag_goes_as_pettingzoo_steps_it_itself():
    """Adversaries and agents see different things: two behaviors, each a team; all are cut with step 25."""
    from mpe2 import simple_tag_v3

    env = factory("mpe2.simple_tag_v3")(0)
    message = env.reset()
    twin = simple_tag_v3.parallel_env()
    obs, _ = twin.reset(seed=area_seeds(3, 1)[0])
    names = {"adversary": ["adversary_0", "adversary_1", "adversary_2"], "agent": ["agent_0"]}
    for step in range(25):
        for behavior, agents in names.items():
            deciding = message.steps[behavior].deciding
            np.testing.assert_array_equal(deciding.obs[0], [obs[agent] for agent in agents])
            assert deciding.group_id.tolist() == [1] * len(agents)
        choice = {agent: (step + i) % 5 for i, agent in enumerate(twin.agents)}
        sent = {
            behavior: Action(
                np.zeros((len(agents), 0), np.float32), np.array([[choice[agent]] for agent in agents], np.int32)
            )
            for behavior, agents in names.items()
        }
        message = env.step(sent)
        obs, rewards, *_ = twin.step(choice)
        for behavior, agents in names.items():
            steps = message.steps[behavior]
            mine = steps.ended if step == 24 else steps.deciding
            np.testing.assert_allclose(mine.reward, [rewards[agent] for agent in agents], rtol=1e-6)
    for behavior, agents in names.items():
        ended = message.steps[behavior].ended
        assert ended.truncated.tolist() == [True] * len(agents)
        np.testing.assert_array_equal(ended.obs[0], [obs[agent] for agent in agents])
    env.close()


def test_agents_in_turns_are_asked_one_at_a_time_with_their_masks_and_both_learn_how_it_ends():
    """Both take the first field that is free: 0, 2, 4 and 6 are player_1's, and 2, 4, 6 a line."""
    env = factory("pettingzoo.classic.tictactoe_v3")(0)
    message = env.reset()
    assert message.new_specs["player"].action.discrete_branches == (9,)
    for turn in range(7):
        deciding = message.steps["player"].deciding
        assert deciding.agent_id.tolist() == [turn % 2]
        assert deciding.action_mask.tolist() == [[field >= turn for field in range(9)]]
        message = env.step(first_allowed(message))
    ended = message.steps["player"].ended
    assert dict(zip(ended.agent_id.tolist(), ended.reward.tolist(), strict=True)) == {0: 1.0, 1: -1.0}
    assert not ended.truncated.any()
    assert message.steps["player"].deciding.agent_id.tolist() == [2]
    env.close()


def test_a_step_that_returns_nothing_is_said_to():
    from mpe2 import simple_tag_v3

    env = simple_tag_v3.parallel_env()
    area = PettingZooArea(env)
    area.reset(3, None)
    env.step = lambda actions: None
    with pytest.raises(ValueError, match=r"returned a NoneType, expected \(observations, .*as PettingZoo 1.24 has it"):
        area.step({})


def test_a_worker_process_of_it():
    name = "mpe2.simple_spread_v3"
    with EnvPool(factory(name, areas=2, team_reward=True, arguments={"max_cycles": 2}), 1) as pool:
        pool.reset()
        (message,) = pool.recv(1)
        assert message.steps["agent"].deciding.group_id.tolist() == [1, 1, 1, 2, 2, 2]
        for _ in range(2):
            pool.send(0, first_allowed(message))
            (message,) = pool.recv(1)
    ended = message.steps["agent"].ended
    assert ended.agent_id.tolist() == [0, 1, 2, 3, 4, 5] and ended.truncated.all()
    assert ended.reward.tolist() == [0.0] * 6
    assert len(set(ended.group_reward[:3].tolist())) == 1 and ended.group_reward[0] < 0


@pytest.mark.parametrize(
    ("agent", "behavior"),
    [
        ("agent_0", "agent"),
        ("lead-enemy-12", "lead-enemy"),
        ("walker3", "walker"),
        ("eve", "eve"),
        (4, "agent"),
    ],
)
def test_behaviors_are_called_as_agents_are_without_their_number(agent, behavior):
    from tests.envs.foreign.games import Relay

    assert PettingZooArea(Relay()).behavior(agent) == behavior


def test_a_maker_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_relay.py").write_text("from tests.envs.foreign.games import Relay\n")
    check("own_relay:Relay")
    assert set(factory("own_relay:Relay")(0).reset().steps) == {"runner", "guard"}
    with pytest.raises(UnknownEnvironmentError, match=r"module own_relay has no parallel_env or env; .* it has Relay"):
        check("own_relay")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_module_of_this_name", "module no_module_of_this_name cannot be imported: ModuleNotFoundError"),
        ("mpe2.simple_spread_v3:nothing", "has no nothing; expected pettingzoo:MODULE"),
        ("", r"module \(none\) has no parallel_env or env"),
    ],
)
def test_unknown_environments_are_refused_before_anything_starts(name, words):
    with pytest.raises(SettingsError, match=f"env_settings.env_path: pettingzoo:{name}: .*{words}"):
        check_environment_settings(EnvironmentSettings(env_path=f"pettingzoo:{name}"))


@pytest.mark.parametrize("name", ["classic/rps-v2", "classic/tictactoe-v3", "classic/rps"])
def test_environments_of_pettingzoos_registry(name):
    pytest.importorskip("pettingzoo.env_registry")
    check(name)
    assert set(factory(name)(0).reset().steps) == {"player"}
    with pytest.raises(UnknownEnvironmentError, match=r"no such environment, did you mean pettingzoo:classic/"):
        check(name.replace("classic", "clasic"))


def test_switches_among_the_arguments_are_jaxrls():
    name = "mpe2.simple_spread_v3"
    settings = EnvironmentSettings(env_path=f"pettingzoo:{name}", env_args=("teams=false", "N=2"), seed=0)
    env = simulator.make_factory(name, RunSettings(env_settings=settings), "")(0)
    assert env.reset().steps["agent"].deciding.group_id.tolist() == [0, 0]
    wrong = settings.model_copy(update={"env_args": ("team_reward=maybe",)})
    with pytest.raises(ArgumentsError, match="team_reward: got 'maybe', expected true or false"):
        simulator.make_factory(name, RunSettings(env_settings=wrong), "")
