"""Act with a trained policy, connectors and memory included, without learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.algorithms.interface import Algorithm, PolicyState, nothing_remembered
from jaxrl.connectors import chain as chains
from jaxrl.jax_envs.contract import random_actions
from jaxrl.jax_envs.interface import TeamActions, TeamView
from jaxrl.masks import where
from jaxrl.types import ActionSpec


class Moment(NamedTuple):
    """Observations and last rewards of members. A is the number of members, over any number of areas."""

    view: TeamView
    begin: Array  # bool [A], members whose next decision is the first of an episode
    decided: Array  # bool [A], members whose last decision has its outcome now
    reward: Array  # float32 [A, 2], individual and group reward of the last decision; partial for paused members


Act = Callable[[Any, Any, Moment, Array], tuple[TeamActions, Any]]
"""(policy, memory, moment, typed key, consumed) → actions and memory."""


def trained_actions(algorithm: Algorithm) -> Act:
    """Return a function that acts with a policy of the algorithm; its actions are as the environment gets them."""

    chain = None if algorithm.connectors is None else chains.frozen(algorithm.connectors)

    def act(policy: PolicyState, memory: Any, moment: Moment, key: Array) -> tuple[TeamActions, Any]:
        view, obs, (memory, carry) = moment.view, moment.view.obs, memory
        if chain is not None:
            memory, _ = chains.rewarded(chain, memory, moment.reward, moment.decided)
            memory, obs = chains.observed(chain, memory, obs, view.alive, moment.begin)
        carry = jax.tree.map(lambda x: where(~moment.begin, x, 0), carry)
        decision = algorithm.act(policy, obs, view.action_mask, carry, key)
        sent = decision.sent
        if chain is not None:
            memory, sent = chains.sent(chain, memory, decision.action, sent, view.alive)
        # paused members keep their memory
        carry = jax.tree.map(lambda x, new: where(view.alive, new, x), carry, decision.carry)
        return TeamActions(continuous=sent.continuous, discrete=sent.discrete), (memory, carry)

    return act


def untrained_actions(action: ActionSpec) -> Act:
    """Return a function that draws random allowed actions."""

    def act(policy: None, memory: Any, moment: Moment, key: Array) -> tuple[TeamActions, Any]:
        return random_actions(action, moment.view, key), memory

    return act


def by_team(acts: Sequence[Act], sides: np.ndarray | Array) -> Act:
    """Return a function by which each team follows one of several policies.

    Its policy and memory are tuples, one entry per policy. Each policy decides for all members, and only the actions of
    its own team are used, so that it acts as if it played all teams.

    Args:
      sides: int [A], the index in `acts` of each member's policy.
    """

    def act(policies: Any, memories: Any, moment: Moment, key: Array) -> tuple[TeamActions, Any]:
        keys = jax.random.split(key, len(acts))
        parts = zip(acts, policies, memories, keys, strict=True)
        results = (act_one(policy, memory, moment, subkey) for act_one, policy, memory, subkey in parts)
        sent, new_memories = zip(*results, strict=True)
        members = np.arange(len(sides))
        return jax.tree.map(lambda *x: jnp.stack(x)[sides, members], *sent), new_memories

    return act


def first_moment(view: TeamView) -> Moment:
    """Return the moment before the first decision."""
    nobody = jnp.zeros_like(view.alive)
    return Moment(view, ~nobody, nobody, jnp.zeros((*nobody.shape, 2)))


def next_moment(moment: Moment, view: TeamView, ended: Array, reward: Array, group_reward: Array) -> Moment:
    """Return the moment after `moment`: members that `ended` begin a new episode, paused ones go on. All [A, ...]."""
    alive, paid = moment.view.alive, jnp.stack([reward, group_reward], axis=-1)
    begin = ended | (moment.begin & ~alive)
    return Moment(view, begin, view.alive & ~begin, where(~alive, moment.reward, 0) + paid)


def memory_before(algorithm: Algorithm, policy: PolicyState, members: int) -> Any:
    """Return the initial memory of `trained_actions` for A members: the connectors' state, and the policy's."""
    chain = algorithm.connectors
    carry = nothing_remembered(algorithm, (members,))
    return () if chain is None else chains.start(chain, policy.connectors, (members,)), carry
