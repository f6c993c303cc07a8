"""Dungeon Escape: each rule by hand, what policies earn, and the properties that the learner relies on."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.dungeon_escape import (
    ATTACK,
    NOBODY,
    NUM_ACTIONS,
    OPEN,
    DungeonSettings,
    DungeonState,
    make_dungeon_escape,
)
from jaxrl.jax_envs.interface import TeamActions, TeamStep, TeamView, advance_areas, start_areas

STAY, UP, DOWN, LEFT, RIGHT = range(5)
SETTINGS = DungeonSettings(size=7, capacity=4, team_size=3, dragon_period=3, episode_limit=100)


def place(**changes) -> DungeonState:
    """Three agents in the middle, the dragon below at (3, 6), the portal above at (3, 0), the door in the left wall."""
    state = DungeonState(
        position=jnp.array([[0, 3], [3, 3], [6, 3], [0, 0]], jnp.int32),
        alive=jnp.array([True, True, True, False]),
        started=jnp.array([True, True, True, False]),
        dragon=jnp.array([3, 6], jnp.int32),
        dragon_alive=jnp.bool_(True),
        carrier=jnp.int32(NOBODY),
        door=jnp.array([0, 5], jnp.int32),
        portal=jnp.array([3, 0], jnp.int32),
        clock=jnp.int32(0),
        dragon_period=jnp.int32(3),
    )
    return state._replace(**{name: jnp.asarray(value, getattr(state, name).dtype) for name, value in changes.items()})


@partial(jax.jit, static_argnums=0)
def compiled_step(settings: DungeonSettings, state: DungeonState, actions: jax.Array) -> tuple[DungeonState, TeamStep]:
    team_actions = TeamActions(continuous=jnp.zeros((len(actions), 0)), discrete=actions[:, None])
    return make_dungeon_escape(settings).step(jax.random.key(0), state, team_actions)


def act(state: DungeonState, *actions: int) -> tuple[DungeonState, TeamStep]:
    return compiled_step(SETTINGS, state, jnp.array([*actions, STAY], jnp.int32))


def test_agents_move_one_cell_and_not_through_walls():
    state, step = act(place(), LEFT, UP, RIGHT)
    # LEFT at x = 0 and RIGHT at x = 6 run into walls; UP lowers y by one
    assert state.position[:3].tolist() == [[0, 3], [3, 2], [6, 3]]
    assert step.view.action_mask[0].tolist() == [True, True, True, False, True, False, False]
    assert not step.over and not step.terminated.any() and not step.truncated.any()


def test_the_living_dragons_cell_is_closed():
    state, step = act(place(position=[[0, 3], [3, 5], [6, 3], [0, 0]]), STAY, DOWN, STAY)
    assert state.position[1].tolist() == [3, 5]
    assert not step.view.action_mask[1, DOWN]


def test_dragon_walks_every_third_decision_and_is_held_by_a_neighbour():
    far = place()
    rows = []
    for _ in range(6):
        far, _ = act(far, STAY, UP, STAY)
        rows.append(int(far.dragon[1]))
    assert rows == [6, 6, 5, 5, 5, 4]
    held = place(position=[[2, 5], [3, 0], [6, 3], [0, 0]])  # diagonal neighbour of (3, 6)
    for _ in range(6):
        held, step = act(held, STAY, STAY, STAY)
    assert held.dragon.tolist() == [3, 6]
    assert step.view.obs[0][0, 5:7].tolist() == [1.0, 1.0]  # I stand next to it, it is held
    assert step.view.obs[0][1, 5:7].tolist() == [0.0, 1.0]


def test_slayer_dies_without_reward_and_the_key_lies_where_the_dragon_stood():
    state, step = act(place(position=[[0, 3], [3, 5], [6, 3], [0, 0]]), STAY, ATTACK, STAY)
    assert not state.dragon_alive
    assert step.terminated.tolist() == [False, True, False, False]
    assert step.view.alive.tolist() == [True, False, True, False]
    assert not step.over and step.reward.sum() == 0 and step.group_reward.sum() == 0
    # agent 0 at (0, 3): the key at (3, 6) is (3, 3) / 6 away; the dragon reads 0
    np.testing.assert_allclose(step.view.obs[0][0, 8:12], [0.5, 0.5, 1.0, 0.0])
    np.testing.assert_allclose(step.view.obs[0][0, 2:8], 0.0)
    # agent 1's own last view is the place where it died
    np.testing.assert_allclose(step.view.obs[0][1, :2], [0.0, 5 / 3 - 1], atol=1e-6)


def test_of_two_attackers_only_the_first_dies():
    _, step = act(place(position=[[0, 3], [3, 5], [4, 5], [0, 0]]), STAY, ATTACK, ATTACK)
    assert step.terminated.tolist() == [False, True, False, False]


def test_attack_out_of_reach_and_open_without_key_do_nothing():
    before = place(position=[[0, 5], [3, 3], [6, 3], [0, 0]])
    state, step = act(before, OPEN, ATTACK, ATTACK)
    assert state.dragon_alive and not step.over
    assert state.position.tolist() == before.position.tolist()


def test_first_on_the_key_takes_it_and_escapes_through_the_door():
    dead = {"dragon_alive": False, "dragon": [1, 5], "alive": [True, True, False, False]}
    state, step = act(place(position=[[2, 5], [1, 4], [6, 3], [0, 0]], **dead), LEFT, DOWN, STAY)
    assert state.carrier == 0  # both stand on it now
    assert step.view.obs[0][0, 10:13].tolist() == [0.0, 1.0, 0.0]
    assert step.view.obs[0][1, 10:13].tolist() == [0.0, 0.0, 1.0]
    state, step = act(state, LEFT, STAY, STAY)  # onto the door's cell (0, 5)
    assert step.view.action_mask[0, OPEN] and not step.view.action_mask[1, OPEN]
    state, step = act(state, OPEN, STAY, STAY)
    assert step.over
    assert step.group_reward.tolist() == [1.0, 1.0, 0.0, 0.0]  # the slayer does not live to see it
    assert step.terminated.tolist() == [True, True, False, False]
    assert {name: float(value) for name, value in step.stats.items()} == {
        "Environment/Dragon Slain": 1.0,
        "Environment/Escaped": 1.0,
        "Environment/Held Out": 0.0,
    }


def test_dragon_in_the_portal_loses_the_episode():
    state = place(dragon=[3, 1], position=[[0, 5], [3, 5], [6, 5], [0, 0]], clock=2)
    _, step = act(state, STAY, STAY, STAY)
    assert step.over and step.group_reward.sum() == 0
    assert step.terminated.tolist() == [True, True, True, False]


@pytest.mark.parametrize(("dragon_alive", "prize"), [(True, 0.2), (False, 0.0)])
def test_help_pays_those_who_held_the_dragon_off(dragon_alive, prize):
    _, step = act(place(clock=99, dragon_alive=dragon_alive), STAY, STAY, STAY)
    assert step.over and not step.truncated.any()
    np.testing.assert_allclose(step.group_reward, [prize, prize, prize, 0.0])
    assert act(place(clock=98), STAY, STAY, STAY)[1].over == False  # noqa: E712  a JAX array


def test_a_team_of_one_that_slays_has_lost():
    state = place(alive=[False, True, False, False], position=[[0, 3], [3, 5], [6, 3], [0, 0]])
    _, step = act(state, STAY, ATTACK, STAY)
    assert step.over and step.terminated.tolist() == [False, True, False, False] and step.group_reward.sum() == 0


def test_members_that_never_lived_are_zero_rows_with_everything_allowed():
    view = act(place(), STAY, STAY, STAY)[1].view
    assert not view.obs[0][3].any() and view.action_mask[3].all() and not view.alive[3]


def test_mates_are_seen_from_the_own_index_upwards():
    view = act(place(carrier=2, dragon_alive=False), STAY, STAY, STAY)[1].view
    # agent 1 at (3, 3) sees agent 2 at (6, 3) with the key, nobody, agent 0 at (0, 3)
    np.testing.assert_allclose(view.obs[0][1, 18:], [0.5, 0, 1, 1, 0, 0, 0, 0, -0.5, 0, 1, 0])


def random_policy(key: jax.Array, state: DungeonState, view: TeamView) -> jax.Array:
    return jax.random.categorical(key, jnp.where(view.action_mask, 0.0, -1e9))


def _towards(state: DungeonState, goal: jax.Array) -> jax.Array:
    """For each agent the move towards the cell `goal` [2], along x first."""
    way = goal[None] - state.position
    horizontal = jnp.where(way[:, 0] > 0, RIGHT, LEFT)
    vertical = jnp.where(way[:, 1] > 0, DOWN, UP)
    return jnp.where(way[:, 0] != 0, horizontal, jnp.where(way[:, 1] != 0, vertical, STAY))


def guards(key: jax.Array, state: DungeonState, view: TeamView) -> jax.Array:
    """Everybody goes next to the dragon and stays there."""
    return jnp.where(view.action_mask[:, ATTACK], STAY, _towards(state, state.dragon))


def heroes(key: jax.Array, state: DungeonState, view: TeamView) -> jax.Array:
    """Everybody goes for the dragon, then for the key, then for the door, and never hesitates."""
    goal = jnp.where(state.carrier == NOBODY, state.dragon, state.door)  # the key falls where the dragon stood
    action = _towards(state, goal)
    action = jnp.where(view.action_mask[:, ATTACK] & state.dragon_alive, ATTACK, action)
    return jnp.where(view.action_mask[:, OPEN] & state.alive, OPEN, action)


AREAS, STEPS = 128, 220
POLICIES = (random_policy, guards, heroes)


@jax.jit
def play(policy: jax.Array, key: jax.Array):
    """`POLICIES[policy]` in all areas: means over first episodes, their ends, and all steps [T, E, ...]."""
    env = ENVIRONMENTS["dungeon_escape"]()
    start_key, play_key = jax.random.split(key)
    parameters = {name: jnp.full(AREAS, value, jnp.float32) for name, value in env.parameters.items()}

    def one(carry, key):
        running, view, fresh = carry
        keys = jax.random.split(key, AREAS)
        choices = jnp.stack([jax.vmap(choose)(keys, running.state, view) for choose in POLICIES])
        team_actions = TeamActions(continuous=jnp.zeros((AREAS, env.members, 0)), discrete=choices[policy][..., None])
        before = view.alive
        running, result = advance_areas(env, running, team_actions, parameters)
        first = result.step.over & fresh
        figures = {name: jnp.where(first, value, 0.0) for name, value in result.step.stats.items()}
        figures["reward"] = jnp.where(first, result.step.group_reward.max(axis=1), 0.0)
        return (running, result.view, fresh & ~result.step.over), (figures, before, result, first)

    running, view = start_areas(env, start_key, AREAS, parameters)
    keys = jax.random.split(play_key, STEPS)
    _, (figures, before, result, first) = jax.lax.scan(one, (running, view, jnp.ones(AREAS, bool)), keys)
    return jax.tree.map(lambda value: value.sum(axis=0).mean(), figures), before, result, first


@pytest.fixture(scope="module")
def random_play():
    return jax.tree.map(np.asarray, play(POLICIES.index(random_policy), jax.random.key(1)))


def test_random_play_slays_often_and_wins_rarely(random_play):
    figures, _, _, first = random_play
    assert first[:100].any(axis=0).all()  # nothing lasts longer than 100 decisions
    assert figures["Environment/Dragon Slain"] > 0.1
    assert 0.03 < figures["Environment/Escaped"] < 0.2


def test_guards_hold_out_and_heroes_escape():
    held, *_ = play(POLICIES.index(guards), jax.random.key(2))
    assert held["Environment/Held Out"] > 0.9
    np.testing.assert_allclose(held["reward"], 0.2 * held["Environment/Held Out"], rtol=1e-5)
    won, *_ = play(POLICIES.index(heroes), jax.random.key(3))
    assert won["Environment/Escaped"] > 0.95 and won["reward"] > 0.95


def test_episodes_of_random_play_keep_the_contract(random_play):
    _, before, result, _ = random_play
    step = result.step
    ended = step.terminated | step.truncated
    assert not (ended & ~before).any()  # only who lived can end
    np.testing.assert_array_equal(step.view.alive, before & ~ended)
    assert (ended.sum(axis=2) == before.sum(axis=2))[step.over].all()  # the end is everybody's end
    assert result.view.alive.any(axis=2).all()  # somebody always decides
    assert (result.view.alive[step.over].sum(axis=1) == 3).all()  # and a new team is complete
    assert result.view.action_mask[..., STAY].all() and result.view.action_mask.shape[-1] == NUM_ACTIONS
    for obs in (*step.view.obs, *result.view.obs):
        assert np.isfinite(obs).all() and abs(obs).max() <= 1.0
    np.testing.assert_array_equal(result.view.obs[0][~step.over], step.view.obs[0][~step.over])


def test_the_same_key_plays_the_same_episodes_and_another_key_others(random_play):
    again, other = (play(POLICIES.index(random_policy), jax.random.key(seed))[2].view.obs[0] for seed in (1, 2))
    np.testing.assert_array_equal(random_play[2].view.obs[0], again)
    assert (np.asarray(again) != np.asarray(other)).any()


def test_areas_of_one_key_differ_and_so_do_episodes_of_one_area(random_play):
    result = random_play[2]
    starts = {obs.tobytes() for obs in result.view.obs[0][result.step.over]}
    assert len(starts) == result.step.over.sum() > AREAS


def test_parameters_set_team_and_dragon_of_the_next_episode():
    env = make_dungeon_escape(SETTINGS)
    state, view = env.reset(jax.random.key(0), {"team_size": 2.0, "dragon_period": 7.0})
    assert view.alive.tolist() == [True, True, False, False] and state.dragon_period == 7
    state, view = env.reset(jax.random.key(0), {"team_size": 99.0, "dragon_period": -1.0})
    assert view.alive.all() and state.dragon_period == 1
    assert env.reset(jax.random.key(0), {})[1].alive.sum() == SETTINGS.team_size


@pytest.mark.parametrize(("bad", "text"), [({"size": 3}, "size = 3"), ({"team_size": 6}, "team_size = 6")])
def test_impossible_settings_are_refused_by_name(bad, text):
    with pytest.raises(ValueError, match=text):
        make_dungeon_escape(DungeonSettings(**bad))
