"""A behavior's algorithm as it acts where nobody learns and nothing is left to chance."""

from __future__ import annotations

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.connected import without_learning
from jaxrl.algorithms.interface import Algorithm
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


def deterministic(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """No noise in actions, no statistics that move, no critic that remembers; for `TrainState.policy` as it is."""
    network = settings.network_settings.model_copy(update={"deterministic": True})
    algorithm = ALGORITHMS[settings.trainer_type](spec, settings.model_copy(update={"network_settings": network}))
    return without_learning(algorithm)._replace(critic_step=None)
