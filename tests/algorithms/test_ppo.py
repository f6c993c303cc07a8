"""PPO: its advantage is GAE, rows are independent, masked elements have no influence, one body or two."""

from __future__ import annotations

from functools import cache, partial

import jax
import numpy as np
import pytest
from team_rollouts import (
    SMALL,
    SPEC,
    assert_close,
    fresh,
    now_of,
    params_of,
    poison_unused,
    quick_jit,
    random_rollout,
    steps_of,
)

from jaxrl.algorithms import ppo
from jaxrl.algorithms.parts import Seen, loss_of
from jaxrl.learning import returns
from tests.helpers import ppo_settings

EPSILON, BETA = np.float32(0.2), np.float32(5e-3)
BODIES = pytest.mark.parametrize("shared", [False, True], ids=["two bodies", "shared body"])


@cache
def parts(shared: bool):
    """A learner, and jitted prepare, loss with gradient and update."""
    settings = ppo_settings(**SMALL, hyperparameters__shared_critic=shared)
    algorithm = ppo.make_ppo(SPEC, settings)
    steps = steps_of("ppo", settings)

    @quick_jit
    def graded(state, batch):
        return jax.value_and_grad(partial(loss_of, steps.parts), has_aux=True)(params_of(state), batch, now_of(state))

    return fresh(algorithm), quick_jit(steps.prepare), graded, quick_jit(steps.update), steps.parts


@BODIES
def test_order_of_the_rows_does_not_matter(shared: bool) -> None:
    state, prepare, graded, *_ = parts(shared)
    rollout = random_rollout(0, a=1)
    order = np.array([2, 3, 0, 1])
    (first, batch, _), (second, other, _) = (
        prepare(state, r) for r in (rollout, jax.tree.map(lambda x: x[:, order], rollout))
    )
    assert_close(graded(first, batch), graded(second, other))
    unflat = jax.tree.map(lambda x: np.asarray(x).reshape(5, 4, *x.shape[1:])[:, order].reshape(x.shape), batch)
    assert_close(unflat, other)


@BODIES
def test_empty_rows_do_not_matter(shared: bool) -> None:
    state, prepare, graded, *_ = parts(shared)
    rollout = random_rollout(1, a=1)
    padded = jax.tree.map(lambda x: np.pad(x, [(0, 3), (0, 2)] + [(0, 0)] * (x.ndim - 2)), rollout)
    (first, batch, estimates), (second, more, same) = (prepare(state, r) for r in (rollout, padded))
    assert_close((graded(first, batch), estimates), (graded(second, more), same))


@BODIES
def test_nan_in_masked_elements_changes_neither_loss_nor_gradient(shared: bool) -> None:
    state, prepare, graded, *_ = parts(shared)
    state, batch, _ = prepare(state, random_rollout(2, a=1))
    assert_close(graded(state, batch), graded(state, poison_unused(batch)), 0.0)


def test_advantage_is_gae_of_an_unbroken_row() -> None:
    """Nothing ends and everybody acts; the last state bootstraps."""
    state, prepare, *_, of_ppo = parts(False)
    rollout = random_rollout(3, a=1)
    everywhere = np.ones_like(rollout.acted)
    calm = dict.fromkeys(("terminated", "truncated", "left", "cut", "waiting"), ~everywhere)
    rollout = rollout._replace(present=everywhere, acted=everywhere & (np.arange(5) < 4)[:, None, None], **calm)
    after, batch, _ = prepare(state, rollout)
    states = jax.tree.map(lambda x: x.reshape(5, 4, 1, -1), batch.obs)
    value, _ = of_ppo.estimates(params_of(after), Seen(states, rollout.action, everywhere, ()), {})
    reward = (rollout.reward + rollout.group_reward)[:-1]
    raw = np.asarray(returns.gae(reward, value[:-1, ..., 0], value[-1, ..., 0], 0.99, 0.95))
    found = np.asarray(batch.advantage).reshape(5, 4, 1)[:-1]
    np.testing.assert_allclose(found, (raw - raw.mean()) / raw.std(), rtol=1e-3, atol=1e-4)


def test_group_reward_is_added_and_mates_rewards_are_not() -> None:
    """Two agents of one team are two rows; only their own and the group's reward count."""
    state, prepare, *_ = parts(False)
    rollout = random_rollout(4, a=1)
    own = prepare(
        state, rollout._replace(reward=rollout.reward + rollout.group_reward, group_reward=0 * rollout.reward)
    )
    assert_close(prepare(state, rollout)[1], own[1])
    other = rollout._replace(reward=rollout.reward + np.float32([[5], [0], [0], [0]]))
    first, second = (np.asarray(prepare(state, r)[1].returns).reshape(5, 4) for r in (rollout, other))
    np.testing.assert_array_equal(first[:, 1:], second[:, 1:])
    assert (first[:, 0] != second[:, 0]).any()


@BODIES
def test_update_moves_actor_and_critic(shared: bool) -> None:
    state, prepare, _, update, _ = parts(shared)
    state, batch, _ = prepare(state, random_rollout(5, a=1))
    after, metrics = update(state, batch)
    assert np.isfinite([float(x) for x in metrics.values()]).all()
    moved = jax.tree.map(
        lambda x, y: float(np.abs(np.asarray(x) - np.asarray(y)).max()), params_of(state), params_of(after)
    )
    assert min(jax.tree.leaves(moved)) > 0.0
    assert (jax.tree.leaves(moved["critic"]) == []) == shared


def test_update_is_reproducible() -> None:
    state, prepare, _, update, _ = parts(False)
    state, batch, _ = prepare(state, random_rollout(6, a=1))
    first, second = update(state, batch), update(state, batch)
    assert_close(params_of(first[0]), params_of(second[0]), 0.0)
