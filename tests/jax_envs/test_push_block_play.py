"""Collaborative Push Block under random play: what a learner relies on, and areas that do not know of each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from push_block_moves import ENV, REST, compiled_step, quick_jit, team_actions

from jaxrl.jax_envs.interface import advance_areas, start_areas
from jaxrl.jax_envs.push_block import NUM_ACTIONS

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
