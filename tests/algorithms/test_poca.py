"""MA-POCA: order and padding of a team do not matter, what is masked has no influence, and the loss is what it says."""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from team_rollouts import (
    SMALL,
    SPEC,
    assert_close,
    fresh,
    members,
    now_of,
    pad_members,
    params_of,
    poison_unused,
    quick_jit,
    random_rollout,
    steps_of,
)

from jaxrl.algorithms import poca
from jaxrl.algorithms.interface import LARGEST_LOG_RATIO
from jaxrl.algorithms.parts import loss_of
from jaxrl.learning import losses, minibatches
from jaxrl.networks import actions
from jaxrl.networks.models import Actor, TeamCritic
from tests.helpers import poca_settings
from tests.rewards.own_signals import PLACE

EPSILON, BETA = np.float32(0.2), np.float32(5e-3)
ORDER = np.array([2, 0, 1])
SETTINGS = poca_settings(**SMALL)


@cache
def parts():
    """A learner, jitted prepare and loss with gradient, and the networks as `make_poca` builds them."""
    steps, network = steps_of("poca", SETTINGS), SETTINGS.network_settings

    @quick_jit
    def graded(state, batch):
        return jax.value_and_grad(partial(loss_of, steps.parts), has_aux=True)(params_of(state), batch, now_of(state))

    state = fresh(poca.make_poca(SPEC, SETTINGS))
    actor, critic = Actor(SPEC, network), TeamCritic(SPEC, network, ("extrinsic",))
    return state, quick_jit(steps.prepare), graded, actor, critic


def learn_once(rollout):
    """(loss, metrics), gradient, batch and new normaliser."""
    state, prepare, graded, *_ = parts()
    state, batch, estimates = prepare(state, rollout)
    return *graded(state, batch), batch, estimates, state


def test_order_of_the_members_does_not_matter() -> None:
    rollout = random_rollout(0)
    shuffled = members(rollout, lambda x: x[:, :, ORDER])
    first, second = learn_once(rollout), learn_once(shuffled)
    assert_close(first[:2], second[:2])
    assert_close(jax.tree.map(lambda x: np.asarray(x)[:, ORDER], first[2]), second[2])
    assert_close(first[3], second[3])


def test_padding_with_absent_members_does_not_matter() -> None:
    rollout = random_rollout(1)
    first, second = learn_once(rollout), learn_once(pad_members(rollout, 5))
    assert_close(first[:2], second[:2])
    batch = jax.tree.map(lambda x: np.asarray(x)[:, :3], second[2])
    present = np.asarray(first[2].present)[..., None]
    assert_close(first[2].advantage, batch.advantage)
    assert_close(first[2].returns, batch.returns)
    assert_close(np.where(present, first[2].baseline, 0.0), np.where(present, batch.baseline, 0.0))
    assert not np.asarray(second[2].acted)[:, 3:].any()
    assert not np.asarray(second[2].returns)[:, 3:].any()
    assert_close(first[3], second[3])


def test_value_is_one_for_the_team_and_the_baseline_ignores_the_own_action() -> None:
    """Another action of member 0 changes the baselines of its mates, not its own."""
    rollout = random_rollout(2)
    other = rollout._replace(
        action=rollout.action._replace(continuous=rollout.action.continuous + np.float32([[1], [0], [0]]))
    )
    first, second = (np.asarray(learn_once(r)[2].baseline) for r in (rollout, other))
    both = (rollout.present[..., 0] & rollout.present[..., 1]).ravel()
    np.testing.assert_allclose(first[:, 0], second[:, 0], rtol=1e-5, atol=1e-6)
    assert (np.abs(first[:, 1] - second[:, 1])[both] > 1e-4).all()


def test_nan_in_masked_elements_changes_neither_loss_nor_gradient() -> None:
    state, prepare, graded, *_ = parts()
    rollout = random_rollout(3)
    state, batch, _ = prepare(state, rollout)
    assert_close(graded(state, batch), graded(state, poison_unused(batch)), 0.0)


def test_nan_in_rewards_of_decisions_that_are_not_trained_changes_nothing() -> None:
    rollout = random_rollout(4)
    names = ("reward", "mates_reward", "group_reward")
    blank = {name: np.where(rollout.acted, getattr(rollout, name), np.float32(np.nan)) for name in names}
    assert_close(learn_once(rollout)[:3], learn_once(rollout._replace(**blank))[:3], 0.0)


def test_loss_is_policy_plus_half_of_value_and_half_baseline_less_entropy() -> None:
    state, prepare, graded, actor, critic = parts()
    state, batch, _ = prepare(state, random_rollout(5))
    (total, metrics), _ = graded(state, batch)

    @quick_jit
    def by_hand():
        dist = actor.apply(state.policy.params, batch.obs)
        log_prob = actions.log_prob(dist, batch.action, batch.action_mask, SPEC.action)
        encoding = actions.one_hot(batch.action, SPEC.action)
        value, _ = critic.apply(state.critic, batch.obs, encoding, batch.present, state.own["max_team"])
        return value, losses.clipped_policy_loss(log_prob, batch.log_prob, batch.advantage, batch.acted, EPSILON)

    value, policy = by_hand()
    assert float(metrics["policy_loss"]) == pytest.approx(abs(float(policy)), rel=1e-5)
    expected = policy + 0.5 * (metrics["value_loss"] + 0.5 * metrics["baseline_loss"]) - BETA * metrics["entropy"]
    assert float(total) == pytest.approx(float(expected), rel=1e-5)
    errors = np.square(np.asarray(batch.returns)[..., 0] - np.asarray(value))[np.asarray(batch.acted)]
    assert float(metrics["value_loss"]) == pytest.approx(errors.mean(), rel=1e-4)


def test_advantage_is_the_mean_over_signals_of_return_less_baseline_normalised_over_the_trained_decisions() -> None:
    signals = {"extrinsic": {}, "first": {"type": f"{PLACE}:make_first", "gamma": 0.5, "strength": 2.0}}
    settings = poca_settings(**SMALL, reward_signals=signals)
    state = fresh(poca.make_poca(SPEC, settings))
    _, batch, _ = quick_jit(steps_of("poca", settings).prepare)(state, random_rollout(6))
    acted = np.asarray(batch.acted)
    of_signals = np.asarray(batch.returns - batch.baseline)[acted]
    assert of_signals.shape[-1] == 2 and np.abs(of_signals[:, 0] - of_signals[:, 1]).max() > 0.1
    raw = of_signals.mean(-1)
    np.testing.assert_allclose(np.asarray(batch.advantage)[acted], (raw - raw.mean()) / raw.std(), rtol=1e-4, atol=1e-5)
    assert not np.asarray(batch.advantage)[~acted].any()


def test_gradient_of_several_chunks_is_that_of_the_whole_minibatch() -> None:
    """16 places, at most 3 of them taken: 64 members ask for all 20 states, in 5 chunks of 4 at a time."""
    state, prepare, graded, *_ = parts()
    state, batch, _ = prepare(state, pad_members(random_rollout(8), 13))
    loss = partial(loss_of, steps_of("poca", SETTINGS).parts)

    def gradient(_, chunk):
        assert chunk.acted.shape == (4, 16)
        return jax.grad(loss, has_aux=True)(params_of(state), chunk, now_of(state))

    zeros = jax.tree.map(np.zeros_like, params_of(state))
    told = {"magnitudes": ("policy_loss",), "largest": (LARGEST_LOG_RATIO,)}
    run = partial(minibatches.run, gradient, lambda sums, x: jax.tree.map(jnp.add, sums, x), zeros, size=64, epochs=1)
    run = partial(run, **told)
    for rows in (batch, poison_unused(batch)):
        found, metrics = quick_jit(run)(rows, np.asarray(rows.acted), jax.random.key(0))
        (_, whole_metrics), whole = graded(state, batch)
        assert_close(found, whole, 1e-5)
        assert metrics["entropy"] == pytest.approx(float(whole_metrics["entropy"]), rel=1e-5)
        assert metrics["value_loss"] == pytest.approx(float(whole_metrics["value_loss"]), rel=1e-5)
        assert metrics["policy_loss"] == pytest.approx(abs(float(whole_metrics["policy_loss"])), rel=1e-4)
        assert metrics[LARGEST_LOG_RATIO] == pytest.approx(float(whole_metrics[LARGEST_LOG_RATIO]), rel=1e-5)


def test_largest_team_only_ever_grows() -> None:
    state, prepare, *_ = parts()
    three = random_rollout(7)
    one = three._replace(present=three.present & [True, False, False])
    largest = [float(state.own["max_team"])]
    for rollout in (one, three, one):
        state, *_ = prepare(state, rollout)
        largest.append(float(state.own["max_team"]))
    assert largest == [1.0, 1.0, 3.0, 3.0]
