"""MA-POCA, PPO and relatives in JAX, with ML-Agents' files and flags. What a script or notebook needs is here.

Everything is imported when it is first used: environment processes import this package too, and must not load JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxrl import mlagents_import

if TYPE_CHECKING:
    from jaxrl.algorithms import make_algorithm, make_settings, trainer_type
    from jaxrl.algorithms.coma import make_coma
    from jaxrl.algorithms.hyperparameters import PPOHyperparameters
    from jaxrl.algorithms.interface import Algorithm, Counts, Decision, PolicyState, Storage, TrainState
    from jaxrl.algorithms.mappo import make_mappo
    from jaxrl.algorithms.poca import make_poca
    from jaxrl.algorithms.ppo import make_ppo
    from jaxrl.callbacks import Callbacks, Follows
    from jaxrl.client.environment import unity_environment
    from jaxrl.client.episodes import PlayedEpisodes
    from jaxrl.client.gymnasium_view import gymnasium_view
    from jaxrl.client.pettingzoo_view import pettingzoo_view
    from jaxrl.client.policy import Policy, PolicyAction, load
    from jaxrl.client.policy_inputs import PolicyError
    from jaxrl.jax_envs import make_environment, make_scene
    from jaxrl.jax_envs.contract import check_environment
    from jaxrl.jax_envs.interface import JaxEnv, TeamActions, TeamStep, TeamView
    from jaxrl.jax_envs.scene import BehaviorPart, BehaviorStep, JaxScene, SceneStep
    from jaxrl.rewards import reward_signal
    from jaxrl.rewards.interface import RewardSignal
    from jaxrl.rollout.following.followed import AgentRecord, Episode, Trajectory
    from jaxrl.rollout.rollout import Rollout
    from jaxrl.rollout.transitions import Transitions, transitions
    from jaxrl.settings import BehaviorSettings
    from jaxrl.settings.behavior import Hyperparameters
    from jaxrl.settings.rewards import OwnSignalSettings
    from jaxrl.tools.report.events import Curve
    from jaxrl.tools.report.metrics import RunMetrics, read_metrics
    from jaxrl.training.compiled.iteration import IterationLog, JittedTrainer
    from jaxrl.training.compiled.trainer import make_jitted_trainer
    from jaxrl.training.host.loop import HostLoop, Turn
    from jaxrl.training.host.run import host_loop
    from jaxrl.types import ActionSpec, BehaviorSpec, JaxrlError, ObservationSpec

mlagents_import.install()

_HOMES = {
    "ActionSpec": "jaxrl.types",
    "AgentRecord": "jaxrl.rollout.following.followed",
    "Algorithm": "jaxrl.algorithms.interface",
    "BehaviorPart": "jaxrl.jax_envs.scene",
    "BehaviorSettings": "jaxrl.settings",
    "BehaviorSpec": "jaxrl.types",
    "BehaviorStep": "jaxrl.jax_envs.scene",
    "Callbacks": "jaxrl.callbacks",
    "Counts": "jaxrl.algorithms.interface",
    "Curve": "jaxrl.tools.report.events",
    "Decision": "jaxrl.algorithms.interface",
    "Episode": "jaxrl.rollout.following.followed",
    "Follows": "jaxrl.callbacks",
    "HostLoop": "jaxrl.training.host.loop",
    "Hyperparameters": "jaxrl.settings.behavior",
    "IterationLog": "jaxrl.training.compiled.iteration",
    "JaxEnv": "jaxrl.jax_envs.interface",
    "JaxScene": "jaxrl.jax_envs.scene",
    "JaxrlError": "jaxrl.types",
    "JittedTrainer": "jaxrl.training.compiled.iteration",
    "ObservationSpec": "jaxrl.types",
    "OwnSignalSettings": "jaxrl.settings.rewards",
    "PPOHyperparameters": "jaxrl.algorithms.hyperparameters",
    "PlayedEpisodes": "jaxrl.client.episodes",
    "Policy": "jaxrl.client.policy",
    "PolicyAction": "jaxrl.client.policy",
    "PolicyError": "jaxrl.client.policy_inputs",
    "PolicyState": "jaxrl.algorithms.interface",
    "RewardSignal": "jaxrl.rewards.interface",
    "Rollout": "jaxrl.rollout.rollout",
    "RunMetrics": "jaxrl.tools.report.metrics",
    "SceneStep": "jaxrl.jax_envs.scene",
    "Storage": "jaxrl.algorithms.interface",
    "TeamActions": "jaxrl.jax_envs.interface",
    "TeamStep": "jaxrl.jax_envs.interface",
    "TeamView": "jaxrl.jax_envs.interface",
    "TrainState": "jaxrl.algorithms.interface",
    "Trajectory": "jaxrl.rollout.following.followed",
    "Transitions": "jaxrl.rollout.transitions",
    "Turn": "jaxrl.training.host.loop",
    "check_environment": "jaxrl.jax_envs.contract",
    "gymnasium_view": "jaxrl.client.gymnasium_view",
    "host_loop": "jaxrl.training.host.run",
    "load": "jaxrl.client.policy",
    "make_algorithm": "jaxrl.algorithms",
    "make_coma": "jaxrl.algorithms.coma",
    "make_environment": "jaxrl.jax_envs",
    "make_jitted_trainer": "jaxrl.training.compiled.trainer",
    "make_mappo": "jaxrl.algorithms.mappo",
    "make_poca": "jaxrl.algorithms.poca",
    "make_ppo": "jaxrl.algorithms.ppo",
    "make_scene": "jaxrl.jax_envs",
    "make_settings": "jaxrl.algorithms",
    "pettingzoo_view": "jaxrl.client.pettingzoo_view",
    "read_metrics": "jaxrl.tools.report.metrics",
    "reward_signal": "jaxrl.rewards",
    "trainer_type": "jaxrl.algorithms",
    "transitions": "jaxrl.rollout.transitions",
    "unity_environment": "jaxrl.client.environment",
}

__all__ = [
    "ActionSpec",
    "AgentRecord",
    "Algorithm",
    "BehaviorPart",
    "BehaviorSettings",
    "BehaviorSpec",
    "BehaviorStep",
    "Callbacks",
    "Counts",
    "Curve",
    "Decision",
    "Episode",
    "Follows",
    "HostLoop",
    "Hyperparameters",
    "IterationLog",
    "JaxEnv",
    "JaxScene",
    "JaxrlError",
    "JittedTrainer",
    "ObservationSpec",
    "OwnSignalSettings",
    "PPOHyperparameters",
    "PlayedEpisodes",
    "Policy",
    "PolicyAction",
    "PolicyError",
    "PolicyState",
    "RewardSignal",
    "Rollout",
    "RunMetrics",
    "SceneStep",
    "Storage",
    "TeamActions",
    "TeamStep",
    "TeamView",
    "TrainState",
    "Trajectory",
    "Transitions",
    "Turn",
    "check_environment",
    "gymnasium_view",
    "host_loop",
    "load",
    "make_algorithm",
    "make_coma",
    "make_environment",
    "make_jitted_trainer",
    "make_mappo",
    "make_poca",
    "make_ppo",
    "make_scene",
    "make_settings",
    "pettingzoo_view",
    "read_metrics",
    "reward_signal",
    "trainer_type",
    "transitions",
    "unity_environment",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """The function of that name, imported now; `__version__` is that of the installed package."""
    if name == "__version__":
        return import_module("jaxrl.artifacts.versions").versions()["jaxrl_version"]
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
