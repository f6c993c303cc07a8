"""Collaborative Push Block: each rule by hand, what a planned team earns, and what can be set."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from push_block_moves import (
    BACK,
    COST,
    ENV,
    FORWARD,
    FROM_GOAL,
    LARGE,
    MEDIUM,
    REST,
    SMALL,
    STEP_LEFT,
    STEP_RIGHT,
    TO_GOAL,
    TO_LEFT,
    TO_RIGHT,
    TURN_LEFT,
    TURN_RIGHT,
    act,
    place,
    quick_jit,
)

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.drawing import Box, Disc
from jaxrl.jax_envs.push_block import PushBlockSettings, make_push_block


@pytest.mark.parametrize(
    ("action", "heading", "position"),
    [
        (REST, TO_GOAL, [3, 1]),
        (FORWARD, TO_GOAL, [3, 2]),
        (BACK, TO_GOAL, [3, 0]),
        (TURN_LEFT, TO_LEFT, [3, 1]),
        (TURN_RIGHT, TO_RIGHT, [3, 1]),
        (STEP_LEFT, TO_GOAL, [2, 1]),
        (STEP_RIGHT, TO_GOAL, [4, 1]),
    ],
)
def test_moves_and_turns(action, heading, position):
    state, step = act(place(), REST, action, REST)
    assert state.position[1].tolist() == position and state.heading[1] == heading
    np.testing.assert_allclose(step.group_reward, [-COST] * 3)
    assert not step.over and not step.terminated.any() and not step.truncated.any() and step.view.alive.all()


def test_moves_follow_the_way_one_looks_and_walls_are_masked():
    state = place(position=[[0, 0], [6, 2], [3, 1]], heading=[TO_LEFT, TO_RIGHT, FROM_GOAL])
    state, step = act(state, FORWARD, STEP_LEFT, STEP_LEFT)
    assert state.position.tolist() == [[0, 0], [6, 3], [4, 1]]  # wall; left of +x is +y; left of -y is +x
    # agent 0 in the corner (0, 0) looks to -x: ahead and left (-y) are walls, back and right are free
    assert step.view.action_mask[0].tolist() == [True, False, True, True, True, False, True]


def test_a_small_block_is_pushed_by_one_who_follows():
    state, _ = act(place(position=[[1, 2], [3, 1], [6, 1]]), FORWARD, REST, REST)
    assert state.block[SMALL].tolist() == [1, 4] and state.position[0].tolist() == [1, 3]
    state, _ = act(place(position=[[0, 3], [3, 1], [6, 1]]), STEP_RIGHT, REST, REST)  # any move pushes
    assert state.block[SMALL].tolist() == [2, 3] and state.position[0].tolist() == [1, 3]


@pytest.mark.parametrize(("pushers", "moves"), [(1, False), (2, True), (3, True)])
def test_a_medium_block_needs_two_in_the_same_decision(pushers, moves):
    actions = [FORWARD] * pushers + [REST] * (3 - pushers)
    state, _ = act(place(position=[[5, 2]] * 3), *actions)
    assert state.block[MEDIUM].tolist() == [5, 3 + moves]
    assert state.position.tolist() == [[5, 2 + moves]] * pushers + [[5, 2]] * (3 - pushers)


def test_agents_push_the_same_way_however_they_look():
    state, _ = act(place(position=[[5, 2]] * 3, heading=[TO_LEFT, FROM_GOAL, TO_GOAL]), STEP_RIGHT, BACK, REST)
    assert state.block[MEDIUM].tolist() == [5, 4]
    state, _ = act(place(position=[[5, 2], [4, 3], [5, 1]]), FORWARD, STEP_RIGHT, FORWARD)  # two ways: none is enough
    assert state.block[MEDIUM].tolist() == [5, 3]
    assert state.position.tolist() == [[5, 2], [4, 3], [5, 2]]


def test_a_small_block_pushed_two_ways_stays():
    state, _ = act(place(position=[[1, 2], [0, 3], [6, 1]]), FORWARD, STEP_RIGHT, REST)
    assert state.block[SMALL].tolist() == [1, 3] and state.position[:2].tolist() == [[1, 2], [0, 3]]


@pytest.mark.parametrize(
    ("why", "changes"),
    [
        ("another block", {"block": [[1, 3], [1, 4], [5, 3], [3, 5]]}),
        ("an agent", {"position": [[1, 2], [1, 4], [6, 1]]}),
    ],
)
def test_what_stands_in_the_way_holds_a_block(why, changes):
    state, _ = act(place(**{"position": [[1, 2], [3, 1], [6, 1]], **changes}), FORWARD, REST, REST)
    assert state.block[SMALL].tolist() == [1, 3] and state.position[0].tolist() == [1, 2], why


def test_a_block_that_is_in_holds_nothing():
    state, _ = act(
        place(position=[[1, 2], [3, 1], [6, 1]], block=[[1, 3], [1, 4], [5, 3], [3, 5]], standing=[True, False, 1, 1]),
        FORWARD, REST, REST,
    )  # fmt: skip
    assert state.block[SMALL].tolist() == [1, 4]


@pytest.mark.parametrize(
    ("position", "action", "block"),
    [([2, 3], STEP_LEFT, [1, 3]), ([5, 2], BACK, [5, 1]), ([4, 3], STEP_RIGHT, [5, 3])],
)
def test_the_path_at_the_walls_is_closed_to_blocks(position, action, block):
    state, _ = act(place(position=[position, [6, 0], [6, 0]], block=[block, [1, 5], [3, 4], [3, 5]]), action, 0, 0)
    assert state.block[SMALL].tolist() == block and state.position[0].tolist() == position


def test_of_two_blocks_for_one_cell_the_first_moves():
    blocks = [[2, 3], [4, 3], [5, 4], [3, 5]]
    state, _ = act(place(position=[[1, 3], [5, 3], [6, 0]], block=blocks), STEP_RIGHT, STEP_LEFT, REST)
    assert state.block[:2].tolist() == [[3, 3], [4, 3]] and state.position[:2].tolist() == [[2, 3], [5, 3]]


def test_an_agent_does_not_enter_a_cell_that_a_block_reaches():
    state, _ = act(place(position=[[1, 2], [2, 4], [6, 0]]), FORWARD, STEP_LEFT, REST)
    assert state.block[SMALL].tolist() == [1, 4] and state.position[:2].tolist() == [[1, 3], [2, 4]]


@pytest.mark.parametrize(("block", "need"), [(SMALL, 1), (MEDIUM, 2), (LARGE, 3)])
def test_a_block_in_the_goal_pays_what_it_needs_and_vanishes(block, need):
    blocks = np.array([[1, 3], [1, 2], [5, 3], [3, 3]])
    blocks[block] = [4, 5]
    state, step = act(place(position=[[4, 4]] * 3, block=blocks), *[FORWARD] * 3)
    np.testing.assert_allclose(step.group_reward, [need - COST] * 3)
    assert not state.standing[block] and state.standing.sum() == 3 and not step.over and not step.reward.any()
    assert state.position.tolist() == [[4, 5]] * 3
    figures = {name: float(value) for name, value in step.stats.items()}
    names = ("Small Blocks", "Medium Blocks", "Large Blocks")
    assert figures == {"Environment/All In": 0.0} | {
        f"Environment/{n}": float(i + 1 == need) for i, n in enumerate(names)
    }


def test_the_last_block_or_the_clock_ends_the_episode():
    last = {"standing": [True, False, False, False], "block": [[1, 5], [3, 3], [5, 3], [3, 5]]}
    _, step = act(place(position=[[1, 4], [3, 1], [5, 1]], **last), FORWARD, REST, REST)
    np.testing.assert_allclose(step.group_reward, [1 - COST] * 3)
    assert step.over and step.terminated.all() and not step.view.alive.any() and step.view.action_mask.all()
    assert step.stats["Environment/All In"] == 1 and step.stats["Environment/Small Blocks"] == 2
    _, step = act(place(clock=99), REST, REST, REST)
    assert step.over and step.terminated.all() and not step.truncated.any() and step.view.obs[0][0, 4] == 0.0
    assert not act(place(clock=98), REST, REST, REST)[1].over


def test_an_observation_by_hand():
    state = place(position=[[2, 3], [3, 1], [5, 1]], heading=[TO_LEFT, TO_GOAL, FROM_GOAL], standing=[1, 1, 0, 1])
    obs = act(state, REST, REST, REST)[1].view.obs[0]
    expected = [
        *(2 / 3 - 1, 0, -1, 0, 0.99),  # place (2, 3), looks to -x
        *(0, -0.5),  # the goal is 3 of 6 cells to the right
        *(1 / 3, 0, 1 / 3, 0),  # small blocks ahead at (1, 3) and behind at (3, 3)
        *(1, 1 / 6, 0, 1, -1 / 6, 0, 0, 0, 0, 1, -1 / 6, -2 / 6),  # the large one at (3, 5): behind, to the right
        *(-1 / 6, 2 / 6, 0, -1),  # mate at (3, 1) looks to the goal: my right
        *(-3 / 6, 2 / 6, 0, 1),  # mate at (5, 1) looks the other way
    ]
    np.testing.assert_allclose(obs[0], expected, atol=1e-6)
    np.testing.assert_allclose(obs[1, -8:], [0, -2 / 6, -1, 0, 2 / 6, 1 / 6, 0, 1], atol=1e-6)  # agent 2, then agent 0


def test_a_planned_team_pushes_all_blocks_in():
    state = place(position=[[1, 2], [1, 2], [1, 2]], block=[[1, 3], [2, 3], [3, 3], [4, 3]])
    total, next_column = 0.0, [*[BACK] * 3, STEP_RIGHT]
    for action in [*[FORWARD] * 3, *([*next_column, *[FORWARD] * 3] * 3)]:
        state, step = act(state, action, action, action)
        total += float(step.group_reward[0])
        assert step.over == (not state.standing.any())
    assert step.over
    np.testing.assert_allclose(total, 7 - COST * int(state.clock), rtol=1e-5)


def test_parameters_set_the_blocks_of_the_next_episode():
    reset = quick_jit(ENV.reset)
    key = jax.random.key(0)
    assert ENV.parameters == {"small_blocks": 2.0, "medium_blocks": 1.0, "large_blocks": 1.0}
    assert reset(key, {})[0].standing.all()
    some = {"small_blocks": 1.0, "medium_blocks": 0.0, "large_blocks": 9.0}
    state, view = reset(key, some)
    assert state.standing.tolist() == [True, False, False, True] == state.started.tolist()
    assert not view.obs[0][:, 14:20].any()  # nothing to see of the two in the middle
    assert ENVIRONMENTS["push_block"]().name == "PushBlockCollab"


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"size": 4}, "size = 4"),
        ({"small": 0, "medium": 0, "large": 0}, "0 blocks"),
        ({"small": 99}, "blocks: must lie between 1 and 15"),
        ({"members": 2}, "members = 2: a block here needs 3 agents"),
    ],
)
def test_impossible_settings_are_refused_by_name(bad, text):
    with pytest.raises(ValueError, match=text):
        make_push_block(PushBlockSettings(**bad))


def test_the_picture_shows_blocks_that_stand_and_all_agents():
    assert ENV.draw is not None
    scene = ENV.draw(jax.tree.map(np.asarray, place(standing=[True, False, True, False])))
    assert scene.size == (7.0, 7.0)
    blocks = {shape.label: shape.centre for shape in scene.shapes if isinstance(shape, Box) and shape.label}
    assert blocks == {"1": (1.5, 3.5), "2": (5.5, 3.5)}
    agents = [shape for shape in scene.shapes if isinstance(shape, Disc)]
    np.testing.assert_allclose([agent.centre for agent in agents], [(1.35, 1.5), (3.5, 1.5), (5.65, 1.5)])
