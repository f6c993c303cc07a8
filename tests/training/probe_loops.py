"""A learner in one of the probes of `jaxrl.jax_envs.probes`, in either loop, and what share of the most it earns."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxrl.algorithms import ALGORITHMS
from jaxrl.envs.player.teams import Teams
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.served.serve import JittedAreas
from jaxrl.rollout.booking.slots import Source
from jaxrl.settings import BehaviorSettings
from jaxrl.training.compiled.trainer import make_jitted_trainer
from jaxrl.training.host.behavior import Behavior, Programs, make_behavior
from jaxrl.training.host.decide import ActorPrograms, decide
from jaxrl.training.host.learner import LearnerPrograms, learn
from jaxrl.types import Action, BehaviorMessage
from tests.helpers import settings_of
from tests.jax_envs.toy_jax_env import quick_compilation, quick_jit

AREAS = 16
MEASURED = 10
"""Updates at the end, over which is measured what the policy earns while it still explores."""
SOURCE = Source(0, "Probe?team=0")
_USUAL = {
    "reward_signals__extrinsic__gamma": 0.9,
    "hyperparameters__batch_size": 64,
    "hyperparameters__buffer_size": 255,
    "hyperparameters__num_epoch": 4,
    "hyperparameters__learning_rate": 0.003,
    "hyperparameters__learning_rate_schedule": "constant",
    "network_settings__hidden_units": 32,
    "network_settings__num_layers": 1,
}


def settings_for(trainer: str, changes: dict[str, Any]) -> BehaviorSettings:
    """Small networks and small buffers, with some changes."""
    room = {"hyperparameters__team_capacity": 2} if trainer in ("mappo", "coma") else {}
    return settings_of(trainer, _USUAL | room | changes)


def share_in_compiled_loop(trainer: str, env: JaxEnv, updates: int, paid: str = "group", **changes: Any) -> float:
    """Mean return in the last updates of `updates`, environment and learner as one program."""
    settings = settings_for(trainer, changes)
    with contextlib.nullcontext() if convolves(settings, env) else quick_compilation():
        made = make_jitted_trainer(env, ALGORITHMS[trainer](env.spec, settings), settings, areas=AREAS)
        state = made.init([0])
    state, _ = made.run(state, updates - MEASURED)
    _, log = made.run(state, MEASURED)
    return float(log.group_reward[0] if env.members > 1 and paid == "group" else log.reward[0])


def convolves(settings: BehaviorSettings, env: JaxEnv) -> bool:
    """Whether there are convolutions: they are very slow where XLA does not optimise."""
    images = any(len(sensor.shape) == 3 for sensor in env.spec.observations)
    return images and settings.network_settings.vis_encode_type != "fully_connected"


def share_in_host_loop(trainer: str, env: JaxEnv, updates: int, **changes: Any) -> float:
    """The same over messages, through the programs of a real behavior."""
    behavior = host_behavior(trainer, env, **changes)
    played, returns = Messages(env), []
    message = played.first()
    while behavior.updates < updates:
        actions, _ = behavior.act({SOURCE: message})
        message = played.step(actions[SOURCE])
        if behavior.updates >= updates - MEASURED:
            returns.append(message.ended.reward + message.ended.group_reward)
        if behavior.due():
            behavior.learn()
    return float(np.concatenate(returns).mean())


def host_behavior(trainer: str, env: JaxEnv, **changes: Any) -> Behavior:
    """A real behavior whose programs are compiled quickly."""
    settings = settings_for(trainer, changes)
    algorithm = ALGORITHMS[trainer](env.spec, settings)
    jit = jax.jit if convolves(settings, env) else quick_jit
    programs = Programs(
        ActorPrograms(decide=jit(partial(decide, algorithm, settings.time_horizon), donate_argnums=1)),
        LearnerPrograms(learn=jit(partial(learn, algorithm), donate_argnums=(0, 1, 2))),
    )
    algorithm = algorithm._replace(init=quick_jit(algorithm.init))
    return make_behavior("Probe", env.spec, settings, algorithm, programs, jax.random.key(0), training=True)


class Messages:
    """Areas of an environment as messages, as a player tells them."""

    def __init__(self, env: JaxEnv) -> None:
        self._areas, self._teams = JittedAreas(env, AREAS, 0), Teams(env.spec, AREAS, env.members)
        self._parameters = {name: np.full(AREAS, value, np.float32) for name, value in env.parameters.items()}

    def first(self) -> BehaviorMessage:
        """Everybody begins."""
        (begun,) = self._areas.reset(self._parameters)
        self._teams.restart(begun)
        (ended,), (deciding,) = self._teams.absorb(begun), self._teams.ask(begun, True)
        return BehaviorMessage(ended=ended, deciding=deciding)

    def step(self, action: Action) -> BehaviorMessage:
        """What came of the actions of those who asked."""
        self._teams.decide([action])
        (played,) = self._areas.step((self._teams.actions,), self._parameters)
        (ended,), (deciding,) = self._teams.absorb(played), self._teams.ask(played, True)
        return BehaviorMessage(ended=ended, deciding=deciding)
