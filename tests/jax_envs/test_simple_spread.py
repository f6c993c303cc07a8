"""Simple Spread: the physics and rewards by hand, and the properties that the learner relies on."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.interface import TeamActions, advance_areas, start_areas
from jaxrl.jax_envs.simple_spread import Particle, Spot, SpreadSettings, SpreadState, make_simple_spread

NONE, LEFT, RIGHT, DOWN, UP = range(5)
ENV = make_simple_spread()
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # little is run: quick to compile
STEP = jit(ENV.step)
CORNERS = ((0.0, 0.0), (0.0, 2.0), (3.0, 0.0))


def place(agents=CORNERS, landmarks=CORNERS, speeds=((0.0, 0.0),) * 3, clock: int = 0) -> SpreadState:
    def scalars(*values):
        return map(jnp.float32, values)

    return SpreadState(
        agents=tuple(Particle(*scalars(*xy, *v)) for xy, v in zip(agents, speeds, strict=True)),
        landmarks=tuple(Spot(*scalars(*xy)) for xy in landmarks),
        clock=jnp.int32(clock),
    )


def act(state: SpreadState, *actions: int):
    return STEP(jax.random.key(0), state, team_actions(jnp.array(actions, jnp.int32)[:, None]))


def team_actions(discrete: jax.Array) -> TeamActions:
    return TeamActions(continuous=jnp.zeros((*discrete.shape[:-1], 0)), discrete=discrete)


def test_forces_change_the_speed_and_the_old_speed_the_place():
    state, step = act(place(speeds=((1.0, 2.0), (0, 0), (0, 0))), RIGHT, DOWN, NONE)
    # x = 0 + 1 * 0.1, y = 0 + 2 * 0.1; vx = 0.75 * 1 + 5 * 0.1, vy = 0.75 * 2
    np.testing.assert_allclose(state.agents[0], [0.1, 0.2, 1.25, 1.5], rtol=1e-6)
    np.testing.assert_allclose(state.agents[1], [0.0, 2.0, 0.0, -0.5], rtol=1e-6)
    np.testing.assert_allclose(state.agents[2], [3.0, 0.0, 0.0, 0.0])
    others, _ = act(place(), LEFT, UP, NONE)
    np.testing.assert_allclose([others.agents[0].vx, others.agents[1].vy], [-0.5, 0.5])
    # velocity, place, landmarks, mates 1 and 2, silence
    seen = [1.25, 1.5, 0.1, 0.2, -0.1, -0.2, -0.1, 1.8, 2.9, -0.2, -0.1, 1.8, 2.9, -0.2, 0, 0, 0, 0]
    np.testing.assert_allclose(step.view.obs[0][0], seen, atol=1e-6)
    np.testing.assert_allclose(step.view.obs[0][1, 10:14], [0.1, -1.8, 3.0, -2.0], atol=1e-6)  # mates 0 and 2


def test_touching_agents_push_each_other_apart_and_pay():
    agents = ((0.0, 0.0), (0.2, 0.0), (3.0, 0.0))
    state, step = act(place(agents=agents, landmarks=agents), NONE, NONE, NONE)
    # 0.1 m deep: 100 N/m * 0.1 m = 10 N for 0.1 s, log(1 + exp(100)) being 100
    np.testing.assert_allclose([state.agents[0].vx, state.agents[1].vx], [-1.0, 1.0], rtol=1e-5)
    # all landmarks covered; one pair, each of the two pays 0.5
    np.testing.assert_allclose(step.group_reward, [-1.0] * 3)
    assert step.stats["Environment/Touching Pairs"] == 1 and not step.reward.any()
    apart, step = act(place(agents=((0.0, 0.0), (0.31, 0.0), (3.0, 0.0))), NONE, NONE, NONE)
    # 0.01 m between them: 0.1 N * log(1 + exp(-10)) * 0.1 s
    np.testing.assert_allclose(apart.agents[1].vx, 0.01 * np.log1p(np.exp(-10)), rtol=1e-3)
    assert step.stats["Environment/Touching Pairs"] == 0


def test_agents_at_one_place_have_finite_speeds():
    state, step = act(place(agents=((0.5, 0.5),) * 3), NONE, NONE, NONE)
    assert all(np.isfinite(agent).all() for agent in state.agents)
    assert step.stats["Environment/Touching Pairs"] == 3


def test_reward_is_the_distance_of_the_nearest_agent_summed_over_landmarks():
    landmarks = ((0.3, 0.4), (0.0, 2.5), (3.0, 4.0))
    _, step = act(place(landmarks=landmarks), NONE, NONE, NONE)
    # nearest: agent 0 at 0.5, agent 1 at 0.5, agent 1 at sqrt(9 + 4); three agents earn half of it each
    distance = 0.5 + 0.5 + np.sqrt(13.0)
    np.testing.assert_allclose(step.stats["Environment/Uncovered Distance"], distance, rtol=1e-6)
    np.testing.assert_allclose(step.group_reward, [-1.5 * distance] * 3, rtol=1e-6)


@pytest.mark.parametrize("terminates", [False, True])
def test_the_25th_decision_is_the_last(terminates):
    env = make_simple_spread(SpreadSettings(terminates=terminates))
    assert env.truncates is not terminates
    idle = team_actions(jnp.zeros((3, 1), jnp.int32))
    step = jit(env.step)
    _, before = step(jax.random.key(0), place(clock=23), idle)
    assert not before.over and before.view.alive.all() and not (before.terminated | before.truncated).any()
    _, last = step(jax.random.key(0), place(clock=24), idle)
    assert last.over and not last.view.alive.any()
    assert (last.terminated == terminates).all() and (last.truncated != terminates).all()


AREAS, STEPS = 8, 60


@jit
def play(key):
    """Random actions: all steps [T, E, ...]."""
    start_key, play_key = jax.random.split(key)

    def one(areas, key):
        discrete = jax.random.randint(key, (AREAS, 3, 1), 0, 5)
        areas, result = advance_areas(ENV, areas, team_actions(discrete), {})
        return areas, (result, areas.state, discrete)

    areas, view = start_areas(ENV, start_key, AREAS, {})
    return view, jax.lax.scan(one, areas, jax.random.split(play_key, STEPS))[1]


def test_random_play_keeps_the_contract():
    start, (result, _, _) = jax.tree.map(np.asarray, play(jax.random.key(1)))
    step = result.step
    assert start.alive.all() and result.view.alive.all()
    assert (np.flatnonzero(step.over[:, 0]) == [24, 49]).all() and (step.over == step.over[:, :1]).all()
    np.testing.assert_array_equal(step.view.alive, ~step.truncated)
    np.testing.assert_array_equal(step.truncated, np.repeat(step.over[..., None], 3, axis=-1))
    assert not step.terminated.any() and result.view.action_mask.all()
    assert result.view.obs[0].shape == (STEPS, AREAS, 3, 18) and result.view.action_mask.shape[-1] == 5
    assert np.isfinite(result.view.obs[0]).all() and np.isfinite(step.group_reward).all()
    begun = result.view.obs[0][24]
    assert not begun[..., :2].any() and abs(begun[..., 2:4]).max() <= 1 and abs(begun[..., 4:]).max() <= 2
    assert len(np.unique(begun[..., 2])) == 3 * AREAS
    np.testing.assert_array_equal(result.view.obs[0][:24], step.view.obs[0][:24])
    assert (step.view.obs[0][24] != begun).any()  # the last view is the true one


def test_areas_play_as_one_area_alone_does():
    _, (result, states, actions) = play(jax.random.key(2))
    for time, area in ((3, 0), (11, 5), (30, 7)):
        state = jax.tree.map(lambda x, t=time, e=area: x[t, e], states)
        _, alone = STEP(jax.random.key(9), state, team_actions(actions[time + 1, area]))
        together = jax.tree.map(lambda x, t=time, e=area: x[t + 1, e], result.step)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), alone, together)


def test_picture_shows_all_six():
    scene = ENV.draw(jax.tree.map(np.asarray, place()))
    assert [shape.centre for shape in scene.shapes[3:]] == [(x + 1.5, y + 1.5) for x, y in CORNERS]
    assert len(scene.shapes) == 6 and scene.size == (3.0, 3.0)


@pytest.mark.parametrize("bad", [{"episode_limit": 0}, {"local_ratio": 1.5}])
def test_impossible_settings_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        make_simple_spread(SpreadSettings(**bad))


def test_it_is_registered():
    env = ENVIRONMENTS["simple_spread"]()
    assert (env.name, env.members, env.truncates) == ("SimpleSpread", 3, True)
