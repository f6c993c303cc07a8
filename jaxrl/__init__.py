"""MA-POCA, PPO and relatives in JAX, with ML-Agents' files and flags. What a script or notebook needs is here.

Everything is imported when it is first used: environment processes import this package too, and must not load JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxrl import mlagents_import

if TYPE_CHECKING:
    from jaxrl.algorithms import make_settings
    from jaxrl.algorithms.coma import make_coma
    from jaxrl.algorithms.mappo import make_mappo
    from jaxrl.algorithms.poca import make_poca
    from jaxrl.algorithms.ppo import make_ppo
    from jaxrl.callbacks import Callbacks, Follows
    from jaxrl.client.environment import unity_environment
    from jaxrl.client.gymnasium_view import gymnasium_view
    from jaxrl.client.pettingzoo_view import pettingzoo_view
    from jaxrl.jax_envs import make_environment
    from jaxrl.rollout.followed import AgentRecord, Episode, Trajectory
    from jaxrl.training.compiled.trainer import make_jitted_trainer

mlagents_import.install()

_HOMES = {
    "gymnasium_view": "jaxrl.client.gymnasium_view",
    "AgentRecord": "jaxrl.rollout.followed",
    "Callbacks": "jaxrl.callbacks",
    "Episode": "jaxrl.rollout.followed",
    "Follows": "jaxrl.callbacks",
    "Trajectory": "jaxrl.rollout.followed",
    "make_coma": "jaxrl.algorithms.coma",
    "make_environment": "jaxrl.jax_envs",
    "make_jitted_trainer": "jaxrl.training.compiled.trainer",
    "make_mappo": "jaxrl.algorithms.mappo",
    "make_poca": "jaxrl.algorithms.poca",
    "make_ppo": "jaxrl.algorithms.ppo",
    "make_settings": "jaxrl.algorithms",
    "pettingzoo_view": "jaxrl.client.pettingzoo_view",
    "unity_environment": "jaxrl.client.environment",
}

__all__ = [
    "AgentRecord",
    "Callbacks",
    "Episode",
    "Follows",
    "Trajectory",
    "gymnasium_view",
    "make_coma",
    "make_environment",
    "make_jitted_trainer",
    "make_mappo",
    "make_poca",
    "make_ppo",
    "make_settings",
    "pettingzoo_view",
    "unity_environment",
]


def __getattr__(name: str) -> Any:
    """The function of that name, imported now."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
