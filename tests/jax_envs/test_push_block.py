"""Collaborative Push Block: each rule by hand, what a planned team earns, and the properties a learner relies on."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.drawing import Box, Disc
from jaxrl.jax_envs.interface import TeamActions, TeamStep, advance_areas, start_areas
from jaxrl.jax_envs.push_block import NUM_ACTIONS, PushBlockSettings, PushBlockState, make_push_block

REST, FORWARD, BACK, TURN_LEFT, TURN_RIGHT, STEP_LEFT, STEP_RIGHT = range(7)
TO_GOAL, TO_LEFT, FROM_GOAL, TO_RIGHT = range(4)  # ways to look
SMALL, OTHER_SMALL, MEDIUM, LARGE = range(4)  # blocks
ENV = make_push_block(PushBlockSettings(size=7, small=2, medium=1, large=1, episode_limit=100, penalty=0.5))
COST = 0.5 / 100
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiled in half the time


def place(**changes) -> PushBlockState:
    """Agents at (1, 1), (3, 1) and (5, 1) look to the goal, row 6; the four blocks stand apart in row 3 and 5."""
    state = PushBlockState(
        position=jnp.array([[1, 1], [3, 1], [5, 1]], jnp.int32),
        heading=jnp.zeros(3, jnp.int32),
        block=jnp.array([[1, 3], [3, 3], [5, 3], [3, 5]], jnp.int32),
        standing=jnp.ones(4, bool),
        started=jnp.ones(4, bool),
        clock=jnp.int32(0),
    )
    return state._replace(**{name: jnp.asarray(value, getattr(state, name).dtype) for name, value in changes.items()})


def team_actions(actions) -> TeamActions:
    discrete = jnp.asarray(actions, jnp.int32)[..., None]
    return TeamActions(continuous=jnp.zeros((*discrete.shape[:-1], 0)), discrete=discrete)


compiled_step = quick_jit(lambda state, actions: ENV.step(jax.random.key(0), state, actions))


def act(state: PushBlockState, *actions: int) -> tuple[PushBlockState, TeamStep]:
    return compiled_step(state, team_actions(actions))


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


AREAS, STEPS = 48, 250


@quick_jit
def play(key):
    """Random play: who lived before each step, the step, and the state after it, all [T, E, ...]."""
    parameters = {name: jnp.full(AREAS, value) for name, value in ENV.parameters.items()}

    def one(carry, key):
        running, view = carry
        logits = jnp.where(view.action_mask, 0.0, -1e9)
        actions = team_actions(jax.random.categorical(key, logits))
        running, result = advance_areas(ENV, running, actions, parameters)
        return (running, result.view), (view, actions.discrete, result, running.state)

    start, steps = jax.random.split(key)
    return jax.lax.scan(one, start_areas(ENV, start, AREAS, parameters), jax.random.split(steps, STEPS))[1]


@pytest.fixture(scope="module")
def random_play():
    return jax.tree.map(np.asarray, play(jax.random.key(1)))


def test_random_play_keeps_the_contract(random_play):
    before, _, result, _ = random_play
    step = result.step
    assert before.alive.all() and result.view.alive.all() and not step.truncated.any()
    np.testing.assert_array_equal(step.terminated, np.broadcast_to(step.over[..., None], step.terminated.shape))
    np.testing.assert_array_equal(step.view.alive, ~step.terminated)
    for obs in (*step.view.obs, *result.view.obs):
        assert np.isfinite(obs).all() and abs(obs).max() <= 1.0
    assert result.view.action_mask[..., REST].all() and result.view.action_mask.shape[-1] == NUM_ACTIONS
    assert step.over[:100].any(axis=0).all()  # nothing lasts longer than 100 decisions
    assert (step.group_reward > 0).any(axis=2).sum() > AREAS // 4  # small blocks get in by chance
    starts = {obs.tobytes() for obs in result.view.obs[0][step.over]}
    assert len(starts) == step.over.sum() > AREAS


def test_random_play_keeps_everything_where_it_may_be(random_play):
    _, _, _, state = random_play
    assert ((state.position >= 0) & (state.position <= 6)).all()
    standing = state.block[state.standing]
    assert (standing >= 1).all() and (standing <= 5).all()
    same = (state.block[:, :, :, None] == state.block[:, :, None]).all(-1)
    same &= state.standing[..., None] & state.standing[:, :, None]
    assert not (same & ~np.eye(4, dtype=bool)).any()  # no two blocks on one cell
    under = (state.position[:, :, :, None] == state.block[:, :, None]).all(-1) & state.standing[:, :, None]
    assert not under.any()  # nor an agent


def test_single_areas_play_like_many(random_play):
    _, actions, result, state = random_play
    for area in (0, 7):
        steps = np.flatnonzero(~result.step.over[1:60, area])[:25] + 1
        for t in steps:
            before = jax.tree.map(lambda x: jnp.asarray(x[t - 1, area]), state)  # noqa: B023
            after, step = compiled_step(before, team_actions(actions[t, area, :, 0]))
            jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[t, area], b), state, after)  # noqa: B023
            np.testing.assert_array_equal(result.step.group_reward[t, area], step.group_reward)


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
