"""A connector: pure functions between an environment and a policy, with a state.

Observations and rewards pass through the connectors of a behavior on their way to the policy and the learner, actions
on their way to the environment, each in the order in which the connectors are written. Arrays have arbitrary leading
axes `...` (rows and members), one entry for each member. `chain.py` composes connectors. It also resets the slots of
members whose episode begins and keeps those of members that do not act, so that a `slot` needs no mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.types import Action, BehaviorSpec, JaxrlError

Obs = tuple[jax.Array, ...]


class ConnectorError(JaxrlError):
    """Connectors do not fit the observations or actions of a behavior."""


class State(NamedTuple):
    """Memory of a connector."""

    slot: Any  # memory of each member, a pytree of arrays [..., *]; reset where an episode begins
    shared: Any  # statistics of all members together, a pytree of arrays [*], which checkpoints keep


class Connector(NamedTuple):
    """Connector, bound to the observations and actions of its input. A function that is None changes nothing.

    observe: (State, obs [..., *shape] of each sensor, deciding bool [...]) → (State, obs), when members are about to
             decide. `shared` may only use elements where `deciding` holds: others may hold anything.
    reward:  (State, reward float32 [..., 2], arrived bool [...]) → (State, reward): own and group reward of the newest
             decision. `shared` may only use elements where `arrived` holds.
    act:     (State, raw Action, sent Action, [..., C] and [..., D]) → (State, sent): raw is the policy's draw, from
             which it learns, sent the action for the environment.
    undo:    (sent Action, [..., C] and [..., D]) → the sent action before `act`, so that actions that the environment
             took itself can be learned from. None: `act` has no inverse, or there is no `act`.
    onnx:    (graph, `shared` as numpy arrays, tensor of each sensor) → the tensor of each sensor of `spec`: adds nodes
             that do what `observe` does with fixed statistics. None: an ONNX file cannot do it.
    onnx_sent: (graph, tensor [batch, C]) → tensor: adds nodes that do what `act` does to continuous actions.
    """

    spec: BehaviorSpec  # spec of the output
    slot: Any = ()  # a member's slot when its episode begins, a pytree of arrays [*]
    shared: Any = ()  # statistics at the start of a run
    observe: Callable[[State, Obs, jax.Array], tuple[State, Obs]] | None = None
    reward: Callable[[State, jax.Array, jax.Array], tuple[State, jax.Array]] | None = None
    act: Callable[[State, Action, Action], tuple[State, Action]] | None = None
    undo: Callable[[Action], Action] | None = None
    onnx: Callable[[OnnxGraph, Any, tuple[str, ...]], tuple[str, ...]] | None = None
    onnx_sent: Callable[[OnnxGraph, str], str] | None = None

    @property
    def exportable(self) -> bool:
        """True if an ONNX file can do what this connector does to observations and actions."""
        seen = self.observe is None or self.onnx is not None
        return seen and (self.act is None or self.onnx_sent is not None)


Maker = Callable[[BehaviorSpec, Any], Connector]
"""(spec of its input, its settings) → Connector. Raises ConnectorError if they do not fit."""
