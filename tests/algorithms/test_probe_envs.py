"""PPO and MA-POCA learn what the probes teach: values, discounts, actions, bootstrapping, posthumous credit."""

from __future__ import annotations

from functools import cache, partial

import jax
import numpy as np
import pytest
from team_rollouts import quick_jit

from jaxrl.algorithms import ALGORITHMS
from jaxrl.behavior import Behavior, Programs, decide, learn
from jaxrl.networks.models import Actor, TeamCritic, ValueNetwork
from jaxrl.types import BehaviorSpec
from tests.helpers import settings_of
from tests.probe_envs import (
    ChosenReward,
    ConstantReward,
    DelayedReward,
    EndlessReward,
    MatchedReward,
    ObservedReward,
    ProbeEnv,
    SacrificeEnv,
)

GAMMA, LAMBDA = 0.8, 0.9
OVERRIDES = {
    "reward_signals__extrinsic__gamma": GAMMA,
    "hyperparameters__lambd": LAMBDA,
    "hyperparameters__batch_size": 64,
    "hyperparameters__buffer_size": 255,
    "hyperparameters__num_epoch": 4,
    "hyperparameters__learning_rate": 0.01,
    "hyperparameters__learning_rate_schedule": "constant",
    "network_settings__hidden_units": 16,
    "network_settings__num_layers": 1,
}
SOURCE = (0, "Probe?team=0")
BOTH = pytest.mark.parametrize("trainer", ["ppo", "poca"])


@cache
def made(trainer: str, spec: BehaviorSpec):
    """Settings, algorithm and programs: compiled once for all probes with these actions."""
    settings = settings_of(trainer, OVERRIDES)
    algorithm = ALGORITHMS[trainer](spec, settings)
    algorithm = algorithm._replace(init=quick_jit(algorithm.init))
    programs = Programs(
        decide=quick_jit(partial(decide, algorithm, settings.time_horizon), donate_argnums=1),
        learn=quick_jit(partial(learn, algorithm), donate_argnums=(0, 1)),
    )
    return settings, algorithm, programs


class Learner:
    """A behavior in a probe, and what it believes."""

    def __init__(self, trainer: str, env: ProbeEnv | SacrificeEnv, updates: int, seed: int = 0) -> None:
        settings, algorithm, programs = made(trainer, env.spec)
        self.trainer, self.spec, self.settings = trainer, env.spec, settings
        self.behavior = Behavior("Probe", env.spec, settings, algorithm, programs, jax.random.key(seed), training=True)
        steps = env.first()
        while self.behavior.updates < updates:
            actions, _ = self.behavior.act({SOURCE: steps})
            steps = env.step(actions[SOURCE])
            if self.behavior.ready():
                self.behavior.learn()

    def value(self, *obs: float) -> float:
        """V of one agent alone."""
        network, x = self.settings.network_settings, (np.array([[obs]], np.float32),)
        state = self.behavior.state
        if self.trainer == "ppo":
            return float(ValueNetwork(self.spec, network, ("extrinsic",)).apply(state.critic, x)[0, 0, 0])
        critic = TeamCritic(self.spec, network, ("extrinsic",))
        alone = np.ones((1, 1), bool)
        return float(critic.apply(state.critic, x, alone, state.max_team, method="value_only")[0, 0])

    def policy(self, *obs: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean action as the environment receives it, and probabilities of the branch."""
        dist = Actor(self.spec, self.settings.network_settings).apply(
            self.behavior.state.policy.params, (np.array([[obs]], np.float32),)
        )
        return np.clip(dist.mean[0, 0], -3, 3) / 3, np.asarray(jax.nn.softmax(dist.logits[0, 0]))


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
