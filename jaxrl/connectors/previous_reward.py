"""`previous_reward`: what an agent's last decision earned, as one more sensor."""

from __future__ import annotations

import jax
import numpy as np

from jaxrl.connectors.interface import Connector, Obs, State
from jaxrl.connectors.sensors import vector, with_sensor
from jaxrl.settings.connectors import PreviousRewardSettings
from jaxrl.types import BehaviorSpec

NAME = "previous_reward"


def make_previous_reward(spec: BehaviorSpec, settings: PreviousRewardSettings) -> Connector:
    """A vector [..., 1]: own and group reward of the agent's last decision, added up; 0 at first.

    As earlier connectors of the chain have left it. Raises ConnectorError where there is a sensor of that name.
    """

    def observe(state: State, obs: Obs, deciding: jax.Array) -> tuple[State, Obs]:
        return state, (*obs, state.slot)

    def reward(state: State, reward: jax.Array, arrived: jax.Array) -> tuple[State, jax.Array]:
        return State(reward.sum(-1, keepdims=True), state.shared), reward

    return Connector(with_sensor(spec, vector(NAME, 1)), slot=np.zeros(1, np.float32), observe=observe, reward=reward)
