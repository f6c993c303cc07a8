"""`normalize_rewards`: rewards in units of how much returns vary (Engstrom et al. 2020, "Implementation matters")."""

from __future__ import annotations

import jax
import numpy as np

from jaxrl.connectors import running
from jaxrl.connectors.interface import Connector, State
from jaxrl.settings.connectors import NormalizeRewardsSettings
from jaxrl.types import BehaviorSpec

EPSILON = 1e-8


def make_normalize_rewards(spec: BehaviorSpec, settings: NormalizeRewardsSettings) -> Connector:
    """r / sqrt(variance of G + 1e-8), where each member has its own G ← gamma · G + own + group reward.

    The rewards are divided, not centered: their sign stays.
    """

    def reward(state: State, reward: jax.Array, arrived: jax.Array) -> tuple[State, jax.Array]:
        so_far = settings.gamma * state.slot + reward.sum(-1)
        shared = running.update(state.shared, so_far[..., None], arrived)
        return State(so_far, shared), reward * jax.lax.rsqrt(shared.variance[0] + EPSILON)

    return Connector(spec, slot=np.zeros((), np.float32), shared=running.init(1), reward=reward)
