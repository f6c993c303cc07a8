"""A learner in a probe environment, through the programs of a real behavior."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import numpy as np
from team_rollouts import quick_jit

from jaxrl.algorithms import ALGORITHMS
from jaxrl.networks.joint import JointValue
from jaxrl.networks.models import Actor, TeamCritic, ValueNetwork
from jaxrl.rollout.booking.slots import Source
from jaxrl.rollout.buffer import trajectory
from jaxrl.training.host.behavior import Programs, make_behavior
from jaxrl.training.host.decide import ActorPrograms, decide
from jaxrl.training.host.learner import LearnerPrograms, learn
from jaxrl.types import BehaviorSpec
from tests.helpers import settings_of
from tests.probe_envs import ProbeEnv, SacrificeEnv

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
CAPACITY = 3
SOURCE = Source(0, "Probe?team=0")


@cache
def made(trainer: str, spec: BehaviorSpec, **changes: Any):
    """Settings, algorithm and programs: compiled once for all probes with these actions and `changes` of settings."""
    room = {"hyperparameters__team_capacity": CAPACITY} if trainer in ("mappo", "coma") else {}
    settings = settings_of(trainer, OVERRIDES | room | changes)
    algorithm = ALGORITHMS[trainer](spec, settings)
    algorithm = algorithm._replace(init=quick_jit(algorithm.init))
    programs = Programs(
        ActorPrograms(
            decide=quick_jit(partial(decide, algorithm, settings.time_horizon), donate_argnums=1),
            allocate=quick_jit(trajectory.init, static_argnames=("spec", "extras", "capacity", "rows", "members")),
            turn=quick_jit(trajectory.turn),
        ),
        LearnerPrograms(learn=quick_jit(partial(learn, algorithm), donate_argnums=(0, 1, 2))),
    )
    return settings, algorithm, programs


@cache
def actor(trainer: str, spec: BehaviorSpec):
    """What the policy says of observations, as one program."""
    return quick_jit(Actor(spec, made(trainer, spec)[0].network_settings).apply)


class Learner:
    """A behavior in a probe, and what it believes. `changes`: settings other than those of `OVERRIDES`."""

    def __init__(self, trainer: str, env: ProbeEnv | SacrificeEnv, updates: int, seed: int = 0, **changes: Any) -> None:
        settings, algorithm, programs = made(trainer, env.spec, **changes)
        self.trainer, self.spec, self.settings = trainer, env.spec, settings
        key = jax.random.key(seed)
        self.behavior = make_behavior("Probe", env.spec, settings, algorithm, programs, key, training=True)
        steps = env.first()
        while self.behavior.updates < updates:
            actions, _ = self.behavior.act({SOURCE: steps})
            steps = env.step(actions[SOURCE])
            if self.behavior.due():
                self.behavior.learn()

    def value(self, *obs: float, place: int = 0) -> float:
        """V of one agent alone, for a fully connected critic in its place."""
        network, x = self.settings.network_settings, (np.array([[obs]], np.float32),)
        state = self.behavior.state
        if self.trainer == "ppo":
            return float(ValueNetwork(self.spec, network, ("extrinsic",)).apply(state.critic, x)[0, 0, 0])
        if self.trainer in ("mappo", "coma"):
            params = state.critic if self.trainer == "mappo" else {"params": state.critic["params"]["value"]}
            everywhere, there = (np.repeat(x[0], CAPACITY, axis=1),), np.arange(CAPACITY)[None] == place
            joint = JointValue(self.spec, network, ("extrinsic",), CAPACITY)
            return float(joint.apply(params, everywhere, there)[0, 0])
        alone = np.ones((1, 1), bool)
        critic = TeamCritic(self.spec, network, ("extrinsic",))
        return float(critic.apply(state.critic, x, alone, state.own["max_team"], method="value_only")[0, 0])

    def policy(self, *obs: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean action as the environment receives it, and probabilities of the branch."""
        dist = actor(self.trainer, self.spec)(self.behavior.state.policy.params, (np.array([[obs]], np.float32),))
        return np.clip(dist.mean[0, 0], -3, 3) / 3, np.asarray(jax.nn.softmax(dist.logits[0, 0]))
