"""A small league: exploiters learn only against the newest main agent, and put policies that beat it into its pool.

For the rules see `self_play/league.py`. A league is a number of consecutive seeds of the program: the first is the main
agent, which learns by self-play as without a league, the others are its exploiters. For an exploiter, row 0 of its pool
is the newest main agent, its only opponent.

Letters as in `opponents.py`. All seeds of a league lie on one device.
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
"""Number that is folded into an exploiter's key for its new networks, beside the iteration."""


class LeagueState(struct.PyTreeNode):
    """State of the league of one behavior. Every array has the leading axis S."""

    played: Array  # float32 [S, 2], a learner's recent games against snapshots, or the main agent, and its score
    begun: Array  # int32 [S], trainer step at which an exploiter last began anew
    joined: Array  # int32 [S], number of policies that an exploiter, or all of a main agent's, put into the pool


def of_main(tree: Any, size: int) -> Any:
    """Return for each seed the values of its main agent, which may be itself."""
    return jax.tree.map(lambda x: x[jnp.arange(len(x)) // size * size], tree) if size > 1 else tree


def of_next(tree: Any, number: int) -> Any:
    """Return for each seed the values of the seed `number` places after it: a main agent's exploiters count from 1."""
    return jax.tree.map(lambda x: jnp.roll(x, -number, axis=0), tree)


def leads(seeds: int, size: int) -> Array:
    """Return whether a seed is a main agent, bool [S]."""
    return jnp.arange(seeds) % size == 0


def begin(seeds: int) -> LeagueState:
    """Return the state before any game."""
    zeros = jnp.zeros(seeds, jnp.int32)
    return LeagueState(jnp.zeros((seeds, 2)), zeros, zeros)


def with_games(state: LeagueState, games: Array) -> LeagueState:
    """Add new games of the learners: `games` [S, 2] are their number and score."""
    known = sampling.remembered(*state.played.T, *games.T)
    return state.replace(played=jnp.stack(known, axis=-1))


def due(settings: LeagueSettings, state: LeagueState, step: Array) -> Array:
    """Return which exploiters join their main agent's pool now, bool [S]; `step`: trainer steps, int32 [S]."""
    games, score = state.played.T
    over = rules.due(settings, games, score, step - state.begun)
    return ~leads(len(step), 1 + settings.exploiters) & over


def begun_anew(settings: LeagueSettings, state: LeagueState, which: Array, step: Array) -> LeagueState:
    """Book that the exploiters `which` [S] have joined the pool and begin anew at trainer step `step` [S]."""
    size = 1 + settings.exploiters
    left = jnp.where(leads(len(step), size), which.reshape(-1, size).sum(1).repeat(size), which)
    return LeagueState(
        played=select(~which, state.played, 0.0), begun=jnp.where(which, step, state.begun), joined=state.joined + left
    )


def renewed(
    settings: LeagueSettings, algorithm: Algorithm, train: TrainState, which: Array, key: Array, iteration: Array
) -> TrainState:
    """Replace networks and optimizers of the exploiters `which` [S] among the learners [S]; keep steps and keys.

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
    """Return an iteration's statistics by tag: scores of exploiters, and the number of joined policies of all."""
    games, score = state.played.T
    shows = ~leads(len(games), 1 + settings.exploiters) & (games > 0)
    share = jnp.where(shows, score / jnp.maximum(games, 1.0), 0.0)
    nothing = jnp.zeros_like(games)
    joined = state.joined.astype(jnp.float32)
    return {
        LEAGUE_SHARE: Moments(shows.astype(jnp.float32), share, nothing),
        LEAGUE_JOINED: Moments(nothing + 1.0, joined, nothing),
    }
