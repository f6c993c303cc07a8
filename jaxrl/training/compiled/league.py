"""A small league: exploiters, which learn against the newest main agent alone and leave what has beaten it in its pool.

The rules are those of `self_play/league.py`. A league is some seeds of the program one after the other: the first is
the main agent, which learns by self-play as without a league, the others are its exploiters. For an exploiter row 0 of
its pool is the newest main agent, and it meets nobody else.

Letters as in `opponents.py`. All of a league lie on one device.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jaxrl.algorithms.interface import Algorithm, TrainState
from jaxrl.artifacts.metrics.statistics import LEAGUE_JOINED, LEAGUE_SHARE
from jaxrl.masks import select
from jaxrl.settings.behavior import LeagueSettings
from jaxrl.training.compiled.stacking import Moments
from jaxrl.training.self_play import league as rules
from jaxrl.training.self_play import sampling

_BEGIN = 2**31 - 3
"""What the key of an exploiter is folded with for its new networks, apart from iterations."""


class LeagueState(struct.PyTreeNode):
    """What a league continues from, of one behavior. Every array has the leading axis S."""

    played: Array  # float32 [S, 2], a learner's last games against snapshots, or the main agent, and what it scored
    begun: Array  # int32 [S], trainer step at which an exploiter began anew last
    joined: Array  # int32 [S], of a main agent: snapshots that exploiters have left; of an exploiter: that it has left


def of_main(tree: Any, size: int) -> Any:
    """Of each seed what its main agent has, itself where it is one."""
    return jax.tree.map(lambda x: x[jnp.arange(len(x)) // size * size], tree) if size > 1 else tree


def of_next(tree: Any, number: int) -> Any:
    """Of each seed what the one so many places behind it has: of a main agent its exploiters', from 1 on."""
    return jax.tree.map(lambda x: jnp.roll(x, -number, axis=0), tree)


def leads(seeds: int, size: int) -> Array:
    """Whether a seed is a main agent, bool [S]."""
    return jnp.arange(seeds) % size == 0


def begin(seeds: int) -> LeagueState:
    """Nobody has played."""
    zeros = jnp.zeros(seeds, jnp.int32)
    return LeagueState(jnp.zeros((seeds, 2)), zeros, zeros)


def with_games(state: LeagueState, games: Array) -> LeagueState:
    """After `games` [S, 2] of the learners more, and what they scored in them."""
    known = sampling.remembered(*state.played.T, *games.T)
    return state.replace(played=jnp.stack(known, axis=-1))


def due(settings: LeagueSettings, state: LeagueState, step: Array) -> Array:
    """Whose policy joins the pool of its main agent now, bool [S]; `step` of the trainers, int32 [S]."""
    games, score = state.played.T
    over = rules.due(settings, games, score, step - state.begun)
    return ~leads(len(step), 1 + settings.exploiters) & over


def begun_anew(settings: LeagueSettings, state: LeagueState, which: Array, step: Array) -> LeagueState:
    """The exploiters `which` [S] have left their policies and begin anew at trainer step `step` [S]."""
    size = 1 + settings.exploiters
    left = jnp.where(leads(len(step), size), which.reshape(-1, size).sum(1).repeat(size), which)
    return LeagueState(
        played=select(~which, state.played, 0.0), begun=jnp.where(which, step, state.begun), joined=state.joined + left
    )


def renewed(
    settings: LeagueSettings, algorithm: Algorithm, train: TrainState, which: Array, key: Array, iteration: Array
) -> TrainState:
    """The learners [S], of which the exploiters `which` [S] have other networks and optimizers; steps and draws go on.

    New networks are drawn from `key` [S] and the iteration, uint32 [S].
    """

    def anew(train: TrainState) -> TrainState:
        if settings.begin == "main":
            other = of_main(train, 1 + settings.exploiters)
        else:
            keys = jax.vmap(lambda key, n: jax.random.fold_in(jax.random.fold_in(key, _BEGIN), n))(key, iteration)
            other = jax.vmap(algorithm.init)(keys)
        other = other.replace(step=train.step, key=train.key)
        return jax.tree.map(lambda new, old: select(which, new, old), other, train)

    return jax.lax.cond(which.any(), anew, lambda train: train, train)


def figures(settings: LeagueSettings, state: LeagueState) -> dict[str, Moments]:
    """By tag, what an iteration tells: of exploiters what they score, of all how many policies have joined."""
    games, score = state.played.T
    shows = ~leads(len(games), 1 + settings.exploiters) & (games > 0)
    share = jnp.where(shows, score / jnp.maximum(games, 1.0), 0.0)
    nothing = jnp.zeros_like(games)
    joined = state.joined.astype(jnp.float32)
    return {
        LEAGUE_SHARE: Moments(shows.astype(jnp.float32), share, nothing),
        LEAGUE_JOINED: Moments(nothing + 1.0, joined, nothing),
    }
