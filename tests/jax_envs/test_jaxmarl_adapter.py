"""The adapter against JaxMARL itself, step by step, and its rules for rows, masks, rewards and ends."""

from __future__ import annotations

import re
from importlib import util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs.foreign.arguments import ArgumentsError
from jaxrl.jax_envs import make_environment
from jaxrl.jax_envs.adapters.foreign import flat
from jaxrl.jax_envs.adapters.jaxmarl import (
    MarlState,
    _by_agent,
    _native,
    joint_action,
    make_jaxmarl,
    possible_actions,
    rows_of,
    shares,
)
from jaxrl.jax_envs.contract import check_environment
from jaxrl.jax_envs.interface import TeamActions, advance_areas, start_areas
from jaxrl.jax_envs.served.launcher import UnknownEnvironmentError
from jaxrl.types import ActionSpec, JaxrlError

SPREAD = "MPE_simple_spread_v3"
STEPS, END = 30, 25  # an episode has 26 steps: JaxMARL compares the clock before it counts


def discrete(*actions: int) -> TeamActions:
    rows = jnp.asarray(actions, jnp.int32)[:, None]
    return TeamActions(continuous=jnp.zeros((rows.shape[0], 0)), discrete=rows)


@pytest.fixture(scope="module", autouse=True)
def package():
    """Imported for these tests alone: it takes seconds, which all processes of tests would spend."""
    return pytest.importorskip("jaxmarl")


@pytest.fixture(scope="module")
def both(package):
    """Simple Spread by both, each step from the same state with the same key and actions, a bit beyond the end."""
    env, theirs = make_jaxmarl(SPREAD), package.make(SPREAD)

    def rows(values):
        return jnp.stack([values[agent] for agent in theirs.agents])

    def one(state, key):
        step_key, action_key = jax.random.split(key)
        actions = jax.random.randint(action_key, (3,), 0, 5)
        named = {agent: actions[i] for i, agent in enumerate(theirs.agents)}
        obs, after, reward, done, _ = theirs.step(step_key, state, named)
        mine = MarlState(state, jnp.ones(3, bool))
        step = env.step(jax.random.split(step_key)[0], mine, discrete(*actions))[1]
        return after, (rows(obs), rows(reward), done["__all__"], step)

    @jax.jit
    def play(key):
        obs, state = theirs.reset(key)
        return rows(obs), env.reset(key, {})[1], jax.lax.scan(one, state, jax.random.split(key, STEPS))[1]

    return env, jax.tree.map(np.asarray, play(jax.random.key(3)))


def test_an_episode_is_theirs_up_to_its_end(both):
    env, (first, view, (obs, reward, done, step)) = both
    assert (env.name, env.members, env.teams, env.truncates) == (SPREAD, 3, 1, True)
    assert env.spec.observations[0].shape == (18,) and env.spec.action == ActionSpec(0, (5,))
    np.testing.assert_array_equal(view.obs[0], first)
    assert np.flatnonzero(done).tolist() == [END] == np.flatnonzero(step.over).tolist()
    going = ~done  # two programs in one: XLA may round the last bit of each differently
    np.testing.assert_allclose(step.view.obs[0][going], obs[going], atol=1e-5)
    np.testing.assert_allclose(step.reward + step.group_reward, reward, atol=1e-5)
    np.testing.assert_allclose(step.group_reward, np.repeat(reward.mean(axis=1), 3).reshape(-1, 3), atol=1e-5)
    np.testing.assert_allclose(step.reward.sum(axis=1), 0.0, atol=1e-5)


def test_the_last_observation_is_the_true_one_and_the_limit_truncates(both):
    _, (_, _, (obs, _, _, step)) = both
    velocity, position = step.view.obs[0][END - 1, :, :2], step.view.obs[0][END - 1, :, 2:4]
    np.testing.assert_allclose(step.view.obs[0][END, :, 2:4], position + 0.1 * velocity, atol=1e-5)  # x <- x + v dt
    assert (obs[END] != step.view.obs[0][END]).any()  # theirs is already the next episode's first
    assert step.truncated[END].all() and not step.terminated.any() and step.truncated.sum() == 3
    assert not step.view.alive[END].any() and step.view.action_mask[END].all() and step.view.alive[:END].all()


class Camp:
    """A camp with JaxMARL's interface, small enough to count by hand.

    Two friends and an enemy; friend_0 sees two numbers and may do 0, 1 or, from the second step on, 2. Who does 1 is
    done, 2 ends the episode. Everybody earns the clock, friend_1 three times as much.
    """

    agents = ("friend_0", "enemy_0", "friend_1")

    def __init__(self, max_steps=3):
        self.max_steps = max_steps

    def action_space(self, agent):
        return type("Discrete", (), {"n": 3 if agent == "friend_0" else 2, "dtype": np.int32})()

    def get_avail_actions(self, clock):
        return {a: jnp.array([1, 1, clock > 0][: self.action_space(a).n], jnp.uint8) for a in self.agents}

    def get_obs(self, clock):
        return {a: jnp.full(2 if a == "friend_0" else 1, clock, jnp.int8) for a in self.agents}

    def reset(self, key):
        return self.get_obs(jnp.int32(0)), 0  # a Python number

    def step_env(self, key, clock, actions):
        clock = clock + 1
        over = (actions["friend_0"] == 2) | (clock >= self.max_steps)
        rewards = {a: clock * (3.0 if a == "friend_1" else 1.0) for a in self.agents}
        return self.get_obs(clock), clock, rewards, {a: actions[a] == 1 for a in self.agents} | {"__all__": over}, {}


@pytest.fixture
def camp(package, monkeypatch):
    """Rows: friend_0, friend_1, enemy_0, nobody."""
    monkeypatch.setattr(package, "registered_envs", ["camp"])
    monkeypatch.setattr(package, "make", lambda name, **settings: Camp(**settings))
    return make_jaxmarl("camp")


def test_rows_hold_two_teams_and_masks_what_agents_lack_or_may_not_do(camp):
    assert (camp.members, camp.teams, camp.spec.action) == (2, 2, ActionSpec(0, (3,)))
    assert rows_of(["adversary_0", "agent_0"]) == (("agent_0", "adversary_0"), 2)
    state, view = camp.reset(jax.random.key(0), {})
    assert view.alive.tolist() == [True, True, True, False]
    assert view.action_mask.tolist() == [[True, True, False]] * 3 + [[True] * 3]
    _, step = camp.step(jax.random.key(1), state, discrete(0, 0, 0, 0))
    assert step.view.action_mask.tolist() == [[True] * 3, [True, True, False], [True, True, False], [True] * 3]
    assert step.view.obs[0].tolist() == [[1, 1], [1, 0], [1, 0], [0, 0]]  # shorter ones are followed by zeros


def test_agents_end_alone_and_do_not_come_back(camp):
    state, _ = camp.reset(jax.random.key(0), {})
    state, step = camp.step(jax.random.key(1), state, discrete(1, 0, 0, 0))
    assert step.terminated.tolist() == [True, False, False, False] and not step.over
    # friends earn 1 and 3: 2 is the team's, -1 and 1 are their own; the enemy's 1 is shared with nobody
    assert step.group_reward.tolist() == [2, 2, 1, 0] and step.reward.tolist() == [-1, 1, 0, 0]
    state, step = camp.step(jax.random.key(1), state, discrete(1, 0, 0, 0))
    assert not step.terminated.any() and step.view.alive.tolist() == [False, True, True, False]
    assert step.group_reward.tolist() == [0, 6, 2, 0] and not step.reward.any()  # friend_1 alone has 2 * 3
    assert step.view.obs[0][0].tolist() == [2, 2] and step.view.action_mask[0].all()


@pytest.mark.parametrize(("time_limits", "truncated"), [(True, True), (False, False)])
def test_only_what_time_ended_is_truncated(camp, time_limits, truncated):
    camp = make_jaxmarl("camp", time_limits=time_limits)
    assert camp.truncates == time_limits
    present, clock = jnp.array([True, True, True, False]), jnp.int32(2)
    _, late = camp.step(jax.random.key(0), MarlState(clock, present), discrete(0, 1, 0, 0))
    assert late.over and (late.terminated | late.truncated).tolist() == [True, True, True, False]
    assert late.truncated.tolist() == [truncated, False, truncated, False]  # friend_1 was done in the same step
    _, ended = camp.step(jax.random.key(0), MarlState(clock, present), discrete(2, 0, 0, 0))
    assert ended.over and ended.terminated.tolist() == present.tolist() and not ended.truncated.any()


def test_areas_play_one_episode_after_the_other(camp):
    areas, _ = start_areas(camp, jax.random.key(0), 2, {})
    nothing = TeamActions(continuous=jnp.zeros((2, 4, 0)), discrete=jnp.zeros((2, 4, 1), jnp.int32))
    played = jax.jit(lambda areas: jax.lax.scan(lambda a, _: advance_areas(camp, a, nothing, {}), areas, length=7)[1])(
        areas
    )
    assert played.step.over[:, 0].tolist() == [False, False, True] * 2 + [False]
    assert played.step.view.obs[0][:, 0, 0, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]  # the true last one
    assert played.view.obs[0][:, 0, 0, 0].tolist() == [1, 2, 0, 1, 2, 0, 1]
    assert played.view.alive[:, :, :3].all() and not played.view.alive[:, :, 3].any()


def test_rewards_are_split_into_what_all_share_and_what_is_left():
    reward, alive = jnp.array([1.0, 2.0, 6.0, 0.1, 0.1, 7.0]), jnp.array([True] * 5 + [False])
    own, group = shares(reward, alive, teams=2)
    np.testing.assert_allclose(own, [-2, -1, 3, 0, 0, 0])  # the first team's mean is 3
    assert group[:3].tolist() == [3, 3, 3] and not own[3:].any()
    assert group[3:].tolist() == [np.float32(0.1), np.float32(0.1), 0]  # a shared reward stays what it is, bit by bit
    own, group = shares(jnp.array([5.0, -5.0]), jnp.array([True, True]), teams=2)
    assert own.tolist() == [5, -5] and not group.any()  # nobody to share with


def test_one_action_holds_all_agents_actions():
    short, long = ActionSpec(0, (3,)), ActionSpec(0, (5, 2))
    assert joint_action("here", [short, long]) == long
    assert possible_actions(long, short).tolist() == [True, True, True, False, False, True, False]
    assert joint_action("here", [ActionSpec(9, ()), ActionSpec(5, ())]) == ActionSpec(9, ())
    with pytest.raises(JaxrlError, match="here: agents with continuous and agents with discrete"):
        joint_action("here", [ActionSpec(2, ()), short])


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("MPE_simple_spred_v3", UnknownEnvironmentError, "did you mean MPE_simple_spread_v3"),
        ("LearnedPolicyEnemySMAX", JaxrlError, "Enemy.*SMAX: its opponent is a trained network, which no"),
        (
            "JaxRobotarium_rware",
            JaxrlError,
            "jaxmarl:JaxRobotarium_rware: needs jaxrobotarium",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(name, error, text):
    with pytest.raises(error, match=text):
        make_jaxmarl(name)


class Braxlike(Camp):
    """As MABrax: resets inside its own step unless told not to, and tells which ends are those of time."""

    def __init__(self, max_steps=3, auto_reset=True):
        super().__init__(max_steps)
        self.length, self.auto_reset = max_steps, auto_reset
        del self.max_steps

    def step_env(self, key, clock, actions):
        self.max_steps = self.length
        obs, clock, rewards, dones, _ = super().step_env(key, clock, actions)
        del self.max_steps
        clock = jnp.where(dones["__all__"] & self.auto_reset, 0, clock)
        return (
            obs,
            clock,
            rewards,
            dones,
            {"truncation": jnp.where(actions["friend_0"] == 2, 0.0, clock >= self.length)},
        )


def test_an_environment_that_resets_itself_is_made_without(package, monkeypatch):
    monkeypatch.setattr(package, "registered_envs", ["camp"])
    monkeypatch.setattr(package, "make", lambda name, **settings: Braxlike(**settings))
    camp = make_jaxmarl("camp", max_steps=4)
    assert camp.truncates and not make_jaxmarl("camp", time_limits=False).truncates
    present = jnp.array([True, True, True, False])
    late, step = camp.step(jax.random.key(0), MarlState(jnp.int32(3), present), discrete(0, 0, 0, 0))
    assert late.inner == 4 and step.truncated.tolist() == present.tolist() and not step.terminated.any()
    _, step = camp.step(jax.random.key(0), MarlState(jnp.int32(1), present), discrete(2, 0, 0, 0))
    assert step.terminated.tolist() == present.tolist() and not step.truncated.any()


def test_arguments_make_another_environment_and_wrong_ones_are_refused_with_the_known():
    env = make_environment("jaxmarl:MPE_simple_spread_v3", num_agents=2, num_landmarks=4, max_steps=2)
    assert env.members == 2 and env.spec.observations[0].shape == (4 + 4 * 1 + 2 * 4,)
    state, _ = env.reset(jax.random.key(0), {})
    step = jax.jit(env.step)
    ends = []
    for _ in range(3):
        state, told = step(jax.random.key(1), state, discrete(0, 0))
        ends.append((bool(told.over), bool(told.truncated.all())))
    assert ends == [(False, False), (False, False), (True, True)]  # the limit given is the one that truncates
    for arguments, text in [
        ({"num_agent": 2}, "takes no argument num_agent, did you mean num_agents or num_landmarks.* it takes .*dt"),
        ({"num_agents": "two"}, "argument num_agents: got 'two', expected a whole number, such as 3"),
        ({"num_agents": True}, "argument num_agents: got True"),
        ({"local_ratio": [1]}, "argument local_ratio: got .*, expected a number, such as 0.5"),
        ({"time_limits": 1}, "argument time_limits: got 1, expected true or false"),
    ]:
        with pytest.raises(ArgumentsError, match=f"jaxmarl:MPE_simple_spread_v3: {text}"):
            make_jaxmarl("MPE_simple_spread_v3", **arguments)


def test_names_of_jaxmarls_tables_are_scenarios_and_layouts():
    smax = make_jaxmarl("SMAX", scenario="3m")
    assert (smax.members, smax.teams) == (3, 2)
    with pytest.warns(DeprecationWarning, match="OvercookedV2"):
        kitchen = make_jaxmarl("overcooked", layout="coord_ring", max_steps=7)
    assert kitchen.spec.observations[0].shape == (5 * 5 * 26,)
    with pytest.raises(ArgumentsError, match=r"SMAX: scenario=4m: no such scenario, did you mean .*3m.* there are 10m"):
        make_jaxmarl("SMAX", scenario="4m")
    with pytest.raises(ArgumentsError, match=r"layout=\[1\]: no such layout, .*there are .*coord_ring"):
        make_jaxmarl("overcooked_v2", layout=[1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning")
def test_storm_for_two_is_theirs_and_hears_both_actions(package):
    env, theirs = make_jaxmarl("storm_2p"), package.make("storm_2p")
    assert (env.members, env.teams, env.spec.action) == (2, 1, ActionSpec(0, (5,)))

    @jax.jit
    def play(key):
        obs, state = theirs.reset(key)

        def one(state, key):
            step_key, action_key = jax.random.split(key)
            actions = jax.random.randint(action_key, (2,), 0, 5)
            obs, after, reward, _, _ = theirs.step_env(step_key, state, (actions[0], actions[1]))
            step = env.step(step_key, MarlState(state, jnp.ones(2, bool)), discrete(actions[0], actions[1]))[1]
            return after, (obs, jnp.stack(reward), step)

        return env.reset(key, {})[1], obs, jax.lax.scan(one, state, jax.random.split(key, 20))[1]

    view, first, (obs, reward, step) = jax.tree.map(np.asarray, play(jax.random.key(1)))
    for i in range(2):
        np.testing.assert_array_equal(view.obs[0][i], np.r_[first[i]["inventory"], first[i]["observation"].ravel()])
        seen = np.concatenate([obs[i]["inventory"], obs[i]["observation"].reshape(20, -1)], axis=1)
        np.testing.assert_array_equal(step.view.obs[0][:, i], seen)
        assert np.ptp(seen, axis=0).any()
    np.testing.assert_allclose(step.reward + step.group_reward, reward, atol=1e-6)


def test_agents_that_are_numbers_act_one_after_the_other():
    """`a, b = {0: 3, 1: 4}` would be the names, not the actions."""
    space = type("Discrete", (), {"n": 5})()
    nothing = jnp.zeros(0)
    given = _native({0: space, 1: space}, {0: (nothing, jnp.array([3])), 1: (nothing, jnp.array([4]))})
    assert isinstance(given, tuple) and [int(action) for action in given] == [3, 4]


def test_of_storm_for_many_an_agent_sees_its_own_and_what_others_show():
    inventory = jnp.array([[1, 2, 3], [4, 5, 6], [1, 0, 1], [7, 0, 9], [8, 0, 10]])  # own 2, may interact, shown 2
    obs = _by_agent([0, 1, 2], {"observations": jnp.arange(3.0)[:, None], "inventory": inventory})
    assert flat(obs[1], 10).tolist() == [1, 2, 5, 0, 1, 7, 8, 1, 9, 10]


TABLE = Path(__file__).parents[2] / "docs" / "jaxmarl-and-gymnax.md"


def registered(state: str) -> list[str]:
    """Names in the rows of the guide's table that end so."""
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| `") and line.endswith(f"{state} |")]
    return [name.replace("\\", "") for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


BUILT, WITH_BRAX, NOT = registered("yes"), registered("with brax"), registered("no")


def test_the_guide_names_every_environment(package):
    assert sorted(BUILT + WITH_BRAX + NOT) == sorted(package.registered_envs) and len(BUILT) == 24


@pytest.mark.parametrize("name", NOT + WITH_BRAX)
def test_what_the_guide_says_cannot_be_had_is_refused_with_a_reason(name):
    brax = util.find_spec("brax") is not None and name in WITH_BRAX
    if not brax and not (name.startswith("JaxRobotarium") and util.find_spec("jaxrobotarium")):
        with pytest.raises(JaxrlError, match=r"trained network|submodule of JaxMARL|requires brax"):
            make_jaxmarl(name)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BUILT)
def test_what_the_guide_says_can_be_had_keeps_the_contract(name):
    assert check_environment(make_jaxmarl(name), areas=2, steps=20).problems == []
