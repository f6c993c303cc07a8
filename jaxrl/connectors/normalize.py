"""`normalize`: vector observations by their running mean and deviation, updated at every decision;
`normalize_rewards`: rewards divided by the deviation of returns (Engstrom et al. 2020, "Implementation matters").

`network_settings.normalize` updates its statistics once per update, and the learner sees observations by the newest; a
run has one or the other. This connector stores observations as normalised at the decision, anywhere in a chain.
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
    """Make the connector x → clip((x - mean) / deviation, -5, 5). Raises ConnectorError.

    The statistics are those of all decisions so far, including the current ones.
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
    """Make the connector r → r / sqrt(variance of G + 1e-8), with G ← gamma · G + own + group reward of each member.

    The rewards are divided, not centered: their sign stays. Statistics begin with a row of return 0 and variance 1, so
    that the first rewards are not divided by the deviation of a few numbers.
    """

    def reward(state: State, reward: jax.Array, arrived: jax.Array) -> tuple[State, jax.Array]:
        so_far = settings.gamma * state.slot + reward.sum(-1)
        shared = running.update(state.shared, so_far[..., None], arrived)
        return State(so_far, shared), reward * jax.lax.rsqrt(shared.variance[0] + EPSILON)

    return Connector(spec, slot=np.zeros((), np.float32), shared=running.init(1, rows=1), reward=reward)
