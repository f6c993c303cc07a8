"""Chains and messages for the tests of connectors, written out."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.connectors import chain as chains
from jaxrl.connectors import make_chain
from jaxrl.connectors.chain import Chain, ChainState
from jaxrl.types import Action, BehaviorSpec
from tests.connectors.connected_loops import settings_with


def chain_of(spec: BehaviorSpec, *connectors: dict[str, Any]) -> Chain:
    """Of what a file would say."""
    made = make_chain(spec, settings_with(*connectors).connectors)
    assert made is not None
    return made


class Stream:
    """B rows of single agents that decide at every step, through a chain."""

    def __init__(self, chain: Chain, rows: int) -> None:
        self.chain, self.rows = chain, rows
        self.state: ChainState = chains.start(chain, chain.shared, (rows, 1))

    def decide(self, *obs: Any, begin: Any = None, reward: Any = None, action: Action | None = None) -> tuple[Any, ...]:
        """The rewards [B, 2] of the decisions before, then observations [B, *shape]; returns what the policy sees.

        `begin` [B]: whose episode begins; the others were paid. `action` is then drawn, [B, C] and [B, D].
        """
        starts = jnp.asarray(np.zeros(self.rows, bool) if begin is None else begin)[:, None]
        self.paid = np.zeros((0, 2), np.float32)
        if reward is not None:
            self.state, paid = chains.rewarded(
                self.chain, self.state, jnp.asarray(reward, jnp.float32)[:, None], jnp.ones((self.rows, 1), bool)
            )
            self.paid = np.asarray(paid)[:, 0]
        everybody = jnp.ones((self.rows, 1), bool)
        given = tuple(jnp.asarray(x)[:, None] for x in obs)
        self.state, seen = chains.observed(self.chain, self.state, given, everybody, starts)
        if action is not None:
            rows = Action(*(jnp.asarray(x)[:, None] for x in action))
            self.state, out = chains.sent(self.chain, self.state, rows, rows, everybody)
            self.sent = np.asarray(out.continuous)[:, 0]
        return tuple(np.asarray(x)[:, 0] for x in seen)

    def last(self, *obs: Any) -> tuple[Any, ...]:
        """What an agent would see that decides no more."""
        given = tuple(jnp.asarray(x)[:, None] for x in obs)
        return tuple(np.asarray(x)[:, 0] for x in chains.shown(self.chain, self.state, given, (self.rows, 1)))


def floats(*rows: Any) -> np.ndarray:
    """float32 [B, ...]."""
    return np.asarray(rows, np.float32)
