"""Basic: rewards along the line by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.basic import BasicState
from jaxrl.jax_envs.interface import TeamActions, TeamStep

ENV = ENVIRONMENTS["basic"]()
STAY, LEFT, RIGHT = range(3)
compiled_step = jax.jit(ENV.step)


def act(state: BasicState, action: int) -> tuple[BasicState, TeamStep]:
    actions = TeamActions(continuous=jnp.zeros((1, 0)), discrete=jnp.array([[action]], jnp.int32))
    return compiled_step(jax.random.key(0), state, actions)


def walk(*moves: int) -> tuple[BasicState, TeamStep, float]:
    """From the start; state, last step and return."""
    state, _ = ENV.reset(jax.random.key(0), {})
    total = 0.0
    for move in moves:
        state, step = act(state, move)
        total += float(step.reward[0])
    return state, step, total


@pytest.mark.parametrize(
    ("moves", "earned", "large"),
    [
        ([RIGHT] * 7, 1.0 - 7 * 0.01, 1.0),  # from 10 to 17
        ([LEFT] * 3, 0.1 - 3 * 0.01, 0.0),  # from 10 to 7
        ([LEFT, STAY, LEFT, RIGHT, LEFT, LEFT], 0.1 - 6 * 0.01, 0.0),
    ],
)
def test_returns(moves, earned, large):
    _, before, _ = walk(*moves[:-1])
    assert not before.over and before.view.alive.all()
    _, step, total = walk(*moves)
    assert total == pytest.approx(earned)
    assert step.over and step.terminated.tolist() == [True] and not step.truncated.any() and not step.view.alive.any()
    assert step.stats["Environment/Large Goal"] == large


def test_the_observation_is_the_position_and_the_line_has_ends():
    _, view = ENV.reset(jax.random.key(0), {})
    assert view.obs[0].tolist() == [[float(place == 10) for place in range(20)]]
    _, step = act(BasicState(position=jnp.int32(0)), LEFT)
    assert np.flatnonzero(step.view.obs[0][0]).tolist() == [0] and not step.over
    _, step = act(BasicState(position=jnp.int32(19)), RIGHT)
    assert np.flatnonzero(step.view.obs[0][0]).tolist() == [19] and not step.over


def test_the_picture_shows_the_agent_where_it_is():
    scene = ENV.draw(BasicState(position=np.int32(4)))
    assert scene.shapes[-1].centre == (5.0, 1.5)
    assert {"+0.1", "+1", "0", "19"} <= {getattr(shape, "label", "") for shape in scene.shapes}
