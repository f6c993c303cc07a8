"""Hallway: each rule by hand, what is seen from where, and what a planned walk and a guess earn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.drawing import Box, Disc
from jaxrl.jax_envs.hallway import HallwaySettings, HallwayState, make_hallway
from jaxrl.jax_envs.interface import TeamActions, TeamStep, advance_areas, start_areas
from tests.jax_envs.toy_jax_env import quick_jit

ENV = make_hallway(HallwaySettings())  # 8 rows, sight 3, limit 100
STAY, FORWARD, TURN_LEFT, TURN_RIGHT = range(4)
ALONG, TO_LEFT, RETURNING, TO_RIGHT = range(4)
CROSS, RING = 0, 1
COST = 0.0003
compiled_step = quick_jit(lambda state, actions: ENV.step(jax.random.key(0), state, actions))


def place(**changes) -> HallwayState:
    """In the middle of the first row; the sign is a ring, the door with the ring is in column 2."""
    state = HallwayState(
        position=jnp.array([1, 0]),
        heading=jnp.int32(ALONG),
        symbol=jnp.int32(RING),
        left_door=jnp.int32(CROSS),
        length=jnp.int32(8),
        clock=jnp.int32(0),
    )
    return state._replace(**{name: jnp.asarray(value, jnp.int32) for name, value in changes.items()})


def act(state: HallwayState, action: int) -> tuple[HallwayState, TeamStep]:
    return compiled_step(state, TeamActions(jnp.zeros((1, 0)), jnp.array([[action]], jnp.int32)))


def rays(state: HallwayState) -> list[tuple[int, float]]:
    """(kind, cells away) of the five rays after a decision that changes nothing; kind -1: nothing in sight."""
    numbers = np.asarray(act(state, STAY)[1].view.obs[0])[0, 4:].reshape(5, 6)
    return [(int(row[:5].argmax()) if row[:5].any() else -1, round(3 * float(row[5]), 3)) for row in numbers]


@pytest.mark.parametrize(
    ("action", "heading", "position", "after"),
    [
        (STAY, ALONG, [1, 1], ALONG),
        (FORWARD, ALONG, [1, 2], ALONG),
        (FORWARD, TO_LEFT, [0, 1], TO_LEFT),
        (FORWARD, RETURNING, [1, 0], RETURNING),
        (FORWARD, TO_RIGHT, [2, 1], TO_RIGHT),
        (TURN_LEFT, ALONG, [1, 1], TO_LEFT),
        (TURN_RIGHT, ALONG, [1, 1], TO_RIGHT),
        (TURN_LEFT, TO_RIGHT, [1, 1], ALONG),
    ],
)
def test_moves_and_turns(action, heading, position, after):
    state, step = act(place(position=[1, 1], heading=heading), action)
    assert state.position.tolist() == position and state.heading == after
    np.testing.assert_array_equal(step.view.obs[0][0, :4], np.eye(4)[after])
    np.testing.assert_allclose(step.reward, [-COST], rtol=1e-5)
    assert not step.over and step.view.alive.all()


@pytest.mark.parametrize(
    ("position", "heading"),
    [([0, 1], TO_LEFT), ([2, 0], TO_RIGHT), ([1, 0], RETURNING), ([0, 1], ALONG), ([1, 3], TO_RIGHT), ([1, 7], ALONG)],
)
def test_walls_are_not_entered(position, heading):
    state, step = act(place(position=position, heading=heading), FORWARD)
    assert state.position.tolist() == position and not step.over


@pytest.mark.parametrize(
    ("symbol", "column", "reward"), [(RING, 2, 1), (RING, 0, -0.1), (CROSS, 0, 1), (CROSS, 2, -0.1)]
)
def test_the_door_that_shows_the_sign_pays(symbol, column, reward):
    heading = TO_LEFT if column == 0 else TO_RIGHT
    _, step = act(place(symbol=symbol, position=[1, 7], heading=heading), FORWARD)
    assert float(step.reward[0]) == pytest.approx(reward - COST)
    assert step.over and step.terminated.all() and not step.truncated.any() and not step.view.alive.any()
    figures = {name: float(value) for name, value in step.stats.items()}
    assert figures == {"Environment/Right Door": float(reward == 1), "Environment/Some Door": 1.0}
    mirrored = place(symbol=1 - symbol, left_door=RING, position=[1, 7], heading=heading)
    assert float(act(mirrored, FORWARD)[1].reward[0]) == pytest.approx(reward - COST)


def test_the_sign_and_the_middle_of_the_last_row_are_floor():
    state, step = act(place(), FORWARD)
    assert state.position.tolist() == [1, 1] and not step.over
    state, step = act(place(position=[1, 6]), FORWARD)
    assert state.position.tolist() == [1, 7] and not step.over


def test_the_clock_cuts_off():
    assert not act(place(clock=98), STAY)[1].over
    _, step = act(place(clock=99), STAY)
    assert step.over and step.truncated.all() and not step.terminated.any() and ENV.truncates
    assert float(step.reward[0]) == pytest.approx(-COST) and step.stats["Environment/Some Door"] == 0
    _, step = act(place(clock=99, position=[1, 7], heading=TO_RIGHT), FORWARD)
    assert step.terminated.all() and not step.truncated.any() and float(step.reward[0]) == pytest.approx(1 - COST)


WALL, SIGN, DOOR = 0, 1, 3  # kinds as rays show them; signs and doors with a ring one more


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        # first row, middle: walls two cells to either side, the sign ahead
        (place(), [(WALL, 2), (WALL, 2), (SIGN + RING, 1), (WALL, 2), (WALL, 2)]),
        (place(symbol=CROSS), [(WALL, 2), (WALL, 2), (SIGN, 1), (WALL, 2), (WALL, 2)]),
        # from the outer columns it lies slantwise
        (place(position=[0, 0]), [(WALL, 1), (WALL, 1), (WALL, 2), (SIGN + RING, 1), (WALL, 3)]),
        (place(position=[2, 0]), [(WALL, 3), (SIGN + RING, 1), (WALL, 2), (WALL, 1), (WALL, 1)]),
        # third row: it is behind
        (place(position=[1, 2]), [(WALL, 1), (WALL, 1), (-1, 3), (WALL, 1), (WALL, 1)]),
        # before the last row: both doors slantwise, the wall two ahead
        (place(position=[1, 6]), [(WALL, 1), (DOOR, 1), (WALL, 2), (DOOR + RING, 1), (WALL, 1)]),
        # on the last row: doors to the left and right; looking to the right one of them ahead
        (place(position=[1, 7]), [(DOOR, 1), (WALL, 1), (WALL, 1), (WALL, 1), (DOOR + RING, 1)]),
        (place(position=[1, 7], heading=TO_RIGHT), [(WALL, 1), (WALL, 1), (DOOR + RING, 1), (WALL, 1), (-1, 3)]),
    ],
)  # fmt: skip
def test_rays_by_hand(state, expected):
    assert rays(state) == expected


def test_without_memory_the_doors_cannot_be_told_apart():
    """Ahead from the third row on, and whichever way one looks out of the sign's sight, the sign changes nothing."""
    views = [(row, ALONG) for row in range(2, 8)] + [(row, way) for row in range(5, 8) for way in range(4)]
    for row, heading in views:
        for door in (CROSS, RING):
            signs = (place(position=[1, row], heading=heading, symbol=s, left_door=door) for s in (RING, CROSS))
            ring, cross = map(rays, signs)
            assert ring == cross


@pytest.mark.parametrize(("column", "way", "decisions"), [(1, [], 9), (0, [TURN_RIGHT, FORWARD, TURN_LEFT], 12)])
def test_a_planned_walk_earns_the_most(column, way, decisions):
    """To the middle, 7 forward to the last row, a turn to the door in column 2, one more: 1 - 0.0003 a decision."""
    state, step = act(place(position=[column, 0]), STAY)
    state, total = state._replace(clock=jnp.int32(0)), 0.0
    actions = [*way, *[FORWARD] * 7, TURN_RIGHT, FORWARD]
    assert len(actions) == decisions
    for action in actions:
        assert not step.over
        state, step = act(state, action)
        total += float(step.reward[0])
    assert step.over and total == pytest.approx(1 - decisions * COST)


def test_the_length_is_a_parameter_and_everything_is_drawn_by_the_key():
    reset = quick_jit(ENV.reset)
    assert ENV.parameters == {"length": 8.0} and ENV.name == "Hallway" == ENVIRONMENTS["hallway"]().name
    assert [int(reset(jax.random.key(0), {"length": n})[0].length) for n in (1.0, 5.0, 30.0)] == [4, 5, 30]
    states = jax.vmap(lambda key: reset(key, {})[0])(jax.random.split(jax.random.key(1), 400))
    columns = states.position[:, 0].tolist()
    drawn = set(zip(columns, states.symbol.tolist(), states.left_door.tolist(), strict=True))
    assert len(drawn) == 3 * 2 * 2 and not states.position[:, 1].any() and not states.heading.any()
    again = reset(jax.random.key(0), {})
    jax.tree.map(np.testing.assert_array_equal, again, reset(jax.random.key(0), {}))


def test_random_play_keeps_the_contract():
    areas, steps = 32, 150
    parameters = {"length": jnp.full(areas, 8.0)}

    @quick_jit
    def play(key):
        def one(carry, key):
            discrete = jax.random.randint(key, (areas, 1, 1), 0, 4)
            running, result = advance_areas(ENV, carry, TeamActions(jnp.zeros((areas, 1, 0)), discrete), parameters)
            return running, (result, running.state)

        running, _ = start_areas(ENV, key, areas, parameters)
        return jax.lax.scan(one, running, jax.random.split(key, steps))[1]

    result, state = jax.tree.map(np.asarray, play(jax.random.key(2)))
    (obs,) = result.step.view.obs
    assert np.isfinite(obs).all() and obs.min() >= 0.0 and obs.max() <= 1.0 and obs.dtype == np.float32
    ended = result.step.terminated | result.step.truncated
    np.testing.assert_array_equal(ended[..., 0], result.step.over)
    assert result.view.alive.all() and result.step.over[:100].any(axis=0).all()
    assert ((state.position >= 0) & (state.position < [3, 8])).all()
    assert (state.position[state.position[..., 1] > 1][:, 0] == 1).all()  # a door ends the episode


@pytest.mark.parametrize(("bad", "text"), [({"length": 3}, "length = 3"), ({"sight": 0}, "sight = 0")])
def test_impossible_settings_are_refused_by_name(bad, text):
    with pytest.raises(ValueError, match=text):
        make_hallway(HallwaySettings(**bad))


def test_the_picture_shows_sign_doors_and_agent():
    assert ENV.draw is not None
    scene = ENV.draw(jax.tree.map(np.asarray, place(position=[2, 0])))
    assert scene.size == (8.8, 3.8)
    agent = next(shape for shape in scene.shapes if isinstance(shape, Disc) and shape.colour == "#3b6fb6")
    assert agent.centre == pytest.approx((0.9, 0.9))  # the first row, the column at the bottom
    assert sum(isinstance(shape, Box) for shape in scene.shapes) == 5  # corridor, room, sign, two doors
    rings = [shape.centre for shape in scene.shapes if isinstance(shape, Disc) and shape.colour == "#ffffff"]
    np.testing.assert_allclose(rings, [(1.9, 1.9), (7.9, 0.9)])
