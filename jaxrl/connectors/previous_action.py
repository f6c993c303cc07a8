"""`previous_action` and `previous_reward`: an agent's last action and its reward as one more sensor each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.connectors.interface import Connector, Obs, State
from jaxrl.connectors.sensors import vector, with_sensor
from jaxrl.networks import actions
from jaxrl.settings.connectors import PreviousActionSettings, PreviousRewardSettings
from jaxrl.types import Action, BehaviorSpec


def make_previous_action(spec: BehaviorSpec, settings: PreviousActionSettings) -> Connector:
    """Make the connector that adds the raw action of the agent's last decision, [..., C + M].

    Branches are one-hot; all zeros at first. Raises ConnectorError if there is a sensor of that name.
    """
    size = spec.action.continuous_size + spec.action.mask_size

    def observe(state: State, obs: Obs, deciding: jax.Array) -> tuple[State, Obs]:
        return state, (*obs, state.slot)

    def act(state: State, action: Action, sent: Action) -> tuple[State, Action]:
        return State(jnp.asarray(actions.one_hot(action, spec.action)), state.shared), sent

    shown = with_sensor(spec, vector("previous_action", size))
    return Connector(shown, slot=np.zeros(size, np.float32), observe=observe, act=act, undo=lambda sent: sent)


def make_previous_reward(spec: BehaviorSpec, settings: PreviousRewardSettings) -> Connector:
    """Make the connector that adds the sum of own and group reward of the agent's last decision, [..., 1]; 0 at first.

    The reward is as changed by earlier connectors. Raises ConnectorError if there is a sensor of that name.
    """

    def observe(state: State, obs: Obs, deciding: jax.Array) -> tuple[State, Obs]:
        return state, (*obs, state.slot)

    def reward(state: State, reward: jax.Array, arrived: jax.Array) -> tuple[State, jax.Array]:
        return State(reward.sum(-1, keepdims=True), state.shared), reward

    return Connector(
        with_sensor(spec, vector("previous_reward", 1)), slot=np.zeros(1, np.float32), observe=observe, reward=reward
    )
