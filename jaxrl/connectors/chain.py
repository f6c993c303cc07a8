"""Connectors one after the other, as pure functions over one state.

The order of calls in a step: `rewarded` (rewards of the newest decisions), `shown` (last observations of members whose
episode is over), `observed` (observations of members that decide; slots are reset where an episode begins), then the
policy, then `sent`. Arrays have leading axes `...` of rows and members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl.connectors.interface import Connector, Obs, State
from jaxrl.masks import where
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.types import Action, BehaviorSpec


@dataclass(frozen=True, eq=False)
class Chain:
    """Connectors of a behavior, at least one."""

    links: tuple[Connector, ...]
    names: tuple[str, ...]  # their types
    learning: bool = True  # False: statistics stay as they are

    @property
    def spec(self) -> BehaviorSpec:
        """Spec of the observations and actions that the policy sees and learns from."""
        return self.links[-1].spec

    @property
    def shared(self) -> tuple[Any, ...]:
        """Statistics at the start of a run, one entry for each connector."""
        return tuple(link.shared for link in self.links)

    @property
    def unexportable(self) -> tuple[str, ...]:
        """Types of the connectors that an ONNX file cannot replace."""
        return tuple(name for name, link in zip(self.names, self.links, strict=True) if not link.exportable)

    @property
    def irreversible(self) -> tuple[str, ...]:
        """Types of the connectors whose effect on actions cannot be undone."""
        pairs = zip(self.names, self.links, strict=True)
        return tuple(name for name, link in pairs if link.act is not None and link.undo is None)

    @property
    def watches_rewards(self) -> bool:
        """True if any connector changes rewards."""
        return any(link.reward is not None for link in self.links)


class ChainState(NamedTuple):
    """Memory of the connectors of a chain, one entry for each."""

    slots: tuple[Any, ...]  # pytrees of arrays [..., *]
    shared: tuple[Any, ...]  # pytrees of arrays [*]


def frozen(chain: Chain) -> Chain:
    """Return the chain with statistics that do not change, for evaluation."""
    return replace(chain, learning=False)


def start(chain: Chain, shared: tuple[Any, ...], lead: tuple[int, ...]) -> ChainState:
    """Make the state before the first decision of members [*lead], with these statistics."""
    slots = (jax.tree.map(lambda x: jnp.broadcast_to(x, (*lead, *x.shape)), link.slot) for link in chain.links)
    return ChainState(tuple(slots), shared)


def rewarded(chain: Chain, state: ChainState, reward: jax.Array, arrived: jax.Array) -> tuple[ChainState, jax.Array]:
    """Pass own and group reward, float32 [..., 2], valid where `arrived` [...], through the chain to the learner."""
    chex.assert_shape(reward, (*arrived.shape, 2))
    places = []
    for link, place in zip(chain.links, _places(state), strict=True):
        if link.reward is None:
            places.append(place)
            continue
        new_place, reward = link.reward(place, reward, _told(chain, arrived))
        places.append(_moved(chain, arrived, place, new_place))
    return _joined(places), reward


def paid(chain: Chain, state: ChainState, reward: jax.Array) -> jax.Array:
    """Pass rewards [..., 2] that are counted elsewhere through the chain without changing its state."""
    return rewarded(frozen(chain), state, reward, jnp.zeros(reward.shape[:-1], bool))[1]


def observed(
    chain: Chain, state: ChainState, obs: Obs, deciding: jax.Array, begin: jax.Array
) -> tuple[ChainState, Obs]:
    """Pass obs [..., *shape], valid where `deciding` [...], through the chain to the policy.

    begin: bool [...], the first decision of an episode.
    """
    chex.assert_equal_shape([deciding, begin])
    state = _begun(chain, state, begin)
    places = []
    for link, place in zip(chain.links, _places(state), strict=True):
        if link.observe is None:
            places.append(place)
            continue
        new_place, obs = link.observe(place, obs, _told(chain, deciding))
        places.append(_moved(chain, deciding, place, new_place))
    chex.assert_shape(obs, [(*deciding.shape, *sensor.shape) for sensor in chain.spec.observations])
    return _joined(places), obs


def shown(chain: Chain, state: ChainState, obs: Obs, lead: tuple[int, ...]) -> Obs:
    """Return what `observed` would give for obs [*lead, *shape] if their members decided now. No state changes."""
    nobody = jnp.zeros(lead, bool)
    return observed(frozen(chain), state, obs, nobody, nobody)[1]


def sent(
    chain: Chain, state: ChainState, action: Action, to_environment: Action, deciding: jax.Array
) -> tuple[ChainState, Action]:
    """Pass the policy's action `to_environment` through the chain; slots also see the raw `action` where `deciding`."""
    places = []
    for link, place in zip(chain.links, _places(state), strict=True):
        if link.act is None:
            places.append(place)
            continue
        new_place, to_environment = link.act(place, action, to_environment)
        places.append(_moved(chain, deciding, place, new_place))
    return _joined(places), to_environment


def undone(chain: Chain, action: Action) -> Action:
    """Return the action, [..., C] and [..., D], that the policy would have sent for the environment to get `action`.

    Raises ValueError for a chain with `irreversible` connectors.
    """
    if chain.irreversible:
        raise ValueError(f"{', '.join(chain.irreversible)}: cannot be undone")
    for link in reversed(chain.links):
        if link.undo is not None:
            action = link.undo(action)
    return action


def sent_exported(chain: Chain, to_environment: Action) -> Action:
    """Return what `sent` gives from the initial state, as in an ONNX file."""
    lead = to_environment.continuous.shape[:-1]
    return sent(chain, start(chain, chain.shared, lead), to_environment, to_environment, jnp.zeros(lead, bool))[1]


def observations_onnx(graph: OnnxGraph, chain: Chain, shared: Sequence[Any], obs: tuple[str, ...]) -> tuple[str, ...]:
    """Add the nodes of `shown` for the sensors' tensors; the statistics become constants. Return the new tensors."""
    for link, statistics in zip(chain.links, shared, strict=True):
        if link.onnx is not None:
            obs = link.onnx(graph, statistics, obs)
    return obs


def sent_onnx(graph: OnnxGraph, chain: Chain, x: str) -> str:
    """Add the nodes of `sent` for the tensor of continuous actions, [batch, C]. Return the new tensor."""
    for link in chain.links:
        if link.onnx_sent is not None:
            x = link.onnx_sent(graph, x)
    return x


def _places(state: ChainState) -> list[State]:
    return [State(slot, shared) for slot, shared in zip(state.slots, state.shared, strict=True)]


def _joined(places: Sequence[State]) -> ChainState:
    return ChainState(tuple(place.slot for place in places), tuple(place.shared for place in places))


def _told(chain: Chain, mask: jax.Array) -> jax.Array:
    """Return the members whose numbers enter statistics."""
    return mask if chain.learning else jnp.zeros_like(mask)


def _moved(chain: Chain, mask: jax.Array, before: State, after: State) -> State:
    """Return `after` for members in the mask, `before` for others; new statistics only if the chain is learning."""
    slot = jax.tree.map(lambda old, new: where(mask, new, old), before.slot, after.slot)
    return State(slot, after.shared if chain.learning else before.shared)


def _begun(chain: Chain, state: ChainState, begin: jax.Array) -> ChainState:
    """Reset the slots where an episode begins."""
    slots = (
        jax.tree.map(lambda x, first: where(begin, jnp.broadcast_to(first, x.shape), x), slot, link.slot)
        for slot, link in zip(state.slots, chain.links, strict=True)
    )
    return state._replace(slots=tuple(slots))
