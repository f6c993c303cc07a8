"""The four tasks of paper.py and the settings in which MA-POCA, COMA and PPO are compared on them.

Everything that all three have is equal: environments, agent steps per update, agent steps per minibatch, epochs,
learning rate, entropy bonus, discount, λ and width of the networks. The numbers are those of configs/poca/ but
for the steps, for Push Block's 64 instead of 128 units, and for the minibatch, which is given in agent steps here: the
team trainers cut minibatches of batch_size // A team states with room for A members each, so that their batch_size is
minibatch / (members at the start) · A, and PPO's is minibatch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxrl import make_environment, make_settings
from jaxrl.jax_envs.baton_pass import BatonSettings, make_baton_pass
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.settings import BehaviorSettings
from jaxrl.training.compiled.planning import agents_at_start

TRAINERS = {"poca": "MA-POCA", "coma": "COMA", "ppo": "PPO"}
"""Trainer types and what the table and the figure call them."""


class Task(NamedTuple):
    """One environment and what is equal for all trainers."""

    title: str
    steps: int  # agent steps of each seed
    minibatch: int  # agent steps
    buffer: int  # agent steps per update, if nobody dies
    areas: int
    epochs: int
    units: int  # of each of the two hidden layers
    learning_rate: float
    schedule: str  # of the learning rate; beta and epsilon are constant
    beta: float
    horizon: int
    strength: float = 1.0  # of the reward; the returns shown are without it


TASKS = {
    "push_block": Task("Collaborative Push Block", 1_000_000, 512, 4096, 16, 4, 64, 7e-4, "constant", 0.02, 100),
    "simple_spread": Task("Simple Spread", 300_000, 512, 6144, 16, 4, 64, 1e-3, "linear", 0.01, 128, 0.1),
    "baton_pass": Task("Baton Pass", 150_000, 64, 2048, 32, 3, 64, 1e-3, "constant", 0.01, 128),
    "dungeon_escape": Task("Dungeon Escape", 300_000, 300, 4096, 16, 3, 64, 1e-3, "constant", 0.01, 100),
}


def environment_for(task: str, trainer: str) -> JaxEnv:
    """The environment. Baton Pass gives COMA a row for each of its 22 runners, as absorbing states need it."""
    if task == "baton_pass" and trainer == "coma":
        return make_baton_pass(BatonSettings(rows=BatonSettings().runners))
    return make_environment(f"jax:{task}")


def settings_for(task: Task, trainer: str, env: JaxEnv) -> BehaviorSettings:
    """Settings of one trainer; raises SettingsError for an unknown one."""
    hyperparameters: dict[str, Any] = {
        "batch_size": batch_size(task, trainer, env),
        "buffer_size": task.buffer,
        "learning_rate": task.learning_rate,
        "learning_rate_schedule": task.schedule,
        "beta": task.beta,
        "beta_schedule": "constant",
        "epsilon": 0.2,
        "epsilon_schedule": "constant",
        "lambd": 0.95,
        "num_epoch": task.epochs,
    }
    if trainer == "coma":
        hyperparameters["team_capacity"] = env.members
    return make_settings(
        trainer,
        max_steps=task.steps,
        time_horizon=task.horizon,
        hyperparameters=hyperparameters,
        network_settings={"hidden_units": task.units, "num_layers": 2, "normalize": False},
        reward_signals={"extrinsic": {"gamma": 0.99, "strength": task.strength}},
    )


def batch_size(task: Task, trainer: str, env: JaxEnv) -> int:
    """What makes a minibatch hold `minibatch` agent steps as long as nobody is dead."""
    if trainer == "ppo":
        return task.minibatch
    return task.minibatch // int(agents_at_start(env, env.parameters)[env.name]) * env.members
