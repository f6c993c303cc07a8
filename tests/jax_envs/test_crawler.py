"""Crawler: the physics by hand, the rules, and that legs which swing in turn come forward."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs.crawler import AT_REST, FEET, PHYSICS_STEPS, SECONDS, UPPER, CrawlerState, make_crawler
from jaxrl.jax_envs.interface import TeamActions, TeamStep

ENV = make_crawler(episode_limit=100)
compiled_step = jax.jit(ENV.step)
DURATION = SECONDS * PHYSICS_STEPS


def place(**changes) -> CrawlerState:
    """The body at rest as it was built, 2 m above the ground."""
    state = CrawlerState(
        place=jnp.asarray(AT_REST) + jnp.array([0.0, 2.0]),
        velocity=jnp.zeros_like(AT_REST),
        muscles=jnp.zeros(4),
        clock=jnp.int32(0),
        gravity=jnp.float32(10.0),
        friction=jnp.float32(1.0),
        effort=jnp.float32(0.5),
    )
    return state._replace(**{name: jnp.asarray(value, getattr(state, name).dtype) for name, value in changes.items()})


def act(state: CrawlerState, *muscles: float) -> tuple[CrawlerState, TeamStep]:
    continuous = jnp.array([muscles or (0.0, 0.0, 0.0, 0.0)])
    return compiled_step(jax.random.key(0), state, TeamActions(continuous, jnp.zeros((1, 0), jnp.int32)))


def test_free_fall():
    state, step = act(place())
    # Ten steps of 0.005 s: v = -10 * 0.05; y falls by 10 * 0.005**2 * (1 + 2 + ... + 10); no spring is stretched.
    np.testing.assert_allclose(state.velocity, np.tile([0.0, -0.5], (7, 1)), atol=1e-4)
    np.testing.assert_allclose(state.place[:, 1], AT_REST[:, 1] + 2.0 - 0.01375, atol=1e-5)
    assert step.reward.tolist() == [pytest.approx(0.0, abs=1e-6)] and not step.over


def test_springs_move_neither_the_centre_nor_turn_the_body():
    """Inner forces come in pairs along the line between two masses."""
    state, _ = act(place(gravity=0.0), 1.0, -1.0, 0.5, 1.0)
    moved = np.asarray(state.velocity)
    assert np.abs(moved).max() > 0.1
    np.testing.assert_allclose(moved.sum(0), 0.0, atol=1e-3)
    x, y = np.asarray(state.place).T
    assert np.sum(x * moved[:, 1] - y * moved[:, 0]) == pytest.approx(0.0, abs=1e-2)


def test_muscles_move_at_most_three_metres_a_second_and_reach_what_was_asked():
    state, _ = act(place(gravity=0.0), 1.0, 0.0, 0.0, -0.1)
    length = float(np.linalg.norm(AT_REST[0] - AT_REST[5]))
    np.testing.assert_allclose(state.muscles, [3.0 * DURATION / (0.4 * length), 0.0, 0.0, -0.1], atol=1e-5)


def test_the_ground_rubs_with_friction_times_what_it_bears():
    """A body that slides fast loses 10 m/s² where friction is 1, and nothing where it is 0."""
    settled = place(place=jnp.asarray(AT_REST))
    for _ in range(40):  # two seconds: it stands
        settled, _ = act(settled)
    assert float(jnp.abs(settled.velocity).max()) < 0.05
    sliding = settled._replace(velocity=settled.velocity + jnp.array([5.0, 0.0]))
    free, _ = act(sliding._replace(friction=jnp.float32(0.0)))
    rubbed, _ = act(sliding)
    assert float(free.velocity[:, 0].mean()) == pytest.approx(5.0, abs=0.01)
    # Over a twentieth of a second the feet bear the body's 70 N but for how it pitches.
    assert float(rubbed.velocity[:, 0].mean()) == pytest.approx(5.0 - 10.0 * DURATION, abs=0.15)


def test_a_metre_pays_one_and_an_action_its_square():
    _, step = act(place(velocity=np.tile([2.0, 0.0], (7, 1))), 0.5, 0.0, 0.0, -1.0)
    assert step.reward.tolist() == [pytest.approx(2.0 * DURATION - 0.5 * (0.25 + 1.0), abs=1e-4)]
    assert float(step.stats["Environment/Metres"]) == pytest.approx(2.0 * DURATION, abs=1e-4)


def test_on_its_back_it_is_over_for_good_and_after_the_limit_it_is_cut_off():
    upside_down = place(place=jnp.asarray(AT_REST) * jnp.array([1.0, -1.0]) + jnp.array([0.0, 1.05]))
    _, step = act(upside_down)
    assert step.over and step.terminated.all() and not step.truncated.any()
    assert float(step.stats["Environment/Fallen"]) == 1.0
    _, step = act(place(clock=99))
    assert step.over and step.truncated.all() and not step.terminated.any()


def test_what_it_sees():
    state = place(muscles=[0.1, 0.2, 0.3, 0.4], velocity=np.arange(14.0).reshape(7, 2))
    feet = state.place.at[FEET, 1].set(jnp.array([-0.01, 0.01]))
    _, step = act(state._replace(place=feet, gravity=jnp.float32(0.0)))
    after, _ = act(state._replace(place=feet, gravity=jnp.float32(0.0)))
    obs, places = np.asarray(step.view.obs[0][0]), np.asarray(after.place)
    np.testing.assert_allclose(obs[:14], (places - places.mean(0)).reshape(-1), atol=1e-5)
    np.testing.assert_allclose(obs[14], places[:, 1].mean(), atol=1e-5)
    np.testing.assert_allclose(obs[15:29], np.asarray(after.velocity).reshape(-1), atol=1e-5)
    np.testing.assert_allclose(obs[29:33], np.asarray(after.muscles), atol=1e-6)
    assert obs[33:].tolist() == (places[FEET, 1] < 0.0).astype(float).tolist()


def test_legs_that_swing_in_turn_come_forward():
    def run(key, actions):
        state, _ = ENV.reset(key, ENV.parameters)

        def one(state, action):
            state, _ = ENV.step(key, state, TeamActions(action[None], jnp.zeros((1, 0), jnp.int32)))
            return state, (state.place[:, 0].mean(), (state.place[UPPER, 1] < 0).any())

        return jax.lax.scan(one, state, actions)[1]

    phases = 2 * jnp.pi * jnp.array([1.10, 0.64, 1.74, 1.84])
    gait = jnp.sin(jnp.arange(100)[:, None] + phases)
    keys = jax.random.split(jax.random.key(0), 4)
    far, fell = jax.jit(jax.vmap(run, (0, None)))(keys, gait)
    assert not fell.any() and float(far[:, -1].min()) > 4.0  # 5 s


def test_an_episode_without_decisions_is_refused():
    with pytest.raises(ValueError, match="episode_limit = 0"):
        make_crawler(episode_limit=0)
