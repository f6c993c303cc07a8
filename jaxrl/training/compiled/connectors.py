"""Connectors in the compiled loop: the views, rewards and actions of S seeds pass them side by side.

Functions take None for the chain of a behavior without connectors, and then return their input. Between two iterations
the statistics are the policies' (`PolicyState.connectors`), so that checkpoints of both loops are alike.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.algorithms.interface import Decision, PolicyState, TrainState
from jaxrl.connectors import chain as chains
from jaxrl.connectors.chain import Chain, ChainState
from jaxrl.jax_envs.interface import TeamView
from jaxrl.masks import where
from jaxrl.types import Action


def start(chain: Chain | None, lead: tuple[int, ...]) -> Any:
    """Return the memory of members [S, E, A] before their first decision; () without connectors."""
    return () if chain is None else chains.start(chain, (), lead).slots


def with_statistics(chain: Chain | None, slots: Any, policy: PolicyState) -> Any:
    """Return the state of the connectors: members' memory, and the statistics of the policies."""
    return () if chain is None else ChainState(slots, policy.connectors)


def statistics_of(chain: Chain | None, train: TrainState, state: Any, active: Array) -> TrainState:
    """Return the train states with the statistics of `state`, unchanged for seeds that are not `active` [S]."""
    if chain is None:
        return train
    choose = partial(where, active)
    return train.replace(
        policy=train.policy.replace(connectors=jax.tree.map(choose, state.shared, train.policy.connectors))
    )


def observed(chain: Chain | None, state: Any, view: TeamView, begin: Array) -> tuple[Any, TeamView]:
    """Return the connectors' state and the view as the policies see it; `begin` is bool [S, E, A]."""
    if chain is None:
        return state, view
    state, obs = jax.vmap(partial(chains.observed, chain))(state, view.obs, view.alive, begin)
    return state, view._replace(obs=obs)


def last(chain: Chain | None, state: Any, view: TeamView) -> tuple[Array, ...]:
    """Return the members' observations after a step, transformed as if no decision followed."""
    if chain is None:
        return view.obs
    lead = view.alive.shape[1:]
    return jax.vmap(lambda state, obs: chains.shown(chain, state, obs, lead))(state, view.obs)


def sent(chain: Chain | None, state: Any, decision: Decision, alive: Array) -> tuple[Any, Action]:
    """Return the connectors' state, and the action of a decision [S, E, A] for the environment."""
    if chain is None:
        return state, decision.sent
    return jax.vmap(partial(chains.sent, chain))(state, decision.action, decision.sent, alive)


def rewarded(chain: Chain | None, state: Any, own: Array, group: Array, alive: Array) -> tuple[Any, Array, Array]:
    """Return the connectors' state, and own and group rewards, float32 [S, E, A], as they are learned from."""
    if chain is None or not chain.watches_rewards:
        return state, own, group
    state, reward = jax.vmap(partial(chains.rewarded, chain))(state, jnp.stack([own, group], axis=-1), alive)
    return state, reward[..., 0], reward[..., 1]
