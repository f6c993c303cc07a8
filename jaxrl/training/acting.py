"""What a trained policy does, as an environment receives it: connectors and memory included, nothing learned."""

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
    """What members see when they decide, and what came before. A is any number of members, of any number of areas."""

    view: TeamView
    begin: Array  # bool [A], whose next decision is the first of its episode
    decided: Array  # bool [A], who is told what came of its decision
    reward: Array  # float32 [A, 2], own and group reward for it, so far where it pauses


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
        carry = jax.tree.map(lambda x: where(~moment.begin, x, 0), carry)
        decision = algorithm.act(policy, obs, view.action_mask, carry, key)
        sent = decision.sent
        if chain is not None:
            memory, sent = chains.sent(chain, memory, decision.action, sent, view.alive)
        # who pauses remembers what it knew
        carry = jax.tree.map(lambda x, new: where(view.alive, new, x), carry, decision.carry)
        return TeamActions(continuous=sent.continuous, discrete=sent.discrete), (memory, carry)

    return act


def untrained_actions(action: ActionSpec) -> Act:
    """Random allowed actions, where nobody was trained."""

    def act(policy: None, memory: Any, moment: Moment, key: Array) -> tuple[TeamActions, Any]:
        return random_actions(action, moment.view, key), memory

    return act


def by_team(acts: Sequence[Act], sides: np.ndarray | Array) -> Act:
    """Each team follows one of several policies.

    Its policy and its memory are those of the parts, as tuples. Each part decides for everybody; what it says of others
    than its own is dropped, so that a policy acts as it does where it plays all teams.

    Args:
      sides: int [A], for each member which of `acts` decides.
    """

    def act(policies: Any, memories: Any, moment: Moment, key: Array) -> tuple[TeamActions, Any]:
        keys = jax.random.split(key, len(acts))
        parts = zip(acts, policies, memories, keys, strict=True)
        sent, after = zip(*(one(policy, memory, moment, own) for one, policy, memory, own in parts), strict=True)
        members = np.arange(len(sides))
        return jax.tree.map(lambda *x: jnp.stack(x)[sides, members], *sent), after

    return act


def first_moment(view: TeamView) -> Moment:
    """Before anybody has decided."""
    nobody = jnp.zeros_like(view.alive)
    return Moment(view, ~nobody, nobody, jnp.zeros((*nobody.shape, 2)))


def next_moment(moment: Moment, view: TeamView, ended: Array, reward: Array, group_reward: Array) -> Moment:
    """What members see next, and what came of `moment`: who `ended` begins anew, who paused goes on. All [A, ...]."""
    alive, paid = moment.view.alive, jnp.stack([reward, group_reward], axis=-1)
    begin = ended | (moment.begin & ~alive)
    return Moment(view, begin, view.alive & ~begin, where(~alive, moment.reward, 0) + paid)


def memory_before(algorithm: Algorithm, policy: PolicyState, members: int) -> Any:
    """What `trained_actions` remembers of A members at first: the state of the connectors, and of the policy."""
    chain = algorithm.connectors
    carry = nothing_remembered(algorithm, (members,))
    return () if chain is None else chains.start(chain, policy.connectors, (members,)), carry
