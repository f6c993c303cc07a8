"""Algorithms of what connectors make of an environment's observations: every `make_*` is one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import jax

from jaxrl.algorithms.interface import Algorithm, TrainState
from jaxrl.connectors import make_chain
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec

Make = Callable[[BehaviorSpec, BehaviorSettings], Algorithm]


def connected(make: Make) -> Make:
    """`make` for what the environment shows, where it was for what the policy sees; the same without connectors.

    The statistics of the connectors then are part of the policy. Raises ConnectorError where connectors do not fit.
    """

    @wraps(make)
    def make_connected(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
        chain = make_chain(spec, settings.connectors)
        if chain is None:
            return make(spec, settings)
        algorithm = make(chain.spec, settings)

        def init(key: jax.Array) -> TrainState:
            state = algorithm.init(key)
            return state.replace(policy=state.policy.replace(connectors=chain.shared))

        return algorithm._replace(init=init, connectors=chain)

    return make_connected
