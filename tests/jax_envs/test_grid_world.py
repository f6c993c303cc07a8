"""Grid World: rewards, masks, endings and both sensors by hand, and the best mean return by counting ways."""

from __future__ import annotations

from collections import deque
from itertools import permutations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.drawing import Box, Line
from jaxrl.jax_envs.grid_world import EX, PLUS, GridWorldSettings, GridWorldState, make_grid_world, make_grid_world_grid
from jaxrl.jax_envs.interface import JaxEnv, TeamActions, TeamStep
from jaxrl.types import ObservationType
from tests.jax_envs.toy_jax_env import quick_jit

CAMERA, GRID = ENVIRONMENTS["grid_world"](), ENVIRONMENTS["grid_world_grid"]()
STAY, UP, DOWN, LEFT, RIGHT = range(5)
GROUND, AGENT, GREEN, RED = [16, 16, 16], [60, 120, 230], [64, 160, 72], [204, 52, 48]


compiled = {env.name: quick_jit(env.step) for env in (CAMERA, GRID)}


def place(position=(2, 2), plus=(0, 0), ex=(4, 4), wanted=PLUS, clock=0) -> GridWorldState:
    """One sign of each kind; the second of each is not there, though it stands where the agent begins."""
    sign = np.array([[plus, (2, 2)], [ex, (2, 2)]], np.int32)
    return GridWorldState(
        position=np.array(position, np.int32),
        sign=sign,
        there=np.array([[True, False], [True, False]]),
        wanted=np.int32(wanted),
        clock=np.int32(clock),
    )


def act(state: GridWorldState, *moves: int, env: JaxEnv = GRID) -> tuple[GridWorldState, TeamStep, float]:
    """State and last step after some moves, and what they earned."""
    total, step = 0.0, None
    for move in moves:
        actions = TeamActions(continuous=jnp.zeros((1, 0)), discrete=jnp.array([[move]], jnp.int32))
        state, step = compiled[env.name](jax.random.key(0), state, actions)
        total += float(step.reward[0])
    assert step is not None
    return state, step, total


@pytest.mark.parametrize(
    ("move", "position"), [(STAY, [2, 2]), (UP, [2, 3]), (DOWN, [2, 1]), (LEFT, [1, 2]), (RIGHT, [3, 2])]
)
def test_moves(move: int, position: list[int]) -> None:
    state, step, earned = act(place(), move)
    assert state.position.tolist() == position and earned == pytest.approx(-0.01)
    assert not step.over and not step.terminated.any() and not step.truncated.any() and step.view.alive.all()


@pytest.mark.parametrize(
    ("wanted", "moves", "earned"),
    [
        (PLUS, [DOWN, DOWN, LEFT, LEFT], 1 - 4 * 0.01),
        (EX, [DOWN, DOWN, LEFT, LEFT], -1 - 4 * 0.01),
        (EX, [UP, STAY, RIGHT, RIGHT, UP], 1 - 5 * 0.01),
        (PLUS, [UP, STAY, RIGHT, RIGHT, UP], -1 - 5 * 0.01),
    ],
)
def test_the_goal_signal_decides_which_sign_pays(wanted: int, moves: list[int], earned: float) -> None:
    _, before, _ = act(place(wanted=wanted), *moves[:-1])
    assert not before.over and before.view.obs[1].tolist() == [[wanted == PLUS, wanted == EX]]
    _, step, total = act(place(wanted=wanted), *moves)
    assert total == pytest.approx(earned)
    assert step.over and step.terminated.all() and not step.truncated.any() and not step.view.alive.any()
    assert step.view.action_mask.all()
    assert step.stats == {"Environment/Right Goal": earned > 0, "Environment/Wrong Goal": earned < 0}


@pytest.mark.parametrize(
    ("position", "forbidden"),
    [((2, 2), []), ((0, 2), [LEFT]), ((4, 2), [RIGHT]), ((2, 0), [DOWN]), ((2, 4), [UP]), ((4, 0), [DOWN, RIGHT])],
)
def test_walls_are_masked_and_hold(position: tuple[int, int], forbidden: list[int]) -> None:
    _, step, _ = act(place(position), STAY)
    assert np.flatnonzero(~np.asarray(step.view.action_mask[0])).tolist() == forbidden
    for move in forbidden:
        assert act(place(position), move)[0].position.tolist() == list(position)


def test_the_clock_cuts_off() -> None:
    assert not act(place(clock=98), STAY)[1].over
    _, step, _ = act(place(clock=99), STAY)
    assert step.over and step.truncated.all() and not step.terminated.any() and not step.view.alive.any()
    _, step, earned = act(place((1, 0), clock=99), LEFT)  # the sign is reached with the last decision
    assert step.terminated.all() and not step.truncated.any() and earned == pytest.approx(0.99)


def test_a_grid_by_hand() -> None:
    _, step, _ = act(place(plus=(0, 3), ex=(4, 4), wanted=EX), DOWN)
    agent, plus, ex = np.asarray(step.view.obs[0][0])
    assert np.argwhere(agent).tolist() == [[3, 2]]  # y = 1 is the fourth row from the top
    assert np.argwhere(plus).tolist() == [[1, 0]] and np.argwhere(ex).tolist() == [[0, 4]]
    assert step.view.obs[0].dtype == np.uint8 and {*np.unique(step.view.obs[0])} == {0, 255}


def test_a_picture_by_hand() -> None:
    """Four pixels to a cell: the plus sign covers the middle two columns and rows, the cross both diagonals."""
    _, step, _ = act(place(plus=(0, 4), ex=(4, 0)), RIGHT, env=CAMERA)
    picture = np.asarray(step.view.obs[0][0]).transpose(1, 2, 0)
    assert picture.shape == (20, 20, 3) and picture.dtype == np.uint8
    assert (picture[8:12, 12:16] == AGENT).all()  # the agent at (3, 2)
    plus = [[GROUND if {row, column} <= {0, 3} else GREEN for column in range(4)] for row in range(4)]
    assert picture[:4, :4].tolist() == plus
    ex = [[RED if column in (row, 3 - row) else GROUND for column in range(4)] for row in range(4)]
    assert picture[16:, 16:].tolist() == ex
    rest = np.ones((20, 20), bool)
    rest[8:12, 12:16] = rest[:4, :4] = rest[16:, 16:] = False
    assert (picture[rest] == GROUND).all()


def test_both_say_what_they_show() -> None:
    for env, shape in ((CAMERA, (3, 20, 20)), (GRID, (3, 5, 5))):
        sensor, goal = env.spec.observations
        assert sensor.shape == shape and sensor.dtype == "uint8"
        assert goal.observation_type is ObservationType.GOAL_SIGNAL and goal.shape == (2,)
    assert (CAMERA.name, GRID.name) == ("GridWorld", "GridWorldGrid")


def test_starts() -> None:
    """Cells of their own, both kinds wanted about equally often, the same by key; parameters set the signs."""
    reset = quick_jit(jax.vmap(GRID.reset))
    keys, usual = jax.random.split(jax.random.key(0), 400), {name: np.ones(400) for name in GRID.parameters}
    state, view = reset(keys, usual)
    cells = np.concatenate([state.position[:, None], state.sign[:, :, 0]], axis=1)
    assert len(np.unique(cells @ [1, 5], axis=0)) > 350 and cells.min() >= 0 and cells.max() == 4
    assert all(len({*map(tuple, of_area)}) == 3 for of_area in cells.tolist())
    assert state.there.tolist() == [[[True, False]] * 2] * 400
    assert 160 < int(state.wanted.sum()) < 240  # 200 expected, four standard deviations are 40
    again, _ = reset(keys, usual)
    assert all((a == b).all() for a, b in zip(state, again, strict=True))
    more, view = reset(keys, usual | {"plus_goals": np.full(400, 9.0)})
    assert more.there.tolist() == [[[True, True], [True, False]]] * 400
    assert ((np.asarray(view.obs[0][:, 0]) > 0).sum(axis=(2, 3)) == [1, 2, 1]).all()


def test_the_best_mean_return() -> None:
    """0.9664: the mean over all places of 1 - 0.01 · way, by breadth-first search around the wrong sign."""
    ways = [ways_to(goal, wrong) for goal, wrong in permutations(product(range(5), range(5)), 2)]
    assert 1 - 0.01 * np.concatenate(ways).mean() == pytest.approx(0.9664, abs=5e-5)


def ways_to(goal: tuple[int, int], wrong: tuple[int, int]) -> list[int]:
    """Length of the shortest way to the goal from every cell but the two."""
    found, waiting = {goal: 0}, deque([goal])
    while waiting:
        x, y = waiting.popleft()
        for cell in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
            if min(cell) >= 0 and max(cell) < 5 and cell != wrong and cell not in found:
                found[cell] = found[x, y] + 1
                waiting.append(cell)
    return [way for way in found.values() if way]


@pytest.mark.parametrize("make", [make_grid_world, make_grid_world_grid])
def test_impossible_settings_are_refused_by_name(make) -> None:
    for bad in ({"size": 2, "most_goals": 2}, {"cell_pixels": 0}, {"most_goals": 0}):
        with pytest.raises(ValueError, match=r"cell_pixels = .*, most_goals = .*, size = "):
            make(GridWorldSettings(**bad))


def test_the_film_shows_what_is_wanted_and_where_all_are() -> None:
    assert GRID.draw is not None
    scene = GRID.draw(place((3, 1), plus=(0, 2), wanted=EX))
    bar, *cells, agent = [shape for shape in scene.shapes if isinstance(shape, Box)]
    assert bar.colour == "#cc3430" and len(cells) == 25 and agent.centre == (3.5, 1.5)
    green = [shape for shape in scene.shapes if isinstance(shape, Line) and shape.colour == "#40a048"]
    assert len(green) == 2 and {shape.start for shape in green} == {(0.5 - 0.34, 2.5), (0.5, 2.5 + 0.34)}
