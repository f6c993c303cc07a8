"""Connectors one after the other, as pure functions over one state.

The order of calls at one moment: `rewarded` (what the newest decisions earned), `shown` (last observations of those
whose episode is over), `observed` (those who decide now; where an episode begins, all is forgotten), then the policy,
then `sent`. Arrays have leading axes `...` of rows and members.
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
        """What the policy sees, and what is learned from."""
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
        """Whether a reward passes through a connector at all."""
        return any(link.reward is not None for link in self.links)


class ChainState(NamedTuple):
    """What the connectors of a chain remember, one entry for each."""

    slots: tuple[Any, ...]  # pytrees of arrays [..., *]
    shared: tuple[Any, ...]  # pytrees of arrays [*]


def frozen(chain: Chain) -> Chain:
    """The same connectors, whose statistics stay as they are: for evaluation."""
    return replace(chain, learning=False)


def start(chain: Chain, shared: tuple[Any, ...], lead: tuple[int, ...]) -> ChainState:
    """The state before the first decision of members [*lead], with these statistics."""
    slots = (jax.tree.map(lambda x: jnp.broadcast_to(x, (*lead, *x.shape)), link.slot) for link in chain.links)
    return ChainState(tuple(slots), shared)


def rewarded(chain: Chain, state: ChainState, reward: jax.Array, arrived: jax.Array) -> tuple[ChainState, jax.Array]:
    """Own and group reward, float32 [..., 2], as the learner gets them; valid where `arrived` [...]."""
    chex.assert_shape(reward, (*arrived.shape, 2))
    places = []
    for link, place in zip(chain.links, _places(state), strict=True):
        if link.reward is None:
            places.append(place)
            continue
        after, reward = link.reward(place, reward, _told(chain, arrived))
        places.append(_moved(chain, arrived, place, after))
    return _joined(places), reward


def paid(chain: Chain, state: ChainState, reward: jax.Array) -> jax.Array:
    """`rewarded` of rewards [..., 2] that are counted elsewhere: nothing takes notice of them."""
    return rewarded(frozen(chain), state, reward, jnp.zeros(reward.shape[:-1], bool))[1]


def observed(
    chain: Chain, state: ChainState, obs: Obs, deciding: jax.Array, begin: jax.Array
) -> tuple[ChainState, Obs]:
    """What the policy sees of obs [..., *shape]; valid where `deciding` [...].

    begin: bool [...], the first decision of an episode.
    """
    chex.assert_equal_shape([deciding, begin])
    state = _begun(chain, state, begin)
    places = []
    for link, place in zip(chain.links, _places(state), strict=True):
        if link.observe is None:
            places.append(place)
            continue
        after, obs = link.observe(place, obs, _told(chain, deciding))
        places.append(_moved(chain, deciding, place, after))
    chex.assert_shape(obs, [(*deciding.shape, *sensor.shape) for sensor in chain.spec.observations])
    return _joined(places), obs


def shown(chain: Chain, state: ChainState, obs: Obs, lead: tuple[int, ...]) -> Obs:
    """What the policy would see of obs [*lead, *shape] if their members decided now: nothing is moved on."""
    nobody = jnp.zeros(lead, bool)
    return observed(frozen(chain), state, obs, nobody, nobody)[1]


def sent(
    chain: Chain, state: ChainState, action: Action, to_environment: Action, deciding: jax.Array
) -> tuple[ChainState, Action]:
    """What the environment gets: the policy's `to_environment`, of the raw `action`; noted where `deciding`."""
    places = []
    for link, place in zip(chain.links, _places(state), strict=True):
        if link.act is None:
            places.append(place)
            continue
        after, to_environment = link.act(place, action, to_environment)
        places.append(_moved(chain, deciding, place, after))
    return _joined(places), to_environment


def undone(chain: Chain, action: Action) -> Action:
    """What the policy would have had to send for the environment to get `action`, [..., C] and [..., D] (M21).

    Raises ValueError for a chain with `irreversible` connectors.
    """
    if chain.irreversible:
        raise ValueError(f"{', '.join(chain.irreversible)}: cannot be undone")
    for link in reversed(chain.links):
        if link.undo is not None:
            action = link.undo(action)
    return action


def sent_exported(chain: Chain, to_environment: Action) -> Action:
    """`sent` where nothing is remembered, as in an ONNX file."""
    lead = to_environment.continuous.shape[:-1]
    return sent(chain, start(chain, chain.shared, lead), to_environment, to_environment, jnp.zeros(lead, bool))[1]


def observations_onnx(graph: OnnxGraph, chain: Chain, shared: Sequence[Any], obs: tuple[str, ...]) -> tuple[str, ...]:
    """`shown` of the tensors of the environment's sensors; the statistics become constants of the file."""
    for link, statistics in zip(chain.links, shared, strict=True):
        if link.onnx is not None:
            obs = link.onnx(graph, statistics, obs)
    return obs


def sent_onnx(graph: OnnxGraph, chain: Chain, x: str) -> str:
    """`sent` of the tensor of continuous actions, [batch, C]."""
    for link in chain.links:
        if link.onnx_sent is not None:
            x = link.onnx_sent(graph, x)
    return x


def _places(state: ChainState) -> list[State]:
    return [State(slot, shared) for slot, shared in zip(state.slots, state.shared, strict=True)]


def _joined(places: Sequence[State]) -> ChainState:
    return ChainState(tuple(place.slot for place in places), tuple(place.shared for place in places))


def _told(chain: Chain, mask: jax.Array) -> jax.Array:
    """Whose numbers go into statistics."""
    return mask if chain.learning else jnp.zeros_like(mask)


def _moved(chain: Chain, mask: jax.Array, before: State, after: State) -> State:
    """`after` where the mask holds; statistics only where the chain learns."""
    slot = jax.tree.map(lambda old, new: where(mask, new, old), before.slot, after.slot)
    return State(slot, after.shared if chain.learning else before.shared)


def _begun(chain: Chain, state: ChainState, begin: jax.Array) -> ChainState:
    """As at first where an episode begins."""
    slots = (
        jax.tree.map(lambda x, first: where(begin, jnp.broadcast_to(first, x.shape), x), slot, link.slot)
        for slot, link in zip(state.slots, chain.links, strict=True)
    )
    return state._replace(slots=tuple(slots))
