"""A player as an environment of Gymnasium and of PettingZoo: their own checks, and every number of a known game."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

import jaxrl
from jaxrl.client.gymnasium_view import ViewError
from jaxrl.client.spaces import BehaviorSpaces
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec
from tests import trainer
from tests.envs.unity_build import free_port

pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def countdown(tmp_path):
    """A team of three (see `countdown_player`): member 0 terminates with step 2, the others are cut with step 4."""
    with jaxrl.unity_environment(str(trainer.player(tmp_path)), base_port=free_port()) as env:
        yield env


def test_gymnasium_finds_nothing_wrong():
    """But that vectors of Unity have no bounds. The player goes on after the check."""
    with jaxrl.unity_environment("player:basic", base_port=free_port()) as env:
        view = jaxrl.gymnasium_view(env)
        assert view.observation_space == spaces.Box(-np.inf, np.inf, (20,), np.float32)
        assert view.action_space == spaces.Discrete(3)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            check_env(view)
        assert view.reset()[0].argmax() == 10
        assert [str(warning.message) for warning in said if "infinity" not in str(warning.message)] == []


def test_an_episode_of_basic_by_the_view():
    """The agent begins at 10 of 20; 7 steps to the right lead to 17, which pays 1 and ends it (0.01 for each step)."""
    with jaxrl.unity_environment("player:basic", base_port=free_port()) as env:
        view = jaxrl.gymnasium_view(env)
        for _ in range(2):
            obs, info = view.reset()
            assert obs.argmax() == 10 and info["action_mask"].tolist() == [True] * 3
            total, steps, over = 0.0, 0, False
            while not over:
                obs, reward, terminated, truncated, info = view.step(2)
                total, steps, over = total + reward, steps + 1, terminated or truncated
            assert (steps, terminated, truncated, int(obs.argmax())) == (7, True, False, 17)
            assert total == pytest.approx(1.0 - 0.01 * 7)
        view.step(0)  # in the middle of an episode: the scene is begun anew
        assert view.reset(seed=3)[0].argmax() == 10


def test_gymnasium_shows_one_agent(countdown):
    with pytest.raises(ViewError, match=r"the agents \[0, 1, 2\] ask, the Gymnasium view shows exactly one"):
        jaxrl.gymnasium_view(countdown)


def test_pettingzoo_finds_nothing_wrong(countdown):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, when it imports environments the old way
        from pettingzoo.test import parallel_api_test
    view = jaxrl.pettingzoo_view(countdown)
    parallel_api_test(view, num_cycles=50)  # warnings are errors here


def test_an_episode_of_a_team_by_the_view(countdown):
    """Each step pays 1 to each and 10 to the team; the observation is [area, member, step, discrete, continuous]."""
    view = jaxrl.pettingzoo_view(countdown)
    names = [f"Countdown?team=0_{member}" for member in range(3)]
    assert view.possible_agents == names and view.agents == []
    for _ in range(2):
        obs, infos = view.reset()
        assert view.agents == names and [obs[name][1] for name in names] == [0, 1, 2]
        assert infos[names[1]]["action_mask"].tolist() == [True, True, False]
        for step in range(1, 5):
            acts = {name: {"continuous": np.array([0.5]), "discrete": 1} for name in view.agents}
            lived = list(view.agents)
            obs, rewards, terminated, truncated, infos = view.step(acts)
            assert set(obs) == set(rewards) == set(terminated) == set(truncated) == set(infos) == set(lived)
            assert set(rewards.values()) == {11.0} and {info["group_reward"] for info in infos.values()} == {10.0}
            assert all(obs[name][2:].tolist() == [step, 1.0, 0.5] for name in lived)
            assert [name for name in lived if terminated[name]] == ([names[0]] if step == 2 else [])
            assert [name for name in lived if truncated[name]] == (names[1:] if step == 4 else [])
        assert view.agents == []
    view.reset()
    view.step({name: {"continuous": np.array([0.5]), "discrete": 0} for name in view.agents})
    obs, _ = view.reset(options={"bonus": 2.0})  # in the middle of an episode
    assert [obs[name][2] for name in names] == [0, 0, 0]
    _, rewards, *_ = view.step({name: {"continuous": np.array([0.5]), "discrete": 0} for name in view.agents})
    assert set(rewards.values()) == {13.0}  # a bonus of 2


def test_options_hold_for_the_episode_that_begins_with_them(countdown):
    """Not for the next one, as where the scene has begun its episode already. A sorter sees one row for each tile."""
    with jaxrl.unity_environment("player:sorter", base_port=free_port()) as env:
        alone = jaxrl.gymnasium_view(env)
        for options, tiles in ({"num_tiles": 5}, 5), ({}, 5), ({"num_tiles": 3.0}, 3):
            obs, _ = alone.reset(options=options)
            assert np.count_nonzero(obs["BufferSensor"].any(axis=1)) == tiles
    view = jaxrl.pettingzoo_view(countdown)
    view.reset(options={"bonus": 2.0})
    _, rewards, *_ = view.step({name: {"continuous": np.array([0.5]), "discrete": 0} for name in view.agents})
    assert set(rewards.values()) == {13.0}


@pytest.mark.parametrize(
    ("action", "space", "given", "continuous", "discrete"),
    [
        (ActionSpec(2, ()), spaces.Box(-1, 1, (2,), np.float32), np.array([0.5, -1]), [0.5, -1], []),
        (ActionSpec(0, (4,)), spaces.Discrete(4), 3, [], [3]),
        (ActionSpec(0, (4, 2)), spaces.MultiDiscrete([4, 2]), np.array([3, 1]), [], [3, 1]),
    ],
)
def test_spaces_of_actions(action, space, given, continuous, discrete):
    both = BehaviorSpaces(BehaviorSpec((ObservationSpec("eye", (2,)),), action))
    assert both.action == space
    assert [part.tolist() for part in both.act(given)] == [continuous, discrete]


def test_several_sensors_are_a_dictionary_by_name():
    sensors = ObservationSpec("ray", (2,)), ObservationSpec("ray", (3,)), ObservationSpec("eye", (4, 4, 3))
    both = BehaviorSpaces(BehaviorSpec(sensors, ActionSpec(1, ())))
    assert isinstance(both.observation, spaces.Dict)
    assert {name: box.shape for name, box in both.observation.spaces.items()} == {
        "ray_0": (2,), "ray_1": (3,), "eye": (4, 4, 3),
    }  # fmt: skip
    arrays = tuple(np.full((2, *sensor.shape), i, np.float32) for i, sensor in enumerate(sensors))
    assert both.observation.contains(both.see((*arrays[:2], arrays[2] * 0.5), 1))


@pytest.mark.parametrize(
    ("uint8_visual", "dtypes"),
    [(None, ["uint8", "float32"]), (True, ["uint8", "uint8"]), (False, ["float32", "float32"])],
)
def test_images_as_bytes_or_as_floats(uint8_visual, dtypes):
    """51 of 255 is 0.2. The vector stays what it is, also where it holds 0.2."""
    sensors = (
        ObservationSpec("camera", (3, 4, 5), dtype="uint8"),
        ObservationSpec("depth", (1, 4, 5)),
        ObservationSpec("ray", (2,)),
    )
    both = BehaviorSpaces(BehaviorSpec(sensors, ActionSpec(1, ())), uint8_visual)
    obs = (
        np.full((2, 3, 4, 5), 51, np.uint8),
        np.full((2, 1, 4, 5), 0.2, np.float32),
        np.full((2, 2), 0.2, np.float32),
    )
    seen = both.see(obs, 1)
    assert both.observation.contains(seen)
    assert [str(seen[name].dtype) for name in ("camera", "depth")] == dtypes
    for name, dtype in zip(("camera", "depth"), dtypes, strict=True):
        assert (seen[name] == (51 if dtype == "uint8" else np.float32(0.2))).all()
    assert seen["ray"].tolist() == [np.float32(0.2)] * 2
