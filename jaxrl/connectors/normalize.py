"""`normalize`: vector observations by their running mean and deviation, brought up to date at every decision;
`normalize_rewards`: rewards in units of how much returns vary (Engstrom et al. 2020, "Implementation matters").

`network_settings.normalize` does the same once per update, and shows the policy and its critics what it has learned
since; a run has one or the other. This one stores what was seen at the moment of the decision, and may stand anywhere
in a chain.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.connectors import running
from jaxrl.connectors.interface import Connector, Obs, State
from jaxrl.connectors.sensors import chosen, vectors
from jaxrl.networks import normalizer
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.settings.connectors import NormalizeRewardsSettings, NormalizeSettings
from jaxrl.types import BehaviorSpec

EPSILON = 1e-8


def make_normalize(spec: BehaviorSpec, settings: NormalizeSettings) -> Connector:
    """clip((x - mean) / deviation, -5, 5) with the statistics of all that decided so far, now included, and no others.

    Raises ConnectorError.
    """
    at = chosen(spec, settings.sensors, vectors, "a vector")

    def observe(state: State, obs: Obs, deciding: jax.Array) -> tuple[State, Obs]:
        shared, shown = dict(state.shared), list(obs)
        for i in at:
            x = jnp.asarray(obs[i], jnp.float32)
            shared[str(i)] = running.update(state.shared[str(i)], x, deciding)
            shown[i] = normalizer.normalize(running.as_normalizer(shared[str(i)]), x)
        return State(state.slot, shared), tuple(shown)

    def onnx(graph: OnnxGraph, shared: Any, obs: tuple[str, ...]) -> tuple[str, ...]:
        shown = list(obs)
        for i in at:
            shown[i] = normalizer.normalize_onnx(graph, obs[i], running.as_normalizer(shared[str(i)]))
        return tuple(shown)

    statistics = {str(i): running.init(spec.observations[i].shape[0]) for i in at}
    return Connector(spec, shared=statistics, observe=observe, onnx=onnx)


def make_normalize_rewards(spec: BehaviorSpec, settings: NormalizeRewardsSettings) -> Connector:
    """r / sqrt(variance of G + 1e-8), where each member has its own G ← gamma · G + own + group reward.

    The rewards are divided, not centered: their sign stays. Statistics begin with a row of return 0 and variance 1, so
    that the first rewards are not divided by the deviation of next to nothing.
    """

    def reward(state: State, reward: jax.Array, arrived: jax.Array) -> tuple[State, jax.Array]:
        so_far = settings.gamma * state.slot + reward.sum(-1)
        shared = running.update(state.shared, so_far[..., None], arrived)
        return State(so_far, shared), reward * jax.lax.rsqrt(shared.variance[0] + EPSILON)

    return Connector(spec, slot=np.zeros((), np.float32), shared=running.init(1, rows=1), reward=reward)
