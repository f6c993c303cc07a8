"""The adapter against JaxMARL itself, step by step, and its rules for rows, masks, rewards and ends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs.adapters.foreign import ForeignEnvironmentError
from jaxrl.jax_envs.adapters.foreign_team import joint_action, possible_actions, rows_of, shares
from jaxrl.jax_envs.adapters.jaxmarl import MarlState, make_jaxmarl
from jaxrl.jax_envs.interface import TeamActions, advance_areas, start_areas
from jaxrl.jax_envs.served.launcher import UnknownEnvironmentError
from jaxrl.types import ActionSpec

package = pytest.importorskip("jaxmarl")

SPREAD = "MPE_simple_spread_v3"
STEPS, END = 30, 25  # an episode has 26 steps: JaxMARL compares the clock before it counts


def discrete(*actions: int) -> TeamActions:
    rows = jnp.asarray(actions, jnp.int32)[:, None]
    return TeamActions(continuous=jnp.zeros((rows.shape[0], 0)), discrete=rows)


@pytest.fixture(scope="module")
def both():
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
def camp(monkeypatch):
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
    with pytest.raises(ForeignEnvironmentError, match="here: agents with continuous and agents with discrete"):
        joint_action("here", [ActionSpec(2, ()), short])


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("MPE_simple_spred_v3", UnknownEnvironmentError, "did you mean MPE_simple_spread_v3"),
        ("LearnedPolicyEnemySMAX", ForeignEnvironmentError, "jaxmarl:LearnedPolicyEnemySMAX: JaxMARL cannot make it"),
        ("storm_2p", ForeignEnvironmentError, "jaxmarl:storm_2p: no array of observations by the name of agent"),
    ],
)
@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning")
def test_what_cannot_be_had_is_refused_by_name(name, error, text):
    with pytest.raises(error, match=text):
        make_jaxmarl(name)


def test_an_environment_that_resets_itself_is_refused(monkeypatch):
    monkeypatch.setattr(package, "registered_envs", ["camp"])
    monkeypatch.setattr(package, "make", lambda name: type("Restless", (Camp,), {"auto_reset": True})())
    with pytest.raises(ForeignEnvironmentError, match="jaxmarl:camp: resets inside its own step"):
        make_jaxmarl("camp")
