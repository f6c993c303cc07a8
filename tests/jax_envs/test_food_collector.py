"""Food Collector: moves, lasers, meals, endings and what the grid shows, by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.drawing import Disc, Line
from jaxrl.jax_envs.food_collector import FoodSettings, FoodState, make_food_collector
from jaxrl.jax_envs.interface import TeamActions, TeamStep
from tests.jax_envs.toy_jax_env import quick_jit

SMALL = FoodSettings(agents=3, good=2, bad=1, cells=20)
ENV = make_food_collector(SMALL)
compiled_step, compiled_reset = quick_jit(ENV.step), quick_jit(ENV.reset)
UP, RIGHT = np.pi / 2, 0.0
FAR = [[1.0, 23.0], [1.0, 22.0], [1.0, 21.0]]
"""Places where food is in nobody's way."""


def place(position=((6, 6), (12, 12), (18, 18)), angle=(RIGHT, RIGHT, RIGHT), food=None, **changes: Any) -> FoodState:
    return FoodState(
        position=np.array(position, np.float32),
        velocity=np.zeros((3, 2), np.float32),
        angle=np.array(angle, np.float32),
        frozen=np.zeros(3, np.int32),
        shot=np.zeros(3, bool),
        food=np.array(FAR if food is None else food, np.float32),
        eaten=np.zeros(2, np.float32),
        clock=np.int32(0),
        laser_length=np.float32(8.0),
        agent_scale=np.float32(1.0),
    )._replace(**changes)


def act(state: FoodState, *moves: tuple[float, float, float], shoots=()) -> tuple[FoodState, TeamStep]:
    """Agents without a move stay; `shoots` are indices."""
    continuous = np.zeros((3, 3), np.float32)
    continuous[: len(moves)] = np.reshape(moves, (-1, 3))
    discrete = np.isin(np.arange(3), shoots)[:, None].astype(np.int32)
    return compiled_step(jax.random.key(0), state, TeamActions(jnp.asarray(continuous), jnp.asarray(discrete)))


@pytest.mark.parametrize(
    ("angle", "move", "moved"),
    [
        (RIGHT, (1, 0, 0), [0.6, 0.0]),
        (UP, (1, 0, 0), [0.0, 0.6]),
        (RIGHT, (0, 1, 0), [0.0, 0.6]),  # left of one who looks to the right is up
        (UP, (-0.5, 1, 0), [-0.6, -0.3]),
        (RIGHT, (9, 0, 0), [0.6, 0.0]),  # actions are clipped to 1
        (UP - 0.6, (1, 0, 1), [0.0, 0.6]),  # one turns first
    ],
)
def test_moves(angle: float, move: tuple[float, float, float], moved: list[float]) -> None:
    state, step = act(place(angle=(angle, 0, 0)), move)
    np.testing.assert_allclose(state.position[0], 6.0 + np.array(moved), atol=1e-5)
    np.testing.assert_allclose(state.position[1:], [[12, 12], [18, 18]])
    assert not step.reward.any() and not step.over and step.view.alive.all()


def test_one_glides_up_to_speed_1_and_walls_hold() -> None:
    state, _ = act(place(velocity=np.array([[0.4, 0], [0, 0], [0, 0]], np.float32)), (0.5, 0, 0))
    np.testing.assert_allclose(state.velocity[0], [0.5 * 0.4 + 0.5 * 0.6, 0], atol=1e-6)
    state, _ = act(place(velocity=np.array([[1.0, 0], [0, 0], [0, 0]], np.float32)), (1, 0, 0))
    np.testing.assert_allclose(state.velocity[0], [1.0, 0], atol=1e-6)  # 0.5 + 0.6 is shortened
    state, _ = act(place(position=((22.9, 6), (12, 12), (18, 18))), (1, 0, 0))
    np.testing.assert_allclose(state.position[0], [23.0, 6.0])  # a disc of radius 1 in a square of side 24


def test_a_laser_freezes_the_nearest_ahead() -> None:
    """Agent 0 at (6, 6) looks to the right."""
    state, step = act(place(position=((6, 6), (10, 6.9), (13, 6))), shoots=[0])
    assert state.frozen.tolist() == [0, 10, 0] and state.shot.tolist() == [True, False, False]
    np.testing.assert_allclose(step.view.obs[1], [[0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]], atol=1e-6)
    for where in ((10, 7.1), (14.1, 6), (2, 6)):  # beside the line, too far, behind
        assert not act(place(position=((6, 6), where, (6, 20))), shoots=[0])[0].frozen.any()
    longer = place(position=((6, 6), (14.1, 6), (6, 20)), laser_length=np.float32(9.0))
    assert act(longer, shoots=[0])[0].frozen.tolist() == [0, 10, 0]
    both = place(position=((6, 6), (10, 6), (6, 20)), angle=(RIGHT, np.pi, 0))
    assert act(both, shoots=[0, 1])[0].frozen.tolist() == [10, 10, 0]


def test_the_frozen_stand_still_for_ten_decisions() -> None:
    state, _ = act(place(position=((6, 6), (10, 6), (20, 20))), shoots=[0])
    for left in range(10, 0, -1):
        assert state.frozen[1] == left
        state, _ = act(state, (0, 0, 0), (1, 1, 1), shoots=[1])
        assert state.position[1].tolist() == [10, 6] and state.angle[1] == 0 and not state.shot[1]
    state, _ = act(state, (0, 0, 0), (1, 0, 0))
    np.testing.assert_allclose(state.position[1], [10.6, 6])


def test_meals() -> None:
    """Food within 1.5 is eaten by the nearest and appears elsewhere; good food is the first two pieces."""
    state, step = act(place(food=[[7.4, 6], [18, 18], [12, 13.4]]))
    assert step.reward.tolist() == [1, -1, 1] and not step.group_reward.any()
    assert state.eaten.tolist() == [2, 1]
    assert (np.abs(np.asarray(state.food) - [[7.4, 6], [18, 18], [12, 13.4]]).max(axis=1) > 0.1).all()
    assert ((np.asarray(state.food) >= 0.5) & (np.asarray(state.food) <= 23.5)).all()
    two = place(position=((6, 6), (8, 6), (18, 18)), food=[[7.1, 6], [7.4, 6.2], [1, 22]])
    assert act(two)[1].reward.tolist() == [0, 2, 0]
    state, step = act(place(food=[[7.6, 6], [1, 23], [1, 22]]))
    assert not step.reward.any() and state.food[0].tolist() == pytest.approx([7.6, 6])
    larger = place(food=[[7.6, 6], [1, 23], [1, 22]], agent_scale=np.float32(1.2))
    assert act(larger)[1].reward.tolist() == [1, 0, 0]


def test_the_clock_cuts_all_off() -> None:
    before, step = act(place(clock=np.int32(98)))
    assert not step.over and before.clock == 99
    _, step = act(place(clock=np.int32(99), eaten=np.array([6, 3], np.float32)))
    assert step.over and step.truncated.all() and not step.terminated.any() and not step.view.alive.any()
    assert step.stats == {
        "Environment/Good Food": 2.0, "Environment/Bad Food": 1.0, "Environment/Frozen Agents": 0.0
    }  # fmt: skip


def test_a_grid_by_hand() -> None:
    """Agent 0 at (6, 6): cell (row, column) = floor(10 - ahead), floor(10 - left)."""
    state = place(
        position=((6, 6), (9.5, 6.5), (2.5, 8.5)),
        food=[[14.5, 6.5], [6.5, 9.5], [6.5, 2.5]],
        frozen=np.array([0, 0, 5]),
    )
    seen = np.asarray(act(state)[1].view.obs[0])
    assert seen.shape == (3, 5, 20, 20) and seen.dtype == np.uint8 and {*np.unique(seen)} == {0, 255}
    good, bad, moving, frozen, wall = (np.argwhere(channel).tolist() for channel in seen[0])
    assert good == [[1, 9], [9, 6]]  # 8.5 ahead and 0.5 left; 0.5 ahead and 3.5 left
    assert bad == [[9, 13]] and moving == [[6, 9]] and frozen == [[13, 7]]
    # the wall begins 6 behind and 6 to the right: rows from 16, columns from 16
    assert wall == [[row, column] for row in range(20) for column in range(20) if row >= 16 or column >= 16]
    turned = np.asarray(act(state._replace(angle=np.full(3, UP, np.float32)))[1].view.obs[0])
    assert np.argwhere(turned[0, 1]).tolist() == [[13, 10]]  # 3.5 behind, 0.5 to the right
    assert np.argwhere(turned[0, 2]).tolist() == [[9, 13]]  # 0.5 ahead, 3.5 to the right
    assert not seen[1, 2, 10, 10] and [6, 9] not in np.argwhere(seen[1, 2]).tolist()  # nobody sees itself


def test_starts_and_parameters() -> None:
    state, view = compiled_reset(jax.random.key(0), {"laser_length": 3.0, "agent_scale": 1.5})
    assert state.laser_length == 3.0 and state.agent_scale == 1.5 and view.alive.all() and view.action_mask.all()
    again, _ = compiled_reset(jax.random.key(0), {"laser_length": 3.0, "agent_scale": 1.5})
    assert (again.position == state.position).all() and (again.food == state.food).all()
    other, _ = compiled_reset(jax.random.key(1), {"laser_length": 3.0, "agent_scale": 1.5})
    assert (other.position != state.position).all() and (other.food != state.food).all()
    usual = ENVIRONMENTS["food_collector"]()
    assert usual.name == "FoodCollector" and usual.members == 4 and usual.spec.observations[0].shape == (5, 20, 20)
    assert usual.parameters == {"laser_length": 8.0, "agent_scale": 1.0}


@pytest.mark.parametrize("bad", [{"agents": 0}, {"good": 0}, {"cells": 0}, {"side": 4.0}])
def test_impossible_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least one of each is needed, and a side above 4"):
        make_food_collector(FoodSettings(**bad))


def test_the_film_shows_food_agents_and_lasers() -> None:
    assert ENV.draw is not None
    scene = ENV.draw(place(shot=np.array([True, False, False]), frozen=np.array([0, 3, 0])))
    discs = [shape for shape in scene.shapes if isinstance(shape, Disc)]
    assert [disc.colour for disc in discs[:3]] == ["#40a048", "#40a048", "#cc3430"]
    assert [disc.colour for disc in discs[3:]] == ["#264653", "#8fb8e8", "#264653"]
    laser = next(shape for shape in scene.shapes if isinstance(shape, Line))
    assert laser.start == (6.0, 6.0) and laser.end == (14.0, 6.0)
