"""What settings put around every algorithm: connectors in front of it, a function between rollout and returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import jax

from jaxrl.algorithms.interface import Algorithm, TrainState
from jaxrl.algorithms.postprocessing import postprocessed, resolve
from jaxrl.connectors import make_chain
from jaxrl.connectors.chain import frozen
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec

Make = Callable[[BehaviorSpec, BehaviorSettings], Algorithm]


def connected(make: Make) -> Make:
    """`make` for what the environment shows, where it was for what the policy sees; the same without settings for it.

    The statistics of connectors are part of the policy. `postprocess` changes rollouts before they are stored. Raises
    ConnectorError where connectors do not fit, PostprocessingError where the function does not exist.
    """

    @wraps(make)
    def make_connected(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
        chain = make_chain(spec, settings.connectors)
        algorithm = make(spec if chain is None else chain.spec, settings)
        if settings.postprocess is not None:
            algorithm = postprocessed(algorithm, resolve(settings.postprocess), settings.postprocess)
        if chain is None:
            return algorithm

        def init(key: jax.Array) -> TrainState:
            state = algorithm.init(key)
            return state.replace(policy=state.policy.replace(connectors=chain.shared))

        return algorithm._replace(init=init, connectors=chain)

    return make_connected


def without_learning(algorithm: Algorithm) -> Algorithm:
    """The same for evaluation: the statistics of its connectors stay as they are."""
    if algorithm.connectors is None:
        return algorithm
    return algorithm._replace(connectors=frozen(algorithm.connectors))
