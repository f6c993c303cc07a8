"""What a trained policy does, as an environment receives it: connectors and memory included, nothing learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.algorithms.interface import Algorithm, PolicyState, nothing_remembered
from jaxrl.connectors import chain as chains
from jaxrl.jax_envs.interface import TeamActions, TeamView


class Moment(NamedTuple):
    """What members see when they decide, and what came before. A is any number of members, of any number of areas."""

    view: TeamView
    begin: Array  # bool [A], whose episode begins
    decided: Array  # bool [A], who has just been paid for a decision
    reward: Array  # float32 [A, 2], own and group reward for it


Act = Callable[[Any, Any, Moment, Array], tuple[TeamActions, Any]]
"""(policy, memory, moment, typed key, consumed) → actions and memory."""


def trained_actions(algorithm: Algorithm) -> Act:
    """What the algorithm of a run does with a policy, as the environment receives it."""

    chain = None if algorithm.connectors is None else chains.frozen(algorithm.connectors)

    def act(policy: PolicyState, memory: Any, moment: Moment, key: Array) -> tuple[TeamActions, Any]:
        view, obs, (memory, carry) = moment.view, moment.view.obs, memory
        if chain is not None:
            memory, _ = chains.rewarded(chain, memory, moment.reward, moment.decided)
            memory, obs = chains.observed(chain, memory, obs, view.alive, moment.begin)
        carry = jax.tree.map(lambda x: jnp.where(_as(moment.begin, x), jnp.zeros_like(x), x), carry)
        decision = algorithm.act(policy, obs, view.action_mask, carry, key)
        sent = decision.sent
        if chain is not None:
            memory, sent = chains.sent(chain, memory, decision.action, sent, view.alive)
        return TeamActions(continuous=sent.continuous, discrete=sent.discrete), (memory, decision.carry)

    return act


def _as(mask: Array, x: Array) -> Array:
    """bool [A] with as many axes as x [A, *]."""
    return mask.reshape(mask.shape + (1,) * (x.ndim - 1))


def memory_before(algorithm: Algorithm, policy: PolicyState, members: int) -> Any:
    """What `trained_actions` remembers of A members at first: the state of the connectors, and of the policy."""
    chain = algorithm.connectors
    carry = nothing_remembered(algorithm, (members,))
    return () if chain is None else chains.start(chain, policy.connectors, (members,)), carry
