"""`previous_action`: what an agent did last, as one more sensor (A14, M9)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.connectors.interface import Connector, Obs, State
from jaxrl.connectors.sensors import vector, with_sensor
from jaxrl.networks import actions
from jaxrl.settings.connectors import PreviousActionSettings
from jaxrl.types import Action, BehaviorSpec

NAME = "previous_action"


def make_previous_action(spec: BehaviorSpec, settings: PreviousActionSettings) -> Connector:
    """A vector [..., C + M]: the raw action of the agent's last decision, branches one-hot; zeros at first.

    Raises ConnectorError where there is a sensor of that name.
    """
    size = spec.action.continuous_size + spec.action.mask_size

    def observe(state: State, obs: Obs, deciding: jax.Array) -> tuple[State, Obs]:
        return state, (*obs, state.slot)

    def act(state: State, action: Action, sent: Action) -> tuple[State, Action]:
        return State(jnp.asarray(actions.one_hot(action, spec.action)), state.shared), sent

    shown = with_sensor(spec, vector(NAME, size))
    return Connector(shown, slot=np.zeros(size, np.float32), observe=observe, act=act, undo=lambda sent: sent)
