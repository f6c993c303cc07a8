"""`rllib:MODULE:CLASS`: an environment written for RLlib, without Ray, through workers and `train`."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs.address import UnknownEnvironmentError
from jaxrl.envs.foreign.simulator import make_environment
from jaxrl.envs.rllib import simulator
from jaxrl.envs.rllib.simulator import make_factory, open_area
from jaxrl.settings import EnvironmentSettings, RunSettings
from jaxrl.types import Action


class Shift:
    """Two workers and a guard. Everybody sees the clock and its own number; `worker_1` goes home after step 2.

    The guard is asked at even clocks alone. With `length` the shift ends: terminated, or cut where `cut` says so.
    """

    observation_spaces = {name: spaces.Box(0.0, 9.0, (2,)) for name in ("worker_0", "worker_1")} | {
        "guard": spaces.Box(0.0, 9.0, (2,))
    }
    action_space = spaces.Discrete(3)  # one for all

    def __init__(self, config):
        self.length, self.cut, self.forgets = config["length"], config.get("cut", False), config.get("forgets", False)
        self.given = []

    def reset(self, *, seed=None, options=None):
        self.clock = 0
        return self.seen(), {}

    def seen(self):
        who = ["worker_0"] + ["worker_1"] * (self.clock < 2) + ["guard"] * (self.clock % 2 == 0)
        return {name: np.array([self.clock, len(name)], np.float32) for name in who}

    def step(self, actions):
        self.clock += 1
        self.given.append({name: int(action) for name, action in actions.items()})
        over = self.clock == self.length
        rewards = {name: float(action) for name, action in actions.items()}
        terminateds = {"worker_1": self.clock == 2, "__all__": over and not self.cut}
        if self.forgets:
            del terminateds["__all__"]
        obs = self.seen()
        if self.clock == 2:
            obs["worker_1"] = np.array([7, 7], np.float32)
        return obs, rewards, terminateds, {"__all__": over and self.cut}, {"__common__": {"clock": self.clock}}


def build(monkeypatch, **config):
    made = []

    def load(name, **_):
        return type(
            "Shift", (Shift,), {"__init__": lambda self, given: (Shift.__init__(self, given), made.append(self))[0]}
        )

    monkeypatch.setattr(simulator.own_code, "load", load)
    return make_environment(partial(open_area, "m:Shift", config), "rllib:m:Shift", 0, seed=3), made


def choose(message, value):
    sizes = {name: len(part.deciding.agent_id) for name, part in message.steps.items()}
    return {name: Action(np.zeros((n, 0), np.float32), np.full((n, 1), value, np.int32)) for name, n in sizes.items()}


@pytest.mark.parametrize("cut", [False, True])
def test_lives_rewards_and_endings_are_those_of_the_dictionaries(monkeypatch, cut):
    env, made = build(monkeypatch, length=3, cut=cut)
    message = env.reset()
    assert message.steps["worker"].deciding.obs[0].tolist() == [[0, 8], [0, 8]]
    assert message.steps["guard"].deciding.obs[0].tolist() == [[0, 5]]
    ids = message.steps["worker"].deciding.agent_id.tolist()
    message = env.step(choose(message, 1))
    assert "guard" not in message.steps or not len(message.steps["guard"].deciding.agent_id)  # not asked
    assert message.steps["worker"].deciding.reward.tolist() == [1, 1] and message.infos == {"0": {"clock": 1}}
    message = env.step(choose(message, 2))
    assert made[0].given == [{"worker_0": 1, "worker_1": 1, "guard": 1}, {"worker_0": 2, "worker_1": 2}]
    gone, guard = message.steps["worker"].ended, message.steps["guard"].deciding
    assert gone.agent_id.tolist() == ids[1:] and gone.obs[0].tolist() == [[7, 7]] and gone.reward.tolist() == [2]
    assert not gone.truncated.any() and guard.reward.tolist() == [1]  # that of step 1, at which nobody asked it
    message = env.step(choose(message, 0))
    ended = message.steps["worker"].ended, message.steps["guard"].ended
    assert [len(part.agent_id) for part in ended] == [1, 1]
    assert [part.truncated.tolist() for part in ended] == [[cut], [cut]]
    assert message.steps["worker"].deciding.obs[0].tolist() == [[0, 8], [0, 8]]  # the next episode
    env.close()


def test_what_rllib_does_not_define_is_named(monkeypatch):
    env, _ = build(monkeypatch, length=3, forgets=True)
    message = env.reset()
    (fault,) = env.step(choose(message, 0)).faults
    assert "step raised ValueError: returned terminateds without '__all__'" in fault.why
    area = partial(simulator._maker, "os:system")
    monkeypatch.undo()
    with pytest.raises(UnknownEnvironmentError, match="rllib:os:system: system is no class with reset and step"):
        area()
    with pytest.raises(UnknownEnvironmentError, match="rllib:os: expected rllib:MODULE:CLASS"):
        simulator.check("os")
    with pytest.raises(UnknownEnvironmentError, match="did you mean Shift"):
        simulator.check("tests.envs.test_rllib:Shft")


def test_settings_make_its_configuration():
    options = EnvironmentSettings(
        env_path="rllib:tests.envs.test_rllib:Shift", env_args=("length=2", "teams=false"), seed=0
    )
    env = make_factory("tests.envs.test_rllib:Shift", RunSettings(env_settings=options), "")(0)
    assert set(env.reset().steps) == {"worker", "guard"}
    assert env.reset().steps["worker"].deciding.group_id.tolist() == [0, 0]
    env.close()


def test_spaces_are_found_as_rllib_finds_them():
    from jaxrl.envs.rllib.area import MultiAgentArea

    one, two = spaces.Discrete(2), spaces.Discrete(3)
    env = SimpleNamespace(observation_space=spaces.Dict({0: one, 1: two}), action_spaces={0: two}, action_space=one)
    area = MultiAgentArea(env)
    assert area.spaces(0) == (one, two) and area.spaces(1) == (two, one) and area.behavior(0) == "agent"
    with pytest.raises(ValueError, match=r"expected action_spaces\[0\], action_space or get_action_space"):
        MultiAgentArea(SimpleNamespace(observation_space=one)).spaces(0)


class Shop:
    """Nobody is there at first and in step 2; a customer comes with step 1 and 3. It closes with step 4."""

    def __init__(self, config):
        self.config, self.resets = config, 0

    def get_observation_space(self, agent):
        return spaces.Box(0.0, 9.0, (2 if agent == "boss" else 1,))

    def get_action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        self.clock, self.resets = 0, self.resets + 1
        return {}, {}

    def step(self, actions):
        self.clock += 1
        come = {f"customer_{self.clock}": np.ones(1, np.float32)} if self.clock % 2 else {}
        gone = {f"customer_{self.clock - 1}": np.zeros(1, np.float32)} if self.clock % 2 == 0 else {}
        flags = dict.fromkeys(gone, True) | {"__all__": self.clock == 4}
        return come | gone, dict.fromkeys(gone, 1.0), flags, {"__all__": False}, {}


def make_shop(config):
    """As `register_env("shop", make_shop)` takes it."""
    config.set_defaults({"size": 3, "name": "corner"})
    return Shop(config)


def shop(**settings):
    options = EnvironmentSettings(env_path=f"rllib:{__name__}:make_shop", seed=0, **settings)
    return make_factory(f"{__name__}:make_shop", RunSettings(env_settings=options), "")


def test_moments_without_anybody_are_no_end_of_the_episode():
    env = shop()(0)
    message = env.reset()
    (game,) = env._areas
    assert not message.steps and game._env.resets == 1
    clocks = []
    for _ in range(4):
        message = env.step(
            choose(message, 0) if message.steps and len(message.steps["customer"].deciding.agent_id) else {}
        )
        clocks.append((game._env.clock, game._env.resets, len(message.steps["customer"].ended.agent_id)))
    # steps with a message: a customer comes, it ends, the next comes, it ends with the shop, which begins anew
    assert clocks == [(1, 1, 0), (2, 1, 1), (3, 1, 0), (0, 2, 1)]


def test_a_copy_knows_its_place_and_a_maker_is_called_as_register_env_does():
    env = shop(env_args=("size=5",), num_envs=4, num_areas=2)(2)
    configs = [area._env.config for area in env._areas]
    assert configs == [{"size": 5, "name": "corner"}] * 2
    assert [(of.worker_index, of.vector_index, of.num_workers) for of in configs] == [(3, 0, 4), (3, 1, 4)]


def test_spaces_are_asked_of_the_methods_of_rllibs_newer_environments():
    from jaxrl.envs.rllib.area import MultiAgentArea

    area = MultiAgentArea(Shop({}))
    assert area.spaces("boss") == (spaces.Box(0.0, 9.0, (2,)), spaces.Discrete(3))
    assert area.spaces("customer_1")[0] == spaces.Box(0.0, 9.0, (1,))


def test_functions_of_other_packages_are_not_called():
    for name in ("subprocess:call", "yaml:dump"):
        with pytest.raises(
            UnknownEnvironmentError, match=r"is no class with reset and step, as .*, and no function that"
        ):
            simulator.check(name)
