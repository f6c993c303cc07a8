"""Plays whole episodes of a JAX environment, one in each of E areas side by side, until all have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.interface import State, TeamActions, TeamStep, TeamView
from jaxrl.jax_envs.sampling import of_episode
from jaxrl.jax_envs.scene import JaxScene, Sizes, step_of_behavior
from jaxrl.training.acting import Act, Moment, first_moment, next_moment


class Sums(NamedTuple):
    """Sums for `PlayedEpisodes` of E areas."""

    returns: Array  # float32 [E, A]
    group_returns: Array  # float32 [E, K]
    lengths: Array  # int32 [E]
    finished: Array  # bool [E]


class PlayedEpisodes(NamedTuple):
    """Results of N episodes, as numpy arrays. A places in an area (all teams, one after the other), K teams."""

    returns: np.ndarray  # float32 [N, A], own rewards of the members in that place
    group_returns: np.ndarray  # float32 [N, K], group rewards of each team
    lengths: np.ndarray  # int32 [N], decisions
    finished: np.ndarray  # bool [N], False: still going on after `steps` decisions

    @staticmethod
    def joined(parts: Sequence[Sums], count: int) -> PlayedEpisodes:
        """Return the first `count` episodes of several parts."""
        together = zip(*jax.device_get(list(parts)), strict=True)
        return PlayedEpisodes(*(np.concatenate(field)[:count] for field in together))


class _Going(NamedTuple):
    """State of E areas between two decisions; moments and memories by behavior."""

    time: Array  # int32 []
    state: State  # [E, ...]
    moments: dict[str, Moment]  # [E·A, ...]
    memories: dict[str, Any]
    sums: Sums


def play_episodes(
    scene: JaxScene,
    name: str,
    acts: Mapping[str, Act],
    areas: int,
    policies: Mapping[str, Any],
    memories: Mapping[str, Any],
    key: Array,
    parameters: Mapping[str, Any],
    steps: Array,
) -> Sums:
    """Play one episode in each area, of at most `steps` decisions, int32 []; sum up `name`'s. `key` is consumed.

    `policies` and `memories`, of the members of all areas, are arguments of `acts`, all by behavior; `parameters` are
    made by `sampling.of_one`; distributions among them are drawn for each episode.
    """
    reset_key, play_key = jax.random.split(key)

    def begin(key: Array) -> tuple[State, dict[str, TeamView]]:
        return scene.reset(key, of_episode(parameters, key))

    state, views = jax.vmap(begin)(jax.random.split(reset_key, areas))
    lead, part = views[name].alive.shape, scene.part(name)

    def step(now: _Going) -> _Going:
        act_key, step_key = jax.random.split(jax.random.fold_in(play_key, now.time))
        sent, memories, moments = {}, {}, {}
        for i, (who, act) in enumerate(acts.items()):
            own_key = act_key if i == 0 else jax.random.fold_in(act_key, i)
            actions, memories[who] = act(policies[who], now.memories[who], now.moments[who], own_key)
            sent[who] = TeamActions(*(x.reshape(*views[who].alive.shape, -1) for x in actions))
        state, outcome = jax.vmap(scene.step)(jax.random.split(step_key, areas), now.state, sent)
        there = now.moments[name].view.alive | ~now.moments[name].begin  # members that decide or pause
        sums = _added(part, now.sums, step_of_behavior(outcome, name), there.reshape(lead))
        for who in acts:
            mine = step_of_behavior(outcome, who)
            staying = mine.view._replace(alive=mine.view.alive & ~sums.finished[:, None])
            result = (staying, mine.terminated | mine.truncated, mine.reward, mine.group_reward)
            moments[who] = next_moment(now.moments[who], *jax.tree.map(_flat, result))
        return _Going(now.time + 1, state, moments, memories, sums)

    none = Sums(
        returns=jnp.zeros(lead, jnp.float32),
        group_returns=jnp.zeros((areas, part.teams), jnp.float32),
        lengths=jnp.zeros(areas, jnp.int32),
        finished=jnp.zeros(areas, bool),
    )
    first = {who: first_moment(jax.tree.map(_flat, view)) for who, view in views.items()}
    ended = jax.lax.while_loop(
        lambda now: (now.time < steps) & ~jnp.all(now.sums.finished),
        step,
        _Going(jnp.int32(0), state, first, dict(memories), none),
    )
    return ended.sums


def _added(part: Sizes, sums: Sums, done: TeamStep, there: Array) -> Sums:
    """Add a step to the sums of areas whose episode is still going on."""
    going = ~sums.finished
    teams = (*done.over.shape, part.teams, part.members)
    own_rewards = jnp.where(there, done.reward, 0.0)
    group = jnp.where(there, done.group_reward, 0.0).reshape(teams)
    received = jnp.where(group.max(-1) > -group.min(-1), group.max(-1), group.min(-1))  # of living members
    return Sums(
        returns=jnp.where(going[:, None], sums.returns + own_rewards, sums.returns),
        group_returns=jnp.where(going[:, None], sums.group_returns + received, sums.group_returns),
        lengths=sums.lengths + going,
        finished=sums.finished | done.over,
    )


def _flat(x: Array) -> Array:
    """Reshape [E, A, ...] to [E·A, ...]."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
