"""Ratings of the compiled loop: find the games that have ended and their results, and change the ratings.

Ratings are Elo's with K = 1, for each pair of sides. Games that end with the same decision are rated by the ratings
before it. The letters are those of `opponents.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.scene import Sizes
from jaxrl.training.compiled.contest import rivals_of
from jaxrl.training.compiled.opponents import Rivals, RivalState
from jaxrl.training.compiled.play import Transitions, by_team
from jaxrl.training.compiled.stacking import Moments
from jaxrl.training.self_play import sampling
from jaxrl.training.self_play.pool import LATEST


class RivalSteps(NamedTuple):
    """Decisions of rivals and ends of their games. Leading axes [T, S]."""

    decisions: Array  # int32, of all members
    pay: Array  # float32 [..., E, J, M], rewards that decide the games of members; NaN where none ends


class Rated(NamedTuple):
    """Ratings after some decisions."""

    rating: dict[str, Array]  # float32 [S, W + 1]
    met: dict[str, Any]  # as in `RivalState`
    elo: dict[str, Moments]  # of the learner's rating after each rated game, float32 [S]
    decided: dict[str, Moments]  # of 1 for each of these games with winners or losers, else 0
    games: dict[str, Array]  # float32 [S, 2], games of the learner, one for each member, and its score


class _Games(NamedTuple):
    """Games of a learner that end. Leading axes [T, S, E, M]."""

    ends: Array  # bool, a game ends for this member
    results: tuple[Array, ...]  # float32, against each side, its own too, or one for all: 1 win, 1/2 draw, 0 loss


class _Side(NamedTuple):
    """Side of a game, as opponent of the learner of another side."""

    name: str  # its behavior
    row: Array  # int32 [S, E], its opponent's row in the ratings of that behavior
    known: Array  # bool [S, E], whether that opponent is a snapshot that is still in the pool
    learns: Array  # bool [S, 1], whether it is the learner's own side
    pay: Array  # float32 [T, S, E, M], as in `RivalSteps`; NaN for the learner's own side


def steps_of_rivals(rivals: Rivals, steps: Transitions) -> RivalSteps:
    """Reduce decisions of rivals [..., E, J * M] to the numbers that self-play needs."""
    return RivalSteps(steps.alive.sum((-2, -1), dtype=jnp.int32), _pay(rivals, steps, rivals.part))


def expected(rating: Array, opponent: Array) -> Array:
    """Return Elo's expected score, E = 10^(r / 400) / (10^(r / 400) + 10^(o / 400))."""
    return jax.nn.sigmoid((rating - opponent) * (jnp.log(10.0) / 400.0))


def rated(rivals: Mapping[str, Rivals], states: Mapping[str, RivalState], steps: Mapping[str, Any]) -> Rated:
    """Rate the games that end in `steps`: `Transitions` [T, S, E, M] of learners, `RivalSteps` of rivals.

    A member that terminates with its whole team has one game against each other side, whose opponent loses what the
    learner gains. Against one side the sign of the member's reward decides, as in ML-Agents; of several, each is
    compared with the learner where its game ends too. Against the newest policy of the same behavior both ratings are
    one number, which does not change.
    """
    sides = _sides(rivals, states, steps)
    pays = {name: _pay(setup, steps[name]) for name, setup in rivals.items()}
    games = {name: _games(pay, sides) for name, pay in pays.items()}

    def rate(carry: tuple[Any, Any], games: dict[str, _Games]) -> tuple[Any, Any]:
        (rating, met), learners = carry, {}
        for name, ended in games.items():
            rating = _moved(sides, rating, name, ended)
            met = _booked(sides, met, ended)
            learners[name] = rating[name][:, -1], ended.ends.sum((1, 2), dtype=jnp.float32)
        return (rating, met), learners

    def skip(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        return carry, {name: (x[:, -1], jnp.zeros_like(x[:, -1])) for name, x in carry[0].items()}

    def step(carry: tuple[Any, Any], games: dict[str, _Games]) -> tuple[Any, Any]:
        some = jnp.stack([ended.ends.any() for ended in games.values()]).any()
        return jax.lax.cond(some, lambda carry: rate(carry, games), skip, carry)

    start = {name: states[name].rating for name in rivals}, {name: states[name].met for name in rivals}
    (rating, met), learners = jax.lax.scan(step, start, games)
    elo = {name: _weighted(*learners[name]) for name in rivals}
    decided = {name: _decided(pay, sides) for name, pay in pays.items()}
    return Rated(rating, met, elo, decided, {name: _scores(ended, sides) for name, ended in games.items()})


def _pay(rivals: Rivals, steps: Transitions, teams: Sizes | None = None) -> Array:
    """Return the rewards that decide the games of members, float32 [..., M]; NaN where none ends.

    `teams`: sizes of rivals, whose result is by team, [..., J, M]; None: all members are one team.
    """
    last = steps.reward + steps.group_reward
    pay = steps.sums.reward + steps.sums.received if rivals.settings.result == "return" else last
    arrays = pay, steps.terminated, steps.stays | steps.truncated
    pay, terminated, goes_on = arrays if teams is None else (by_team(teams, x) for x in arrays)
    # A reward that is not finite decides nothing: a fault of one behavior must not reach the ratings of others.
    return jnp.where(terminated & ~goes_on.any(-1, keepdims=True) & jnp.isfinite(pay), pay, jnp.nan)


def _sides(rivals: Mapping[str, Rivals], states: Mapping[str, RivalState], steps: Mapping[str, Any]) -> list[_Side]:
    """Return all sides, in order."""
    sides = []
    for name, setup in rivals.items():
        state, pay = states[name], steps[rivals_of(name)].pay
        numbers = jnp.repeat(state.opponent, pay.shape[2] // setup.groups, axis=1)  # [S, E, J]
        window, saves = setup.settings.window, state.saves[:, None]
        for side in range(setup.sides.first, setup.sides.first + setup.sides.teams):
            slot, learns = setup.sides.slot(state.turn, side), (state.turn == side)[:, None]
            number = jnp.take_along_axis(numbers, slot[:, None, None], axis=2)[..., 0]
            row = jnp.where(number == LATEST, window, number % window)
            known = (number != LATEST) & (number >= saves - window)
            side_pay = jnp.take_along_axis(pay, slot[None, :, None, None, None], axis=3)[..., 0, :]
            sides.append(_Side(name, row, known, learns, jnp.where(learns[..., None], jnp.nan, side_pay)))
    return sides


def _games(pay: Array, sides: list[_Side]) -> _Games:
    """Return the games of a learner with deciding rewards `pay` [T, S, E, M]; results as in `self_play.rating`."""
    sign = 0.5 * (1.0 + jnp.sign(pay))
    if len(sides) == 2:
        return _Games(~jnp.isnan(pay), (sign,))
    results = []
    for side in sides:
        other = side.pay[..., None, :]  # [T, S, E, 1, members of the side]
        ends, wins = ~jnp.isnan(other), 0.5 * (1.0 + jnp.sign(pay[..., None] - other))
        count = ends.sum(-1)
        mean = jnp.where(ends, wins, 0.0).sum(-1) / jnp.maximum(count, 1)
        results.append(jnp.where(count > 0, mean, sign))
    return _Games(~jnp.isnan(pay), tuple(results))


def _by_side(sides: list[_Side], games: _Games) -> list[tuple[_Side, Array]]:
    """Return every side with the results of games against it."""
    return [(side, games.results[i % len(games.results)]) for i, side in enumerate(sides)]


def _moved(sides: list[_Side], rating: Mapping[str, Array], name: str, games: _Games) -> dict[str, Array]:
    """Return the ratings after games [S, E, M]: other sides' opponents lose what the learner `name` gains."""
    learner, new = rating[name][:, -1:], dict(rating)
    gained = jnp.zeros_like(sides[0].row, jnp.float32)
    for side, result in _by_side(sides, games):
        opponent = jnp.take_along_axis(rating[side.name], side.row, axis=1)
        change = jnp.where(games.ends, result - expected(learner, opponent)[..., None], 0.0).sum(-1)  # [S, E]
        change = jnp.where(side.learns, 0.0, change)
        new[side.name] = jax.vmap(lambda x, at, by: x.at[at].add(-by))(new[side.name], side.row, change)
        gained = gained + change
    new[name] = new[name].at[:, -1].add(gained.sum(1))
    return new


def _booked(sides: list[_Side], met: Mapping[str, Any], games: _Games) -> dict[str, Any]:
    """Book games [S, E, M] of a learner for each other side's opponent, if that is still in the pool.

    A snapshot that plays several sides has played one game, whose score is the mean.
    """
    new, played = dict(met), games.ends.sum(-1, dtype=jnp.float32)
    for name, rows in met.items():
        if isinstance(rows, tuple):  # no pfsp
            continue
        more, rivals = jnp.zeros_like(rows), [pair for pair in _by_side(sides, games) if pair[0].name == name]
        for side, result in rivals:
            copies = sum((other.row == side.row) & other.known & ~other.learns for other, _ in rivals)
            both = jnp.stack([played, jnp.where(games.ends, result, 0.0).sum(-1)], -1)  # [S, E, 2]
            share = jnp.where(side.known & ~side.learns, 1.0 / jnp.maximum(copies, 1), 0.0)
            more = more + jax.vmap(lambda x, at, by: jnp.zeros_like(x).at[at].add(by, mode="drop"))(
                rows, side.row, both * share[..., None]
            )
        new[name] = jnp.stack(sampling.remembered(*jnp.moveaxis(rows, -1, 0), *jnp.moveaxis(more, -1, 0)), -1)
    return new


def _scores(games: _Games, sides: list[_Side]) -> Array:
    """Count games [T, S, E, M], and sum the learner's scores, each the mean over the other sides: float32 [S, 2]."""
    score = jnp.zeros_like(games.results[0])
    for side, result in _by_side(sides, games):
        score = score + jnp.where(side.learns[..., None], 0.0, result) / (len(sides) - 1)
    both = jnp.where(games.ends, 1.0, 0.0), jnp.where(games.ends, score, 0.0)
    return jnp.stack([x.sum((0, 2, 3)) for x in both], -1)


def _decided(pay: Array, sides: list[_Side]) -> Moments:
    """Compute moments of whether games with rewards `pay` have winners or losers, by `rating.is_decided`."""
    compared = jnp.sign if len(sides) == 2 else lambda x: x
    others = jnp.concatenate([jnp.broadcast_to(x.pay, (*pay.shape[:3], x.pay.shape[-1])) for x in sides], -1)
    known = ~jnp.isnan(others)[..., None, :]
    unlike = (known & (compared(others)[..., None, :] != compared(pay)[..., None])).any(-1)
    decided, ends = jnp.where(known.any(-1), unlike, pay != 0), ~jnp.isnan(pay)
    count, total = (jnp.where(ends, x, 0).sum((0, 2, 3), dtype=jnp.float32) for x in (1, decided))
    share = total / jnp.maximum(count, 1.0)
    return Moments(count, share, count * share * (1.0 - share))


def _weighted(values: Array, weights: Array) -> Moments:
    """Compute moments of numbers [T, S] that count `weights` times each."""
    count = weights.sum(0)
    mean = (values * weights).sum(0) / jnp.maximum(count, 1.0)
    return Moments(count, jnp.where(count > 0, mean, 0.0), (jnp.square(values - mean) * weights).sum(0))
