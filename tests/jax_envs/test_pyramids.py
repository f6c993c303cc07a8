"""Pyramids: each rule by hand, what is seen from where, and what is drawn for an episode."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.contract import check_jax_env
from jaxrl.jax_envs.drawing import Polygon
from jaxrl.jax_envs.interface import TeamActions, TeamStep
from jaxrl.jax_envs.pyramids import PyramidsSettings, PyramidsState, make_pyramids
from tests.jax_envs.toy_jax_env import quick_jit

ENV = make_pyramids()  # 3 x 3 rooms of 5 x 5 cells, sight 5, limit 300
STAY, FORWARD, BACK, TURN_LEFT, TURN_RIGHT = range(5)
UP, LEFT, DOWN, RIGHT = range(4)
COST = 1 / 300
SWITCH, GOLD = [0, 4], [6, 0]
STONES = [[12, 0], [4, 10], [16, 6], [0, 16], [6, 16], [16, 16]]
compiled_step = quick_jit(lambda state, actions: ENV.step(jax.random.key(0), state, actions))


def place(position=(2, 2), heading=UP, pressed=False, clock=0) -> PyramidsState:
    """In the middle of the first room, with the switch in its upper left corner; gold belongs into the next room."""
    things = jnp.array([SWITCH, GOLD, *STONES], jnp.int32)
    return PyramidsState(
        jnp.array(position, jnp.int32), jnp.int32(heading), things, jnp.bool_(pressed), jnp.int32(clock)
    )


def act(state: PyramidsState, action: int) -> tuple[PyramidsState, TeamStep]:
    return compiled_step(state, TeamActions(jnp.zeros((1, 0)), jnp.array([[action]], jnp.int32)))


def rays(step: TeamStep) -> list[tuple[int, int]]:
    """(kind, cells away) of the five rays; kind -1: nothing in sight."""
    numbers = np.asarray(step.view.obs[0])[0, 2:].reshape(5, 6)
    return [(int(row[:5].argmax()) if row[:5].any() else -1, round(5 * float(row[5]))) for row in numbers]


WALL, STONE, OFF, ON, BRICK = range(5)


@pytest.mark.parametrize(
    ("action", "position", "heading", "onto", "after", "moved"),
    [
        (STAY, [2, 2], UP, [2, 2], UP, 0),
        (FORWARD, [2, 2], UP, [2, 3], UP, 1),
        (BACK, [2, 2], UP, [2, 1], UP, -1),
        (FORWARD, [2, 2], LEFT, [1, 2], LEFT, 1),
        (BACK, [2, 2], LEFT, [3, 2], LEFT, -1),
        (TURN_LEFT, [2, 2], RIGHT, [2, 2], UP, 0),
        (TURN_RIGHT, [2, 2], UP, [2, 2], RIGHT, 0),
        (FORWARD, [4, 2], RIGHT, [5, 2], RIGHT, 1),  # the doorway
        (FORWARD, [4, 3], RIGHT, [4, 3], RIGHT, 0),  # the wall beside it
        (FORWARD, [0, 2], LEFT, [0, 2], LEFT, 0),
        (FORWARD, [3, 10], RIGHT, [3, 10], RIGHT, 0),  # a pyramid of stone
        (FORWARD, [6, 1], DOWN, [6, 0], DOWN, 1),  # the golden one does not stand yet
    ],
)
def test_moves_turns_and_what_is_not_entered(action, position, heading, onto, after, moved):
    state, step = act(place(position, heading), action)
    assert state.position.tolist() == onto and state.heading == after and not state.pressed
    np.testing.assert_array_equal(step.view.obs[0][0, :2], [0, moved])
    np.testing.assert_allclose(step.reward, [-COST], rtol=1e-5)
    assert not step.over and step.view.alive.all()


def test_the_switch_is_pressed_once_and_raises_the_golden_pyramid():
    before = act(place([0, 3], UP), STAY)[1]
    assert rays(before)[2] == (OFF, 1) and before.view.obs[0][0, 0] == 0
    state, step = act(place([0, 3], UP), FORWARD)
    assert state.pressed and state.position.tolist() == [0, 3] and rays(step)[2] == (ON, 1)
    np.testing.assert_array_equal(step.view.obs[0][0, :2], [1, 0])
    assert float(step.reward[0]) == pytest.approx(-COST) and not step.over
    assert act(state, FORWARD)[0].pressed
    hidden, shown = (rays(act(place([6, 2], DOWN, pressed), STAY)[1])[2] for pressed in (False, True))
    assert hidden == (WALL, 3) and shown == (BRICK, 2)


@pytest.mark.parametrize(("action", "heading"), [(FORWARD, DOWN), (BACK, UP)])
def test_the_brick_pays_two_and_ends_the_episode(action, heading):
    _, step = act(place([6, 1], heading, pressed=True, clock=299), action)
    assert float(step.reward[0]) == pytest.approx(2 - COST)
    assert step.over and step.terminated.all() and not step.truncated.any() and not step.view.alive.any()
    assert {name: float(x) for name, x in step.stats.items()} == {"Environment/Switch": 1.0, "Environment/Brick": 1.0}


def test_the_clock_cuts_off():
    assert not act(place(clock=298), STAY)[1].over
    _, step = act(place(clock=299), STAY)
    assert step.over and step.truncated.all() and not step.terminated.any() and ENV.truncates
    assert float(step.reward[0]) == pytest.approx(-COST)
    assert step.stats["Environment/Switch"] == 0 and step.stats["Environment/Brick"] == 0


def test_rays_by_hand():
    up = act(place(), STAY)[1]
    assert rays(up) == [(WALL, 3), (OFF, 2), (-1, 5), (WALL, 3), (-1, 5)]  # ahead and right: through doorways
    right = act(place([14, 14], RIGHT), STAY)[1]
    assert rays(right) == [(WALL, 3), (STONE, 2), (WALL, 3), (WALL, 3), (-1, 5)]


def test_everything_stands_in_a_room_of_its_own():
    states = jax.vmap(lambda key: quick_jit(ENV.reset)(key, {})[0])(jax.random.split(jax.random.key(1), 200))
    places, middles = np.asarray(states.things), np.asarray(states.position)
    assert (middles % 6 == 2).all() and np.isin(places % 6, (0, 4)).all() and not states.pressed.any()
    rooms = np.concatenate([middles[:, None], places], axis=1) // 6 @ np.array([1, 3])
    np.testing.assert_array_equal(np.sort(rooms), np.broadcast_to(np.arange(9), (200, 9)))
    assert set(rooms[:, 0]) == set(rooms[:, 1]) == set(range(9)) and set(states.heading.tolist()) == set(range(4))


def test_it_keeps_the_contract():
    assert ENV.name == "Pyramids" == ENVIRONMENTS["pyramids"]().name
    check_jax_env(ENV)


@pytest.mark.parametrize("bad", [{"rooms": 1}, {"room": 2}, {"sight": 0}])
def test_impossible_settings_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=" = ".join(map(str, *bad.items()))):
        make_pyramids(PyramidsSettings(**bad))


def test_the_picture_shows_the_golden_pyramid_once_it_stands():
    assert ENV.draw is not None
    for pressed in (False, True):
        scene = ENV.draw(jax.tree.map(np.asarray, place(pressed=pressed)))
        gold = [shape for shape in scene.shapes if isinstance(shape, Polygon) and shape.colour == "#e0aa1e"]
        assert len(gold) == pressed and scene.size == (19.0, 19.0)
