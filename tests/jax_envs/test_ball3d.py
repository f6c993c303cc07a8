"""3D Ball: the physics by hand, the rules, and that a simple controller earns the known return."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.ball3d import MOST_TILT, BallState, make_ball3d
from jaxrl.jax_envs.interface import TeamActions, TeamStep, advance_areas, start_areas

ENV = make_ball3d(episode_limit=60)
compiled_step = jax.jit(ENV.step)


def place(**changes) -> BallState:
    """A level plate, the ball at rest on its middle."""
    state = BallState(
        tilt=jnp.zeros(2),
        place=jnp.array([0.0, 0.5, 0.0]),
        velocity=jnp.zeros(3),
        clock=jnp.int32(0),
        radius=jnp.float32(0.5),
        gravity=jnp.float32(10.0),
    )
    return state._replace(**{name: jnp.asarray(value, getattr(state, name).dtype) for name, value in changes.items()})


def act(state: BallState, about_z: float = 0.0, about_x: float = 0.0) -> tuple[BallState, TeamStep]:
    actions = TeamActions(continuous=jnp.array([[about_z, about_x]]), discrete=jnp.zeros((1, 0), jnp.int32))
    return compiled_step(jax.random.key(0), state, actions)


def test_free_fall():
    state, step = act(place(place=[1.0, 4.0, -1.0]))
    # five steps of 0.02 s: v = -10 * 0.1; y = 4 - 10 * 0.02**2 * (1 + 2 + 3 + 4 + 5)
    np.testing.assert_allclose(state.velocity, [0, -1.0, 0], atol=1e-6)
    np.testing.assert_allclose(state.place, [1.0, 4.0 - 0.06, -1.0], atol=1e-6)
    np.testing.assert_allclose(step.view.obs[0], [[0, 0, 1.0, 3.94, -1.0, 0, -1.0, 0]], atol=1e-6)


def test_a_ball_at_rest_on_a_level_plate_stays():
    state, step = act(place())
    np.testing.assert_allclose(state.place, [0, 0.5, 0], atol=1e-6)
    assert step.reward.tolist() == [pytest.approx(0.1)] and not step.over and step.view.alive.all()


@pytest.mark.parametrize(("axis", "downhill"), [(0, [-1, 0, 0]), (1, [0, 0, 1])])
def test_the_ball_rolls_downhill_with_five_sevenths_of_gravity_along_the_plate(axis, downhill):
    angle = 0.2
    tilt = np.eye(2)[axis] * angle
    # About z the normal is (-sin, cos, 0), about x it is (0, cos, sin): the ball rolls where the plate is low.
    normal = np.array(downhill) * math.sin(angle) + np.array([0, math.cos(angle), 0])
    state, step = act(place(tilt=tilt, place=0.5 * normal))
    speed = 5 / 7 * 10.0 * math.sin(angle) * 0.1
    along = np.array(downhill) * math.cos(angle) - np.array([0, math.sin(angle), 0])
    np.testing.assert_allclose(state.velocity, speed * along, atol=1e-5)
    np.testing.assert_allclose(np.dot(state.place, normal), 0.5, atol=1e-5)  # it stays on the plate
    np.testing.assert_allclose(step.view.obs[0][0, :2], np.sin(tilt / 2), atol=1e-6)


def test_a_falling_ball_lands_without_bouncing():
    state, _ = act(place(place=[0.0, 0.6, 0.0], velocity=[0.0, -3.0, 0.0]))
    assert abs(state.velocity[1]) < 1e-6 and state.place[1] == pytest.approx(0.5, abs=1e-5)


def test_actions_turn_the_plate_by_two_degrees_a_physics_step_up_to_its_limit():
    state, _ = act(place(), 1.0, -0.5)
    np.testing.assert_allclose(state.tilt, [math.radians(10.0), math.radians(-5.0)], rtol=1e-5)
    np.testing.assert_allclose(act(place(), 3.0, -3.0)[0].tilt, [math.radians(10.0), math.radians(-10.0)], rtol=1e-5)
    state, step = act(place(tilt=[MOST_TILT - 0.01, 0.0]), 1.0)
    assert state.tilt[0] == pytest.approx(MOST_TILT)
    assert step.view.obs[0][0, 0] == pytest.approx(0.25)  # sin(MOST_TILT / 2)


@pytest.mark.parametrize(
    ("where", "velocity"),
    [([2.9, 0.0, 0.0], [5.0, 0, 0]), ([0, 0, -2.9], [0, 0, -5.0]), ([2.6, -1.9, 0], [0, -5.0, 0])],
)
def test_a_ball_beyond_the_plate_has_fallen(where, velocity):
    _, step = act(place(place=where, velocity=velocity))
    assert step.reward.tolist() == [-1.0] and step.over
    assert step.terminated.tolist() == [True] and step.truncated.tolist() == [False]
    assert not step.view.alive.any() and step.stats["Environment/Ball Kept"] == 0.0


def test_the_limit_truncates_and_a_ball_that_falls_just_then_still_terminates():
    _, step = act(place(clock=59))
    assert step.over and step.truncated.tolist() == [True] and step.terminated.tolist() == [False]
    assert step.reward.tolist() == [pytest.approx(0.1)] and step.stats["Environment/Ball Kept"] == 1.0
    _, step = act(place(clock=59, place=[2.9, 0.0, 0.0], velocity=[5.0, 0, 0]))
    assert step.truncated.tolist() == [False] and step.terminated.tolist() == [True]
    assert not act(place(clock=58))[1].over


def test_parameters_set_ball_and_gravity():
    state, view = ENV.reset(jax.random.key(0), {"scale": jnp.float32(3.0), "gravity": jnp.float32(1.6)})
    assert state.radius == 1.5 and state.gravity == pytest.approx(1.6)
    usual, _ = ENV.reset(jax.random.key(0), {})
    assert usual.radius == 0.5 and usual.gravity == pytest.approx(9.81)
    assert view.obs[0].shape == (1, 8) and view.action_mask.shape == (1, 0) and view.alive.tolist() == [True]


AREAS, STEPS = 32, 130


def controller(obs: jax.Array) -> jax.Array:
    """Tilts against the ball's place and velocity: [E, 1, 8] → [E, 1, 2]."""
    wanted = jnp.stack([0.3 * obs[..., 2] + 0.2 * obs[..., 5], -0.3 * obs[..., 4] - 0.2 * obs[..., 7]], axis=-1)
    return jnp.clip((wanted - 2.0 * jnp.arcsin(obs[..., :2])) / math.radians(10.0), -1.0, 1.0)


@jax.jit
def play(skilled: jax.Array) -> tuple[TeamStep, jax.Array]:
    """Every step [T, E, ...] and the next observations, with the controller or at random."""
    parameters = {name: jnp.full(AREAS, value, jnp.float32) for name, value in ENV.parameters.items()}
    started, view = start_areas(ENV, jax.random.key(1), AREAS, parameters)

    def one(carry, key):
        areas, obs = carry
        continuous = jnp.where(skilled, controller(obs), jax.random.uniform(key, (AREAS, 1, 2), minval=-1.0))
        actions = TeamActions(continuous=continuous, discrete=jnp.zeros((AREAS, 1, 0), jnp.int32))
        areas, result = advance_areas(ENV, areas, actions, parameters)
        return (areas, result.view.obs[0]), (result.step, result.view.obs[0])

    return jax.lax.scan(one, (started, view.obs[0]), jax.random.split(jax.random.key(2), STEPS))[1]


def test_a_controller_keeps_the_ball_and_earns_a_tenth_per_decision():
    step, _ = play(True)
    assert not step.terminated.any() and step.truncated.sum() == 2 * AREAS  # episodes end after 60 and 120 decisions
    np.testing.assert_allclose(step.reward[:60].sum(axis=0), 6.0, rtol=1e-5)


def test_random_play_drops_the_ball_soon_and_keeps_the_contract():
    step, obs = jax.tree.map(np.asarray, play(False))
    assert step.terminated.any(axis=0).all()
    mean = step.reward.sum() / step.over.sum()
    assert 0.3 < mean < 2.0  # an untrained agent keeps the ball for some 10 to 30 decisions
    np.testing.assert_array_equal((step.terminated | step.truncated)[..., 0], step.over)
    np.testing.assert_array_equal(step.view.alive[..., 0], ~step.over)
    np.testing.assert_allclose(obs[step.over][:, 0, 3], 4.0)  # a new ball is dropped from 4
    assert np.isfinite(obs).all() and abs(obs[..., :2]).max() <= 0.25 + 1e-6
    starts = {row.tobytes() for row in obs[step.over]}
    assert len(starts) == step.over.sum()  # and everyone elsewhere


@pytest.mark.parametrize("where", [[0.5, 0.5, 0.0], [0.0, -1.9, 2.8], [0.0, -1.9, -2.8]])
def test_the_picture_shows_plate_and_ball_at_every_place(where):
    scene = ENV.draw(jax.tree.map(np.asarray, place(place=where, tilt=[0.3, -0.4])))
    ball = next(shape for shape in scene.shapes if type(shape).__name__ == "Disc")
    assert ball.radius == 0.5 and 0 < ball.centre[0] < scene.size[0] and 0 < ball.centre[1] < scene.size[1]


def test_impossible_limits_are_refused_and_the_name_is_registered():
    with pytest.raises(ValueError, match="episode_limit = 0"):
        make_ball3d(0)
    assert ENVIRONMENTS["ball3d"]().name == "3DBall"
