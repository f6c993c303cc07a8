"""PPO and MA-POCA learn what the probes teach: values, discounts, actions, bootstrapping, posthumous credit."""

from __future__ import annotations

import numpy as np
import pytest
from probe_learner import GAMMA, LAMBDA, Learner

from tests.probe_envs import (
    ChosenReward,
    ConstantReward,
    DelayedReward,
    EndlessReward,
    FarReward,
    MatchedReward,
    ObservedReward,
    ProbeEnv,
    SacrificeEnv,
)

BOTH = pytest.mark.parametrize("trainer", ["ppo", "poca"])


@BOTH
def test_constant_reward_is_valued(trainer: str) -> None:
    learner = Learner(trainer, ProbeEnv(ConstantReward()), updates=15)
    assert learner.value(0, 0) == pytest.approx(1.0, abs=0.05)


@BOTH
def test_observation_is_valued(trainer: str) -> None:
    learner = Learner(trainer, ProbeEnv(ObservedReward()), updates=15)
    assert [learner.value(o, 0) for o in (-1, 1)] == pytest.approx([-1.0, 1.0], abs=0.1)


@BOTH
def test_delayed_reward_is_discounted(trainer: str) -> None:
    learner = Learner(trainer, ProbeEnv(DelayedReward()), updates=20)
    assert [learner.value(o, 0) for o in (0, 1)] == pytest.approx([GAMMA * 1.0, 1.0], abs=0.08)


@BOTH
def test_continuous_action_that_pays_is_learned(trainer: str) -> None:
    learner = Learner(trainer, ProbeEnv(ChosenReward()), updates=10)
    mean, _ = learner.policy(0, 0)
    assert mean == pytest.approx([0.5], abs=0.1)


@BOTH
def test_hybrid_action_that_fits_the_observation_is_learned(trainer: str) -> None:
    learner = Learner(trainer, ProbeEnv(MatchedReward()), updates=10)
    for sign in (-1, 1):
        mean, branch = learner.policy(sign, 0)
        assert mean == pytest.approx([0.5 * sign], abs=0.1)
        assert branch[int(sign > 0)] > 0.9


@BOTH
def test_observations_far_from_zero_are_told_apart_with_normalize_from_data(trainer: str) -> None:
    """100,000 less and more 1: what networks are shown is -1 and 1, and 0 for the number that stays."""
    keys = ("normalize", "normalize_from_data")
    learner = Learner(
        trainer, ProbeEnv(FarReward(1e5)), updates=10, **{f"network_settings__{key}": True for key in keys}
    )
    (statistics,) = learner.behavior.state.policy.normalizer
    np.testing.assert_allclose(statistics.mean, 1e5, atol=0.1)
    np.testing.assert_allclose(statistics.m2 / statistics.count, [1.0, 0.0], atol=0.02)
    for sign in (-1, 1):
        mean, branch = learner.policy(sign, 0)
        assert mean == pytest.approx([0.5 * sign], abs=0.1)
        assert branch[int(sign > 0)] > 0.9


@BOTH
def test_interrupted_episodes_are_worth_as_much_as_endless_ones(trainer: str) -> None:
    """1 + γ + γ² + ... = 1 / (1 - γ) = 5, though no episode is longer than 4."""
    learner = Learner(trainer, ProbeEnv(EndlessReward(truncated=True)), updates=40)
    assert learner.value(0, 0) == pytest.approx(1 / (1 - GAMMA), rel=0.05)


@BOTH
def test_terminated_episodes_are_worth_what_they_paid(trainer: str) -> None:
    """The state does not tell the time: V is the mean of the λ-returns of its four steps, which bootstrap from V."""
    v = 0.0
    for _ in range(200):
        later, total = 1.0, 1.0  # the last step pays 1 and nothing follows
        for _ in range(3):
            later = 1.0 + GAMMA * ((1 - LAMBDA) * v + LAMBDA * later)
            total += later
        v = total / 4
    assert v == pytest.approx(2.10, abs=0.01)
    learner = Learner(trainer, ProbeEnv(EndlessReward(truncated=False)), updates=25)
    assert learner.value(0, 0) == pytest.approx(v, abs=0.2)


@pytest.mark.parametrize("alone", [False, True], ids=["with its mates", "in a message of its own"])
def test_poca_credits_a_hero_for_what_comes_after_its_death(alone: bool) -> None:
    """Dying is worth -0.2 + γ · 1 = 0.6 in the eyes of the team, staying 0."""
    env = SacrificeEnv(alone=alone)
    learner = Learner("poca", env, updates=25)
    assert learner.policy(1, 0, 0)[1][1] > 0.9
    assert learner.value(0, 1, 1) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("alone", [False, True], ids=["with its mates", "in a message of its own"])
def test_poca_credits_a_hero_for_what_its_death_itself_brings(alone: bool) -> None:
    """Dying is worth -0.2 + 1 = 0.8, although the hero is gone when the team is rewarded."""
    learner = Learner("poca", SacrificeEnv(alone=alone, at_once=True), updates=25)
    assert learner.policy(1, 0, 0)[1][1] > 0.9


def test_ppo_does_not() -> None:
    """A PPO hero sees -0.2 for dying and 0 for staying."""
    learner = Learner("ppo", SacrificeEnv(), updates=25)
    assert learner.policy(1, 0, 0)[1][1] < 0.1
