"""Sorter: each rule by hand, a variable number of tiles, and what a policy that reads the numbers earns."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.drawing import Box, Disc
from jaxrl.jax_envs.interface import TeamActions, TeamStep, advance_areas, start_areas
from jaxrl.jax_envs.sorter import SorterSettings, SorterState, make_sorter
from jaxrl.types import DimensionProperty
from tests.jax_envs.toy_jax_env import quick_jit

ENV = make_sorter(SorterSettings(max_tiles=4, num_tiles=3))  # stride 0.15, turn 0.4, reach 0.1, limit 300
REST, FORWARD, BACK, LEFT, RIGHT, TURN = (0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 0), (0, 2, 0), (0, 0, 1)
COST = 0.001
compiled_step = quick_jit(lambda state, actions: ENV.step(jax.random.key(0), state, actions))


def place(**changes) -> SorterState:
    """In the middle, looking to +x; tiles 7, 3 and 12 at +x, +y, -x; the fourth row is empty."""
    state = SorterState(
        position=jnp.zeros(2),
        way=jnp.array([1.0, 0.0]),
        tile=jnp.array([[0.8, 0.0], [0.0, 0.9], [-0.75, 0.0], [0.0, 0.0]]),
        number=jnp.array([7, 3, 12, 0]),
        visited=jnp.zeros(4, bool),
        clock=jnp.int32(0),
    )
    return state._replace(**{name: jnp.asarray(value, getattr(state, name).dtype) for name, value in changes.items()})


def act(state: SorterState, action: tuple[int, int, int]) -> tuple[SorterState, TeamStep]:
    return compiled_step(state, TeamActions(jnp.zeros((1, 0)), jnp.array([action], jnp.int32)))


@pytest.mark.parametrize(
    ("action", "position"),
    [
        (REST, [0.0, 0.0]),
        (FORWARD, [0.15, 0.0]),
        (BACK, [-0.15, 0.0]),
        (LEFT, [0.0, 0.15]),
        (RIGHT, [0.0, -0.15]),
        ((1, 1, 0), [0.15 / math.sqrt(2), 0.15 / math.sqrt(2)]),  # slantwise, no farther
        ((1, 0, 1), [0.15 * math.cos(0.4), 0.15 * math.sin(0.4)]),  # it turns first
        ((0, 0, 2), [0.0, 0.0]),
    ],
)
def test_moves(action, position):
    state, step = act(place(), action)
    np.testing.assert_allclose(state.position, position, atol=1e-6)
    angle = {0: 0.0, 1: 0.4, 2: -0.4}[action[2]]
    np.testing.assert_allclose(state.way, [math.cos(angle), math.sin(angle)], atol=1e-6)
    assert float(step.reward[0]) == pytest.approx(-COST) and not step.over and step.view.alive.all()


def test_the_rim_holds_the_agent():
    state, _ = act(place(position=[0.6, 0.78], way=[0.6, 0.8]), FORWARD)  # 0.984 + 0.15 from the middle, cut to 1
    assert float(jnp.linalg.norm(state.position)) == pytest.approx(1.0)


def test_the_lowest_number_pays_and_the_next_one_follows():
    state, step = act(place(position=[0.0, 0.7], way=[0.0, 1.0]), FORWARD)  # 0.05 from tile 3
    assert float(step.reward[0]) == pytest.approx(1 - COST) and not step.over
    assert state.visited.tolist() == [False, True, False, False]
    state, step = act(state, REST)  # again the same tile: nothing
    assert float(step.reward[0]) == pytest.approx(-COST) and not step.over
    state, step = act(state._replace(position=jnp.array([0.75, 0.0])), REST)  # 7 is the lowest now
    assert float(step.reward[0]) == pytest.approx(1 - COST) and not step.over
    assert step.stats["Environment/Tiles In Order"] == 2
    state, step = act(state._replace(position=jnp.array([-0.75, 0.0])), REST)
    assert float(step.reward[0]) == pytest.approx(1 - COST)
    assert step.over and step.terminated.all() and not step.truncated.any() and not step.view.alive.any()
    assert {k: float(v) for k, v in step.stats.items()} == {
        "Environment/Tiles In Order": 3.0,
        "Environment/All In Order": 1.0,
    }


@pytest.mark.parametrize("tile", [[0.8, 0.0], [-0.75, 0.0]])
def test_any_other_number_costs_and_ends(tile):
    _, step = act(place(position=tile), REST)
    assert float(step.reward[0]) == pytest.approx(-1 - COST)
    assert step.over and step.terminated.all() and step.stats["Environment/Tiles In Order"] == 0
    assert step.stats["Environment/All In Order"] == 0


def test_a_tile_farther_than_reach_is_not_touched_and_empty_rows_are_no_tiles():
    state, step = act(place(position=[0.69, 0.0]), REST)  # 0.11 from tile 7
    assert not state.visited.any() and not step.over
    state, step = act(place(), REST)  # the empty row lies at (0, 0)
    assert not state.visited.any() and not step.over


def test_the_clock_ends_the_episode():
    assert not act(place(clock=298), REST)[1].over
    _, step = act(place(clock=299), REST)
    assert step.over and step.terminated.all() and not step.truncated.any() and step.view.obs[1][0, 4] == 0.0


def test_observations_by_hand():
    """Looking to +y from (0.3, 0): tile 7 is 0.5 to the right, tile 3 is 0.9 ahead and 0.3 left, all halved."""
    seen = place(position=[0.3, 0.0], way=[0.0, 1.0], visited=[False, True, False, False], clock=29)
    tiles, own = (np.asarray(x)[0] for x in act(seen, REST)[1].view.obs)
    expected = [[0.0, -0.25, 7 / 20, 0, 1], [0.45, 0.15, 3 / 20, 1, 0], [0.0, 1.05 / 2, 12 / 20, 0, 1], [0] * 5]
    np.testing.assert_allclose(tiles, expected, atol=1e-6)
    np.testing.assert_allclose(own, [0.3, 0.0, 0.0, 1.0, 0.9], atol=1e-6)
    tiles_spec, own_spec = ENV.spec.observations
    assert tiles_spec.shape == (4, 5) and own_spec.shape == (5,)
    assert tiles_spec.dimension_property == (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)


def test_a_tile_under_the_agent_is_present_and_an_empty_row_absent():
    """The trainer takes an entity for absent if its squares add up to less than 0.01."""
    tiles = np.asarray(act(place(position=[0.8, 0.0], number=[1, 3, 12, 0]), REST)[1].view.obs[0])[0]
    assert (np.square(tiles).sum(axis=1) >= 0.01).tolist() == [True, True, True, False]


@pytest.mark.parametrize(("wanted", "count"), [(-3.0, 1), (1.0, 1), (2.6, 3), (20.0, 20), (99.0, 20)])
def test_as_many_tiles_as_the_parameter_says(wanted, count):
    env = ENVIRONMENTS["sorter"]()
    assert env.name == "Sorter" and env.parameters == {"num_tiles": 2.0} and env.spec.observations[0].shape == (20, 5)
    keys = jax.random.split(jax.random.key(0), 100)
    states, view = jax.tree.map(np.asarray, quick_jit(jax.vmap(env.reset, (0, None)))(keys, {"num_tiles": wanted}))
    assert ((states.number > 0).sum(axis=1) == count).all() and (view.obs[0].any(axis=-1).sum(axis=-1) == count).all()
    for number, tile in zip(states.number, states.tile, strict=True):
        drawn = number[number > 0]
        assert len(set(drawn)) == count and drawn.max() <= 20
        apart = np.linalg.norm(tile[:count, None] - tile[None, :count], axis=-1) + 9 * np.eye(count)
        assert apart.min() > 0.2  # never two within reach
    radius = np.linalg.norm(states.tile[:, :count], axis=-1)
    assert radius.min() >= 0.75 - 1e-6 and radius.max() <= 0.95 + 1e-6
    if count == 20:
        assert (np.sort(states.number, axis=1) == np.arange(1, 21)).all()
    else:
        assert len(set(states.number[:, 0])) > 15  # every number comes first some time


def play_reading(env, key, areas: int, steps: int, parameters, reads: bool):
    """Walk to the lowest number left (or, not `reads`, to the first tile left), turning and stepping as needed."""

    def choose(view):
        tiles = view.obs[0][:, 0]  # [E, N, 5]
        number = tiles[..., 2] if reads else jnp.arange(1.0, tiles.shape[1] + 1)
        order = jnp.where(tiles[..., 4] > 0, number, 9e9)
        to = jnp.take_along_axis(tiles, jnp.argmin(order, axis=1)[:, None, None], axis=1)[:, 0, :2]
        sign = jnp.where(jnp.abs(to) < 0.02, 0, jnp.where(to > 0, 1, 2))  # halved: nearer than 0.04 needs no step
        return jnp.concatenate([sign, jnp.zeros_like(sign[:, :1])], axis=1)[:, None].astype(jnp.int32)

    def one(carry, _):
        running, view = carry
        running, result = advance_areas(env, running, TeamActions(jnp.zeros((areas, 1, 0)), choose(view)), parameters)
        return (running, result.view), result.step

    return jax.lax.scan(one, start_areas(env, key, areas, parameters), None, steps)[1]


def test_a_policy_that_reads_the_numbers_sorts_them_and_one_that_does_not_fails():
    areas, steps, tiles = 16, 150, 3
    parameters = {"num_tiles": jnp.full(areas, float(tiles))}
    returns = {}
    for reads in (True, False):
        play = quick_jit(lambda key, reads=reads: play_reading(ENV, key, areas, steps, parameters, reads))
        step = jax.tree.map(np.asarray, play(jax.random.key(3)))
        assert step.over.sum() > areas
        assert not step.truncated.any() and np.isfinite(step.view.obs[0]).all()
        assert all(abs(obs).max() <= 1.0 + 1e-6 for obs in step.view.obs)
        returns[reads] = step.stats["Environment/Tiles In Order"][step.over].mean()
    assert returns[True] > 2.9
    # right with 1/3, then 1/2, then surely: 1/3 * (1 + 1/2 * 2) = 2/3 tiles
    assert returns[False] == pytest.approx(2 / 3, abs=0.3)


@pytest.mark.parametrize(
    ("bad", "text"),
    [({"max_tiles": 0}, "max_tiles = 0"), ({"max_tiles": 21}, "max_tiles = 21"), ({"reach": 0.2}, "reach")],
)
def test_impossible_settings_are_refused_by_name(bad, text):
    with pytest.raises(ValueError, match=text):
        make_sorter(SorterSettings(**bad))


def test_the_picture_shows_tiles_with_their_numbers_and_the_agent():
    assert ENV.draw is not None
    scene = ENV.draw(jax.tree.map(np.asarray, place(visited=[False, True, False, False], position=[0.1, 0.2])))
    tiles = {shape.label: shape for shape in scene.shapes if isinstance(shape, Box)}
    assert set(tiles) == {"7", "3", "12"} and tiles["3"].colour != tiles["7"].colour
    np.testing.assert_allclose(tiles["7"].centre, (1.15 + 0.8, 1.15), atol=1e-6)
    agent = [shape for shape in scene.shapes if isinstance(shape, Disc)][-1]
    np.testing.assert_allclose(agent.centre, (1.25, 1.35), atol=1e-6)
