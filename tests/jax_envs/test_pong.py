"""Pong: each rule by hand, both teams the same game, and a scripted player that can be beaten."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs.foreign.arguments import ArgumentsError
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.drawing import Box, Disc
from jaxrl.jax_envs.interface import TeamActions, TeamStep
from jaxrl.jax_envs.pong import PongState, follow_ball, make_pong

ENV = make_pong()  # half_width 0.6, reach 0.15, pace 0.05, serve 0.06, faster 1.15, ball_speed 0.15, steepest 1


def place(**changes) -> PongState:
    """A ball that flies straight towards team 1; both paddles stand in the middle."""
    state = PongState(
        paddle=jnp.zeros(2), ball=jnp.zeros(2), velocity=jnp.array([0.06, 0.0]), hits=jnp.int32(0),
        clock=jnp.int32(0), ball_touch=jnp.float32(0.25),
    )  # fmt: skip
    return state._replace(**{name: jnp.asarray(value, getattr(state, name).dtype) for name, value in changes.items()})


compiled = jax.jit(lambda state, actions: ENV.step(jax.random.key(0), state, actions))


def act(state: PongState, first: float = 0.0, second: float = 0.0) -> tuple[PongState, TeamStep]:
    return compiled(state, TeamActions(jnp.array([[first], [second]]), jnp.zeros((2, 0), jnp.int32)))


def test_paddles_move_in_their_own_frame_and_stay_on_the_table():
    state, step = act(place(paddle=[0.1, 0.44]), 0.5, -3.0)
    np.testing.assert_allclose(state.paddle, [0.125, 0.45], atol=1e-6)  # -1 is +y for team 1; 0.6 - 0.15 holds it
    np.testing.assert_allclose(state.ball, [0.06, 0.0], atol=1e-6)
    assert not step.over and not step.reward.any() and not step.group_reward.any()


def test_walls_return_the_ball():
    state, _ = act(place(ball=[0.0, 0.58], velocity=[0.03, 0.05]))
    np.testing.assert_allclose(state.ball, [0.03, 0.57], atol=1e-6)  # 0.63 is 0.03 beyond 0.6
    np.testing.assert_allclose(state.velocity, [0.03, -0.05], atol=1e-6)


@pytest.mark.parametrize(("side", "rewards"), [(1, [0.0, 0.25]), (-1, [0.25, 0.0])])
def test_a_struck_ball_comes_back_faster_at_the_angle_of_the_place(side, rewards):
    state, step = act(place(ball=[0.98 * side, 0.0], velocity=[0.06 * side, 0.0], paddle=[-0.075, -0.075]))
    # struck 0.075 / 0.15 = half way up: half a radian, 1.15 times as fast
    np.testing.assert_allclose(state.ball, [side, 0.0], atol=1e-6)
    np.testing.assert_allclose(state.velocity, 0.069 * np.array([-side * np.cos(0.5), np.sin(0.5)]), atol=1e-6)
    assert step.reward.tolist() == rewards and not step.over and state.hits == 1
    state, _ = act(place(ball=[0.98, 0.0], velocity=[0.14, 0.0]))
    np.testing.assert_allclose(state.velocity, [-0.15, 0.0], atol=1e-6)  # 0.161 is above the limit


@pytest.mark.parametrize(("side", "rewards"), [(1, [1.0, -1.0]), (-1, [-1.0, 1.0])])
def test_a_miss_ends_the_game(side, rewards):
    _, step = act(place(ball=[0.98 * side, 0.3], velocity=[0.06 * side, 0.0], paddle=[0.1, 0.1], clock=199))
    assert step.reward.tolist() == rewards and step.over and step.terminated.all() and not step.truncated.any()
    assert step.stats["Environment/Missed"] == 1 and step.stats["Environment/Won By Team 0"] == (side == 1)
    _, step = act(place(clock=199))
    assert step.over and step.truncated.all() and not step.terminated.any() and not step.reward.any()


def test_an_observation_by_hand_and_from_the_other_end():
    view = act(place(paddle=[0.1, -0.2], ball=[0.3, 0.24], velocity=[0.06, 0.03]))[1].view
    speed = np.hypot(0.06, 0.03) / 0.15
    expected = [0.1 / 0.6, 0.36, 0.27 / 0.6, 0.4, 0.2, -0.2 / 0.6, speed]
    other = [0.2 / 0.6, -0.36, -0.27 / 0.6, -0.4, -0.2, -0.1 / 0.6, speed]
    np.testing.assert_allclose(view.obs[0], [expected, other], atol=1e-6)


def test_the_scripted_player_follows_the_ball():
    obs = jnp.zeros((2, 7)).at[:, 2].set(jnp.array([0.2, -0.01])).at[:, 0].set(0.0)
    np.testing.assert_allclose(follow_ball(obs), [[1.0], [-0.2]], atol=1e-6)


def test_the_picture_and_settings_that_make_no_game():
    scene = ENV.draw(place(paddle=[0.1, -0.1], ball=[0.5, 0.2]))
    ball = next(shape for shape in scene.shapes if isinstance(shape, Disc))
    np.testing.assert_allclose(ball.centre, (1.6, 0.8), atol=1e-6)
    assert sum(isinstance(shape, Box) for shape in scene.shapes) == 3
    for settings in ({"reach": 0.7}, {"serve": 0.2}):
        with pytest.raises(ArgumentsError, match=f"jax:pong: {next(iter(settings))} = "):
            ENVIRONMENTS["pong"](**settings)
