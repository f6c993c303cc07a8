"""Whole episodes of a JAX environment, one in each of E areas side by side, until all have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.interface import JaxEnv, State, TeamActions, TeamStep, TeamView
from jaxrl.jax_envs.sampling import of_episode
from jaxrl.training.acting import Act, Moment, first_moment, next_moment


class Sums(NamedTuple):
    """`PlayedEpisodes` in the making, of E areas."""

    returns: Array  # float32 [E, A]
    group_returns: Array  # float32 [E, K]
    lengths: Array  # int32 [E]
    finished: Array  # bool [E]


class PlayedEpisodes(NamedTuple):
    """What N episodes brought, as numpy arrays. A places in an area (all teams, one after the other), K teams."""

    returns: np.ndarray  # float32 [N, A], own rewards of whoever lived in that place
    group_returns: np.ndarray  # float32 [N, K], group rewards of each team, by whomever they were received
    lengths: np.ndarray  # int32 [N], decisions
    finished: np.ndarray  # bool [N], False: still going on after `steps` decisions

    @staticmethod
    def joined(parts: Sequence[Sums], count: int) -> PlayedEpisodes:
        """The first `count` of several."""
        together = zip(*jax.device_get(list(parts)), strict=True)
        return PlayedEpisodes(*(np.concatenate(field)[:count] for field in together))


class _Going(NamedTuple):
    """E areas between two decisions."""

    time: Array  # int32 []
    state: State  # [E, ...]
    moment: Moment  # [E·A, ...]
    memory: Any
    sums: Sums


def play_episodes(
    env: JaxEnv,
    act: Act,
    areas: int,
    policy: Any,
    memory: Any,
    key: Array,
    parameters: Mapping[str, Any],
    steps: Array,
) -> Sums:
    """One episode in each area, of at most `steps` decisions, int32 []. `key` is consumed.

    `policy` and `memory`, of the members of all areas, are what `act` takes; `parameters` are as `sampling.of_one`
    makes them, and those that are distributions are drawn for each episode.
    """
    reset_key, play_key = jax.random.split(key)

    def begin(key: Array) -> tuple[State, TeamView]:
        return env.reset(key, of_episode(parameters, key))

    state, view = jax.vmap(begin)(jax.random.split(reset_key, areas))
    nobody = jnp.zeros_like(view.alive)

    def step(now: _Going) -> _Going:
        act_key, step_key = jax.random.split(jax.random.fold_in(play_key, now.time))
        actions, memory = act(policy, now.memory, now.moment, act_key)
        sent = TeamActions(*(x.reshape(*nobody.shape, -1) for x in actions))
        state, done = jax.vmap(env.step)(jax.random.split(step_key, areas), now.state, sent)
        alive = now.moment.view.alive.reshape(nobody.shape)
        sums = _added(env, now.sums, done, alive)
        staying = done.view._replace(alive=done.view.alive & ~sums.finished[:, None])
        came = (staying, done.terminated | done.truncated, done.reward, done.group_reward)
        moment = next_moment(now.moment, *jax.tree.map(_flat, came))
        return _Going(now.time + 1, state, moment, memory, sums)

    none = Sums(
        returns=jnp.zeros(nobody.shape, jnp.float32),
        group_returns=jnp.zeros((areas, env.teams), jnp.float32),
        lengths=jnp.zeros(areas, jnp.int32),
        finished=jnp.zeros(areas, bool),
    )
    first = first_moment(jax.tree.map(_flat, view))
    ended = jax.lax.while_loop(
        lambda now: (now.time < steps) & ~jnp.all(now.sums.finished),
        step,
        _Going(jnp.int32(0), state, first, memory, none),
    )
    return ended.sums


def _added(env: JaxEnv, sums: Sums, done: TeamStep, alive: Array) -> Sums:
    """Sums with a step, for areas whose episode was still going on."""
    going = ~sums.finished
    teams = (*done.over.shape, env.teams, env.members)
    own = jnp.where(alive, done.reward, 0.0)
    group = jnp.where(alive, done.group_reward, 0.0).reshape(teams)
    received = jnp.where(group.max(-1) > -group.min(-1), group.max(-1), group.min(-1))  # by those who lived to get it
    return Sums(
        returns=jnp.where(going[:, None], sums.returns + own, sums.returns),
        group_returns=jnp.where(going[:, None], sums.group_returns + received, sums.group_returns),
        lengths=sums.lengths + going,
        finished=sums.finished | done.over,
    )


def _flat(x: Array) -> Array:
    """[E, A, ...] → [E·A, ...]."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
