"""COMA with absorbing states: MA-POCA with another critic, by hand, what is masked, and posthumous credit."""

from __future__ import annotations

from functools import cache, partial

import jax
import numpy as np
import pytest
from probe_learner import Learner
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

from jaxrl.algorithms import poca
from jaxrl.algorithms.coma import make_coma
from jaxrl.algorithms.counterfactual import NO_SIZE
from jaxrl.algorithms.parts import loss_of
from jaxrl.learning import losses
from jaxrl.networks import actions
from jaxrl.networks.joint import JointCritic, TeamCapacityError
from jaxrl.networks.models import Actor
from tests.helpers import poca_settings, settings_of
from tests.probe_envs import SacrificeEnv

BETA = np.float32(5e-3)
SETTINGS = settings_of("coma", SMALL | {"hyperparameters__team_capacity": 3})


@cache
def parts():
    """Algorithm, a learner, jitted prepare and loss with gradient, and the critic as `make_coma` builds it."""
    algorithm, steps = make_coma(SPEC, SETTINGS), steps_of("coma", SETTINGS)

    @quick_jit
    def graded(state, batch):
        return jax.value_and_grad(partial(loss_of, steps.parts), has_aux=True)(params_of(state), batch, now_of(state))

    critic = JointCritic(SPEC, SETTINGS.network_settings, ("extrinsic",), 3)
    return algorithm, fresh(algorithm), quick_jit(steps.prepare), graded, critic


def test_with_critics_that_say_the_same_coma_and_poca_are_one() -> None:
    """All weights of the critics 0, V = b = 3: batch and estimates are equal to the last bit.

    Operation by operation: as two programs, XLA would round each in its own way.
    """
    rollout, found = random_rollout(0), []
    settings = poca_settings(**SMALL)
    for algorithm, prepare, heads in (
        (parts()[0], steps_of("coma", SETTINGS).prepare, [("baselines",), ("value", "values")]),
        (poca.make_poca(SPEC, settings), steps_of("poca", settings).prepare, [("values",)]),
    ):
        state = fresh(algorithm)
        critic = jax.tree.map(np.zeros_like, state.critic)
        for *way, last in heads:
            at = critic["params"]
            for name in way:
                at = at[name]
            at[last]["bias"] += np.float32(3)
        found.append(prepare(state.replace(critic=critic), rollout)[1:])
    assert_close(found[0], found[1], 0.0)
    assert float(found[0][1]["value_estimate/extrinsic"]) == pytest.approx(3.0)


def test_loss_by_hand_from_the_outputs_of_the_critic() -> None:
    """Means over what is trained on: policy + ½ (R − V)² + ¼ max of the clipped and plain (R − b)² − β entropy."""
    _, state, prepare, graded, critic = parts()
    state, batch, _ = prepare(state, random_rollout(1))
    stale = batch._replace(baseline=batch.baseline + np.float32(0.5))  # as after some minibatches: the clip acts
    (total, metrics), _ = graded(state, stale)
    encoding = actions.one_hot(batch.action, SPEC.action)
    value, baseline = quick_jit(critic.apply)(state.critic, batch.obs, encoding, batch.present, NO_SIZE)
    acted, target = np.asarray(batch.acted), np.asarray(batch.returns)[..., 0]
    b, old = np.asarray(baseline)[..., 0], np.asarray(stale.baseline)[..., 0]
    clipped = old + np.clip(b - old, -0.2, 0.2)
    worse = np.maximum((target - b) ** 2, (target - clipped) ** 2)[acted].mean()
    squares = ((target - np.asarray(value)) ** 2)[acted].mean()
    dist = quick_jit(Actor(SPEC, SETTINGS.network_settings).apply)(state.policy.params, batch.obs)
    log_prob = actions.log_prob(dist, batch.action, batch.action_mask, SPEC.action)
    policy = float(losses.clipped_policy_loss(log_prob, batch.log_prob, batch.advantage, batch.acted, 0.2))
    expected = policy + 0.5 * squares + 0.25 * worse - BETA * float(metrics["entropy"])
    assert float(metrics["baseline_loss"]) == pytest.approx(worse, rel=1e-4)
    assert float(total) == pytest.approx(expected, rel=1e-4)


def test_advantage_is_return_less_baseline_and_ignores_the_own_action() -> None:
    _, state, prepare, *_ = parts()
    rollout = random_rollout(2)
    other = rollout.action.continuous + np.float32([[1], [0], [0]])
    batch, changed = (
        prepare(state, r)[1] for r in (rollout, rollout._replace(action=rollout.action._replace(continuous=other)))
    )
    acted = np.asarray(batch.acted)
    raw = np.asarray(batch.returns - batch.baseline)[..., 0][acted]
    np.testing.assert_allclose(np.asarray(batch.advantage)[acted], (raw - raw.mean()) / raw.std(), rtol=1e-4, atol=1e-5)
    both = (rollout.present[..., 0] & rollout.present[..., 1]).ravel()
    np.testing.assert_array_equal(batch.baseline[:, 0], changed.baseline[:, 0])
    assert (np.abs(np.asarray(batch.baseline - changed.baseline)[:, 1])[both] > 1e-4).all()


def test_nan_in_masked_elements_changes_neither_loss_nor_gradient() -> None:
    _, state, prepare, graded, _ = parts()
    state, batch, _ = prepare(state, random_rollout(3))
    assert_close(graded(state, batch), graded(state, poison_unused(batch)), 0.0)


def test_larger_teams_are_named() -> None:
    algorithm, state, *_ = parts()
    with pytest.raises(TeamCapacityError, match=r"hyperparameters.team_capacity: 3, .*teams of 4 members"):
        jax.eval_shape(algorithm.learn, state, random_rollout(0, a=4))


def test_a_hero_is_credited_for_what_comes_after_its_death() -> None:
    """Dying is worth -0.2 + γ · 1 = 0.6 in the eyes of the team, staying 0."""
    learner = Learner("coma", SacrificeEnv(), updates=25)
    assert learner.policy(1, 0, 0)[1][1] > 0.9
    assert learner.value(0, 1, 1, place=1) == pytest.approx(1.0, abs=0.15)
