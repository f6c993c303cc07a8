"""Baton Pass: each rule by hand, what policies earn, and the properties that the learner relies on."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.baton_pass import BACK, FORWARD, LEFT, OBS_SIZE, RIGHT, BatonSettings, BatonState, make_baton_pass
from jaxrl.jax_envs.drawing import Disc
from jaxrl.jax_envs.interface import TeamActions, advance_areas, start_areas

STAY = AHEAD = 0
EAST, NORTH, WEST, SOUTH = range(4)
SETTINGS = BatonSettings(size=5, runners=3, rows=2, max_food=2, life=10)
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # little is run: quick to compile
STEP = jit(make_baton_pass(SETTINGS).step)
STEP_EACH = jit(jax.vmap(make_baton_pass(SETTINGS).step, in_axes=(0, None, None)))


def cell(x: int, y: int) -> int:
    return x + 5 * y


def place(**changes) -> BatonState:
    """The first runner at (1, 1) looks east; food at (3, 1), button at (1, 3)."""
    usual = {"cell": cell(1, 1), "food": cell(3, 1), "button": cell(1, 3), "direction": EAST, "life": 10}
    usual |= {"runner": 0, "age": 0, "fed": False, "eaten": 0} | changes
    return BatonState(**{name: jnp.asarray(value) for name, value in usual.items()})


def act(state: BatonState, move: int, turn: int = AHEAD, key: int = 0):
    actions = jnp.zeros((2, 2), jnp.int32).at[int(state.runner) % 2].set(jnp.array([move, turn]))
    return STEP(jax.random.key(key), state, TeamActions(jnp.zeros((2, 0)), actions))


@pytest.mark.parametrize(
    ("move", "turn", "where", "direction"),
    [
        (FORWARD, AHEAD, (2, 1), EAST),
        (BACK, AHEAD, (0, 1), EAST),
        (FORWARD, LEFT, (1, 2), NORTH),
        (BACK, LEFT, (1, 0), NORTH),
        (FORWARD, RIGHT, (1, 0), SOUTH),
        (STAY, RIGHT, (1, 1), SOUTH),
    ],
)
def test_a_runner_turns_first_and_then_moves(move, turn, where, direction):
    state, step = act(place(), move, turn)
    assert (state.cell, state.direction, state.age) == (cell(*where), direction, 1)
    np.testing.assert_allclose(step.reward, [-0.05 / 10, 0.0])
    assert not step.over and not step.terminated.any() and step.view.alive.tolist() == [True, False]


def test_the_edge_stops_it():
    state, _ = act(place(cell=cell(4, 1)), FORWARD)
    assert state.cell == cell(4, 1)
    state, _ = act(place(cell=cell(1, 0)), FORWARD, RIGHT)
    assert state.cell == cell(1, 0)


def test_what_a_runner_sees():
    obs = act(place(), FORWARD, LEFT)[1].view.obs[0]  # at (1, 2), looking north, 1 of 10 decisions made
    # the button is 1 ahead, the food 1 behind and 2 to the right; place (1, 2) on 0..4
    seen = [0.25, 0, -0.25, -0.5, 1, -0.5, 0, 0, 1, 0.9, 2 / 3, 1]
    np.testing.assert_allclose(obs[0], seen, atol=1e-6)
    assert not obs[1].any()
    fed = act(place(fed=True, eaten=1, direction=WEST), STAY)[1].view.obs[0][0]
    # looking west from (1, 1): the button 2 to the right; no food
    np.testing.assert_allclose(fed, [0, -0.5, 0, 0, 0, -0.5, -0.5, -1, 0, 0.9, 2 / 3, 0.5], atol=1e-6)


def test_food_pays_the_group_once():
    state, step = act(place(cell=cell(2, 1)), FORWARD)
    assert step.group_reward.tolist() == [1.0, 0.0] and state.fed and state.eaten == 1 and not step.over
    _, step = act(state._replace(cell=jnp.int32(cell(2, 1))), FORWARD)
    assert not step.group_reward.any()


def test_the_last_food_ends_the_episode():
    _, step = act(place(cell=cell(2, 1), eaten=1), FORWARD)
    assert step.over and step.terminated.tolist() == [True, False] and step.group_reward.tolist() == [1.0, 0.0]
    assert not step.view.alive.any() and not step.truncated.any()
    assert {name: float(value) for name, value in step.stats.items()} == {
        "Environment/Food Eaten": 2.0,
        "Environment/Runners": 1.0,
    }


@pytest.mark.parametrize("fed", [False, True])
def test_who_presses_leaves_and_the_next_one_comes(fed):
    state, step = act(place(cell=cell(1, 2), fed=fed, eaten=int(fed)), FORWARD, LEFT)
    assert step.terminated.tolist() == [True, False] and step.view.alive.tolist() == [False, True] and not step.over
    np.testing.assert_allclose(step.reward, [-0.05 / 10 - 0.1, 0.0])
    assert (state.runner, state.age, state.fed) == (1, 0, False)
    assert len({int(state.cell), int(state.button), int(state.food)}) == 3
    if not fed:
        assert state.food == cell(3, 1)  # what was not eaten stays
    last, first = step.view.obs[0]
    np.testing.assert_allclose(last[5:10], [-0.5, 0.5, 0, 1, 0.9], atol=1e-6)  # on the button at (1, 3), looking north
    np.testing.assert_allclose(first[9:], [1, 1 / 3, 0.5 if fed else 1], atol=1e-6)
    _, after = act(state, STAY)
    assert not after.view.obs[0][0].any() and after.view.alive.tolist() == [False, True]


def test_rows_are_used_again():
    state, step = act(place(cell=cell(1, 2), runner=1), FORWARD, LEFT)
    assert step.terminated.tolist() == [False, True] and step.view.alive.tolist() == [True, False]
    assert state.runner == 2


def test_the_button_does_nothing_for_the_last_runner():
    state, step = act(place(cell=cell(1, 2), runner=2), FORWARD, LEFT)
    assert state.runner == 2 and not step.terminated.any() and step.view.alive.tolist() == [True, False]


def test_life_ends_and_pressing_with_the_last_decision_is_in_time():
    _, step = act(place(age=9), STAY)
    assert step.over and step.terminated.tolist() == [True, False] and not step.view.alive.any()
    assert not act(place(age=8), STAY)[1].over
    state, step = act(place(age=9, cell=cell(1, 2)), FORWARD, LEFT)
    assert not step.over and state.runner == 1


@pytest.fixture(scope="module")
def passes():
    """A fed runner presses in 2000 areas: the keys, the state before, the actions, and what came of it."""
    keys, pressed = jax.random.split(jax.random.key(0), 2000), place(cell=cell(1, 2), fed=True, eaten=1)
    actions = TeamActions(jnp.zeros((2, 0)), jnp.array([[FORWARD, LEFT], [0, 0]], jnp.int32))
    return keys, pressed, actions, STEP_EACH(keys, pressed, actions)


def test_new_runners_and_food_appear_on_all_free_cells(passes):
    state, _ = passes[3]
    runner, food = np.bincount(state.cell, minlength=25), np.bincount(state.food, minlength=25)
    # 23 cells are free for the runner: 2000 / 23 = 87 on each, four deviations of 9.1 around
    assert runner[cell(1, 3)] == runner[cell(3, 1)] == food[cell(1, 3)] == 0
    assert (np.delete(runner, [cell(1, 3), cell(3, 1)]) > 50).all() and runner.max() < 124
    assert (np.delete(food, cell(1, 3)) > 45).all() and not (state.cell == state.food).any()
    assert set(np.unique(state.direction)) == {EAST, NORTH, WEST, SOUTH}


def test_areas_play_as_one_area_alone_does(passes):
    keys, pressed, actions, together = passes
    for area in range(0, 2000, 200):
        here = jax.tree.map(lambda x, e=area: x[e], together)
        jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), STEP(keys[area], pressed, actions), here)


AREAS, STEPS = 32, 250
ENV = ENVIRONMENTS["baton_pass"]()


def random_policy(key, obs):
    return jax.random.randint(key, (2,), 0, 3)


def towards(ahead, left):
    """[move, turn] that goes one cell nearer to what lies `ahead` and `left`, along the looking direction first."""
    straight = jnp.array([jnp.where(ahead > 0, FORWARD, BACK), AHEAD])
    aside = jnp.array([jnp.where(left > 0, FORWARD, BACK), LEFT])
    return jnp.where(jnp.abs(ahead) > 1e-3, straight, aside)


def relay(key, obs):
    """Eat, then press."""
    return jnp.where(obs[4] > 0, towards(obs[2], obs[3]), towards(obs[0], obs[1]))


POLICIES = (random_policy, relay)


@jit
def play(policy, key):
    """All steps [T, E, ...] of `POLICIES[policy]`; and who was alive before each."""
    start_key, play_key = jax.random.split(key)
    parameters = {name: jnp.full(AREAS, value, jnp.float32) for name, value in ENV.parameters.items()}

    def one(carry, key):
        areas, view = carry
        keys = jax.random.split(key, AREAS)
        obs = jnp.where(view.alive[..., None], view.obs[0], 0).sum(axis=1)
        chosen = jnp.stack([jax.vmap(choose)(keys, obs) for choose in POLICIES])[policy]
        discrete = jnp.broadcast_to(chosen[:, None], (AREAS, ENV.members, 2))
        areas, result = advance_areas(ENV, areas, TeamActions(jnp.zeros((AREAS, 2, 0)), discrete), parameters)
        return (areas, result.view), (view.alive, result)

    begun = start_areas(ENV, start_key, AREAS, parameters)
    return jax.lax.scan(one, begun, jax.random.split(play_key, STEPS))[1]


def test_random_play_keeps_the_contract():
    before, result = jax.tree.map(np.asarray, play(POLICIES.index(random_policy), jax.random.key(1)))
    step = result.step
    assert (before.sum(axis=2) == 1).all() and (result.view.alive.sum(axis=2) == 1).all()
    assert not (step.terminated & ~before).any() and not step.truncated.any()
    assert not step.view.alive[step.over].any() and (step.terminated == before)[step.over].all()
    passed = step.terminated.any(axis=2) & ~step.over
    assert passed.sum() > AREAS and (step.view.alive == ~before)[passed].all()  # the mate's row comes to life
    going = ~step.terminated.any(axis=2)
    assert (step.view.alive == before)[going].all()
    assert not step.group_reward[~before].any() and not step.reward[~before].any()
    assert result.view.action_mask.all() and result.view.action_mask.shape == (STEPS, AREAS, 2, 6)
    for view in (step.view, result.view):
        assert view.obs[0].shape == (STEPS, AREAS, 2, OBS_SIZE)
        assert np.isfinite(view.obs[0]).all() and abs(view.obs[0]).max() <= 1
    assert (result.view.alive == [True, False])[step.over].all()
    eaten = step.stats["Environment/Food Eaten"][step.over]
    assert 0.1 < eaten.mean() < 1.5 and len(eaten) > AREAS


def test_a_relay_eats_all_twenty():
    _, result = play(POLICIES.index(relay), jax.random.key(2))
    step = jax.tree.map(np.asarray, result.step)
    assert step.over.sum() >= AREAS
    eaten = step.stats["Environment/Food Eaten"][step.over]
    assert eaten.mean() > 18 and eaten.max() == 20  # some tread on the button on their way to the food
    assert (step.stats["Environment/Runners"][step.over] <= 22).all()
    episode = slice(0, int(np.flatnonzero(step.over[:, 0])[0]) + 1)
    assert step.group_reward[episode, 0].sum() == step.stats["Environment/Food Eaten"][episode, 0][-1]


def test_a_row_for_every_runner_on_request():
    env = make_baton_pass(SETTINGS._replace(rows=22, runners=22))
    state, view = jit(env.reset)(jax.random.key(0), {"life": 3.0})
    assert view.alive.tolist() == [True] + [False] * 21 and state.life == 3
    state = place(cell=cell(1, 2), runner=7)
    actions = jnp.zeros((22, 2), jnp.int32).at[7].set(jnp.array([FORWARD, LEFT]))
    _, step = jit(env.step)(jax.random.key(0), state, TeamActions(jnp.zeros((22, 0)), actions))
    assert np.flatnonzero(step.terminated).tolist() == [7] and np.flatnonzero(step.view.alive).tolist() == [8]


def test_picture_shows_the_food_until_it_is_eaten():
    draw = make_baton_pass(SETTINGS).draw
    hungry, fed = (draw(jax.tree.map(np.asarray, place(fed=fed))) for fed in (False, True))
    assert hungry.size == (5.0, 5.0) and len(hungry.shapes) == len(fed.shapes) + 1
    assert [shape.centre for shape in hungry.shapes if isinstance(shape, Disc)] == [(3.5, 1.5), (1.5, 1.5)]


@pytest.mark.parametrize("bad", [{"size": 1}, {"rows": 1}, {"runners": 0}, {"max_food": 0}, {"life": 0}])
def test_impossible_settings_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        make_baton_pass(BatonSettings(**bad))
