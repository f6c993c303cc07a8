"""A connector: pure functions between an environment and a policy, with what they remember.

Observations and rewards pass through the connectors of a behavior on their way to the policy and to what is learned,
actions on their way to the environment, each in the order in which the connectors are written. Arrays have arbitrary
leading axes `...` (rows and members), one entry for each member. `chain.py` puts connectors together; it also sees to
it that a member remembers nothing of an earlier episode and that those who do not act move nothing on, so that a
connector needs no mask for its `slot`.
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
    """What a connector remembers."""

    slot: Any  # of each member, a pytree of arrays [..., *]: as at first where an episode begins
    shared: Any  # of all members together, a pytree of arrays [*]: statistics, which checkpoints keep


class Connector(NamedTuple):
    """One connector, bound to the observations and actions that come to it. A function that is None changes nothing.

    observe: (State, obs [..., *shape] of each sensor, deciding bool [...]) → (State, obs), when members are about to
             decide. `shared` may only take in what stands where `deciding` holds: elsewhere may stand anything.
    reward:  (State, reward float32 [..., 2], arrived bool [...]) → (State, reward): own and group reward of the newest
             decision, valid where `arrived`; the same condition on `shared`.
    act:     (State, raw Action, sent Action, [..., C] and [..., D]) → (State, sent): raw is what the policy drew and
             what is learned from, sent what the environment gets.
    undo:    (sent Action, [..., C] and [..., D]) → what `act` was given to send, so that actions that the environment
             took itself can be learned from. None: it cannot be told, or there is no `act`.
    onnx:    (graph, `shared` as numpy arrays, tensor of each sensor) → the tensor of each sensor of `spec`: nodes that
             do what `observe` does with statistics that stay. None: it cannot be done in an ONNX file.
    onnx_sent: (graph, tensor [batch, C]) → tensor: what `act` does to continuous actions.
    """

    spec: BehaviorSpec  # what comes out
    slot: Any = ()  # what a member remembers when its episode begins, a pytree of arrays [*]
    shared: Any = ()  # statistics at the start of a run
    observe: Callable[[State, Obs, jax.Array], tuple[State, Obs]] | None = None
    reward: Callable[[State, jax.Array, jax.Array], tuple[State, jax.Array]] | None = None
    act: Callable[[State, Action, Action], tuple[State, Action]] | None = None
    undo: Callable[[Action], Action] | None = None
    onnx: Callable[[OnnxGraph, Any, tuple[str, ...]], tuple[str, ...]] | None = None
    onnx_sent: Callable[[OnnxGraph, str], str] | None = None

    @property
    def exportable(self) -> bool:
        """Whether an ONNX file can do what it does to observations and actions."""
        seen = self.observe is None or self.onnx is not None
        return seen and (self.act is None or self.onnx_sent is not None)


Maker = Callable[[BehaviorSpec, Any], Connector]
"""(observations and actions that come to it, its settings) → Connector. Raises ConnectorError where they do not fit."""
