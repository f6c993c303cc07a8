"""Opponents of the compiled loop: earlier selves as rows of stacked parameters, their ratings, and when they change.

As ML-Agents defines self-play (see docs/self-play.md), at the ends of iterations. Each seed has a pool of W snapshots
and, in row W, its policy as it was at the last swap. Areas stand in G groups; each group draws opponents of its own, so
that a seed meets G of them at a time and each one's decisions are one batched product. An opponent is drawn anew when
more than `swap_steps` ghost steps have passed, not for each episode: which rows stand together would else change with
every decision, and their parameters be gathered as often.

Ratings are Elo's with K = 1. Games that end with the same decision are rated by the ratings before it.

Letters: S seeds, E areas, W snapshots, G groups, J rivals of a behavior in an area, M members of a team.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jaxrl.algorithms.interface import Algorithm, Decision, PolicyState
from jaxrl.jax_envs.scene import Sizes
from jaxrl.masks import select
from jaxrl.settings.behavior import SelfPlaySettings
from jaxrl.training.compiled import league
from jaxrl.training.compiled.contest import Sides
from jaxrl.training.compiled.play import Play, Transitions
from jaxrl.training.compiled.stacking import Moments
from jaxrl.training.self_play import sampling
from jaxrl.types import NOTHING

GROUPS = 8
"""Opponents that a seed meets at a time, at most; each costs a product of its own in every decision."""
_DRAW = 2**31 - 1


class Rivals(NamedTuple):
    """What the rivals of one behavior are bound to."""

    part: Sizes  # J teams of M members
    algorithm: Algorithm  # acts for all of them
    sides: Sides
    groups: int  # G
    settings: SelfPlaySettings

    @property
    def size(self) -> int:
        """Seeds of one league; 1 without."""
        return self.settings.league_size


class RivalState(struct.PyTreeNode):
    """What self-play continues from, of one behavior. Every array has the leading axis S."""

    play: Play  # of the rivals, [S, E, J * M, ...]
    pool: PolicyState  # [S, W + 1, ...]
    rating: Array  # float32 [S, W + 1], of the snapshots and, last, of the learner
    opponent: Array  # int32 [S, G, J], rows of the pool
    turn: Array  # int32 [S], the side that learns, of all behaviors
    saves: Array  # int32 [S], snapshots taken
    saved: Array  # int32 [S], trainer step of the last one
    ghost: Array  # int32 [S], decisions of rivals
    swapped: Array  # int32 [S], ghost steps when opponents were drawn last
    changed: Array  # int32 [S], trainer step when its turn was over last
    key: Array  # typed key [S], never consumed
    met: Any = ()  # with pfsp: float32 [S, W + 1, 2], games of a learner against each row, and what it scored
    league: Any = ()  # `LeagueState`, where some of the seeds are exploiters of others


def groups_of(areas: int) -> int:
    """G: into so many groups of one size areas are divided."""
    return max(count for count in range(1, min(areas, GROUPS) + 1) if areas % count == 0)


def rival_algorithm(algorithm: Algorithm, groups: int, slots: int) -> Algorithm:
    """Acts for rivals [E, J * M], each group and slot of which follows a policy of its own, [G, J, ...]."""

    def act(policies: PolicyState, obs: Any, action_mask: Array, carry: Any, noise: Any) -> Decision:
        lead = action_mask.shape[:2]

        def apart(x: Array) -> Array:  # [E, J * M, *] → [G, J, E / G, M, *]
            x = x.reshape(groups, lead[0] // groups, slots, lead[1] // slots, *x.shape[2:])
            return jnp.moveaxis(x, 2, 1)

        def back(x: Array) -> Array:
            return jnp.moveaxis(x, 1, 2).reshape(*lead, *x.shape[4:])

        obs, action_mask, carry = jax.tree.map(apart, (obs, action_mask, carry))
        decided = jax.vmap(jax.vmap(algorithm.act))(policies, obs, action_mask, carry, noise)
        return jax.tree.map(back, decided)

    def noise(key: Array, lead: tuple[int, ...]) -> Any:
        keys = jax.random.split(key, (groups, slots))
        draw = algorithm.noise
        if draw is None:
            return keys
        members = (lead[0] // groups, lead[1] // slots)
        return jax.vmap(jax.vmap(lambda key: draw(key, members)))(keys)

    return algorithm._replace(act=act, noise=noise, critic_step=None)


def begin(rivals: Rivals, policy: PolicyState, play: Play, keys: Array) -> RivalState:
    """Before the first decision: the policies [S, ...] of the learners are the only snapshots. `keys` [S]."""
    settings, seeds = rivals.settings, len(keys)
    zeros = jnp.zeros(seeds, jnp.int32)
    return RivalState(
        play=play,
        pool=begin_pool(league.of_main(policy, rivals.size), settings.window),
        rating=jnp.full((seeds, settings.window + 1), settings.initial_elo, jnp.float32),
        opponent=jnp.zeros((seeds, rivals.groups, rivals.sides.slots), jnp.int32),
        turn=zeros,
        saves=zeros + 1,
        saved=zeros,
        ghost=zeros,
        swapped=zeros,
        changed=zeros,
        key=keys,
        met=jnp.zeros((seeds, settings.window + 1, 2)) if settings.opponent_sampling == "pfsp" else (),
        league=league.begin(seeds) if rivals.size > 1 else (),
    )


def begin_pool(policy: PolicyState, window: int) -> PolicyState:
    """The pool [S, W + 1, ...] in which every row is the policy [S, ...]."""
    return jax.tree.map(lambda x: jnp.repeat(x[:, None], window + 1, axis=1), policy)


def opponents(state: RivalState) -> PolicyState:
    """Those that are met now, [S, G, J, ...]."""
    chosen = jax.vmap(lambda rows, chosen: rows[chosen])
    return jax.tree.map(lambda rows: chosen(rows, state.opponent), state.pool)


def expected(rating: Array, opponent: Array) -> Array:
    """Elo's expected score, E = 10^(r / 400) / (10^(r / 400) + 10^(o / 400))."""
    return jax.nn.sigmoid((rating - opponent) * (jnp.log(10.0) / 400.0))


class Rated(NamedTuple):
    """Ratings after some decisions."""

    rating: dict[str, Array]  # float32 [S, W + 1]
    met: dict[str, Any]  # as in `RivalState`
    elo: dict[str, Moments]  # of the learner's rating after each game that was rated, float32 [S]
    games: dict[str, Array]  # float32 [S, 2], games of the learner, told by its members, and what it scored


def rated(rivals: Mapping[str, Rivals], states: Mapping[str, RivalState], steps: Mapping[str, Transitions]) -> Rated:
    """The ratings by the games that end in `steps` [T, S, E, M], of the learners.

    A member that ends for good with its whole team tells the result: 1, 1/2 or 0 by the sign of what it and its team
    earned last. Its opponent is that of the side registered last; every other side's opponent loses what the learner
    gains. Against the newest policy of one's own behavior both are one number, which stays.
    """
    results = {name: _results(steps[name]) for name in rivals}
    others = _others(rivals, states, next(iter(steps.values())).over.shape[2])

    def by(carry: tuple[Any, Any], of: dict[str, tuple[Array, Array]]) -> tuple[Any, Any]:
        (rating, met), told = carry, {}
        for name, (result, counts) in of.items():
            change = _change(others, rating, name, result, counts)  # [S, E]
            rating = _moved(others, rating, name, change)
            met = _met(others, met, result, counts)
            told[name] = rating[name][:, -1], counts.sum((1, 2), dtype=jnp.float32)
        return (rating, met), told

    def at(carry: tuple[Any, Any], of: dict[str, tuple[Array, Array]]) -> tuple[Any, Any]:
        def none(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            return carry, {name: (x[:, -1], jnp.zeros_like(x[:, -1])) for name, x in carry[0].items()}

        some = jnp.stack([counts.any() for _, counts in of.values()]).any()
        return jax.lax.cond(some, lambda carry: by(carry, of), none, carry)

    begun = {name: states[name].rating for name in rivals}, {name: states[name].met for name in rivals}
    (rating, met), told = jax.lax.scan(at, begun, results)
    elo = {name: _weighted(*told[name]) for name in rivals}
    games = {
        name: jnp.stack([counts.sum((0, 2, 3), dtype=jnp.float32), jnp.where(counts, result, 0.0).sum((0, 2, 3))], -1)
        for name, (result, counts) in results.items()
    }
    return Rated(rating, met, elo, games)


def _results(steps: Transitions) -> tuple[Array, Array]:
    """The result for each member, float32 [T, S, E, M], and where there is one."""
    last = steps.reward + steps.group_reward
    counts = steps.terminated & ~steps.stays.any(-1, keepdims=True) & ~steps.truncated.any(-1, keepdims=True)
    counts = counts & jnp.isfinite(last)  # else a fault of one behavior would reach the ratings of all that it meets
    return 0.5 * (1.0 + jnp.sign(last)), counts


class _Other(NamedTuple):
    """One side of a game, as learners see it that are not it."""

    name: str  # its behavior
    row: Array  # int32 [S, E], of its behavior's pool: the opponent that stands for it
    learns: Array  # bool [S, 1], it is the learner's own


def _others(rivals: Mapping[str, Rivals], states: Mapping[str, RivalState], areas: int) -> list[_Other]:
    """All sides, in order."""
    turn, found = next(iter(states.values())).turn, []
    for name, of in rivals.items():
        rows = jnp.repeat(states[name].opponent, areas // of.groups, axis=1)  # [S, E, J]
        for side in range(of.sides.first, of.sides.first + of.sides.teams):
            slot = of.sides.slot(turn, side)[:, None, None]
            row = jnp.take_along_axis(rows, slot, axis=2)[..., 0]
            found.append(_Other(name, row, (turn == side)[:, None]))
    return found


def _change(others: list[_Other], rating: Mapping[str, Array], name: str, result: Array, counts: Array) -> Array:
    """What the learner `name` gains in each area, float32 [S, E]: over its members, result minus expected score."""
    theirs = jnp.zeros(result.shape[:2], jnp.float32)
    for other in others:
        found = jnp.take_along_axis(rating[other.name], other.row, axis=1)
        theirs = jnp.where(other.learns, theirs, found)  # the last that is not the learner's
    score = expected(rating[name][:, -1:], theirs)[..., None]
    return jnp.where(counts, result - score, 0.0).sum(-1)


def _moved(others: list[_Other], rating: Mapping[str, Array], name: str, change: Array) -> dict[str, Array]:
    """The ratings when each other side's opponent has lost, and the learner has gained, `change` [S, E]."""
    after = dict(rating)
    for other in others:
        lost = jnp.where(other.learns, 0.0, change)
        after[other.name] = jax.vmap(lambda x, at, by: x.at[at].add(-by))(after[other.name], other.row, lost)
    after[name] = after[name].at[:, -1].add(change.sum(1))
    return after


def _met(others: list[_Other], met: Mapping[str, Any], result: Array, counts: Array) -> dict[str, Any]:
    """With these games [S, E, M] of a learner, told by its members, against each other side's opponent."""
    after, played = dict(met), counts.sum(-1, dtype=jnp.float32)
    scored = jnp.where(counts, result, 0.0).sum(-1)
    for name, row, learns in others:
        if isinstance(after[name], tuple):
            continue
        theirs = jnp.where(learns[..., None], 0.0, jnp.stack([played, scored], -1))  # [S, E, 2]
        new = jax.vmap(lambda x, at, by: jnp.zeros_like(x).at[at].add(by))(after[name], row, theirs)
        after[name] = jnp.stack(sampling.remembered(*jnp.moveaxis(after[name], -1, 0), *jnp.moveaxis(new, -1, 0)), -1)
    return after


def _weighted(values: Array, weights: Array) -> Moments:
    """Of numbers [T, S] that count `weights` times each."""
    count = weights.sum(0)
    mean = (values * weights).sum(0) / jnp.maximum(count, 1.0)
    return Moments(count, jnp.where(count > 0, mean, 0.0), (jnp.square(values - mean) * weights).sum(0))


def scheduled(
    rivals: Mapping[str, Rivals],
    states: Mapping[str, RivalState],
    policies: Mapping[str, PolicyState],
    steps: Mapping[str, Array],
    iteration: Array,
    frozen: Mapping[str, Array] = NOTHING,
) -> tuple[dict[str, RivalState], Array]:
    """What changes at the end of an iteration: whose turn it is, snapshots, opponents.

    Args:
      states: with the ratings and ghost steps of the iteration.
      policies: of the learners, [S, ...].
      steps: of the trainers, int32 [S].
      iteration: uint32 [S], names the draws.
      frozen: bool [S], behaviors whose steps stand still: their turns are over at once, if others learn.

    Returns:
      The states, and in which seeds the turn has changed, bool [S].
    """
    sides = sum(of.sides.teams for of in rivals.values())
    before = next(iter(states.values())).turn
    turn, changed, some_learn = before, {}, ~reduce(jnp.logical_and, frozen.values(), jnp.bool_(True))
    for name, of in rivals.items():
        over = steps[name] - states[name].changed > of.settings.team_change
        over = (over | (frozen.get(name, False) & some_learn)) & of.sides.learning(before)
        changed[name] = jnp.where(over, steps[name], states[name].changed)
        turn = jnp.where(over, (turn + 1) % sides, turn)
    new = turn != before
    after = {}
    for name, of in rivals.items():
        state = states[name].replace(turn=turn, changed=changed[name])
        after[name] = drawn(of, _snapped(of, state, policies[name], steps[name]), policies[name], new, iteration)
    return after, new


def _snapped(rivals: Rivals, state: RivalState, policy: PolicyState, step: Array) -> RivalState:
    """A snapshot goes into the ring where it is due, with the rating of the learner."""
    due = step - state.saved > rivals.settings.save_steps
    due = due & league.leads(len(due), rivals.size) if rivals.size > 1 else due
    state = state.replace(saved=jnp.where(due, step, state.saved))
    return _saved(rivals, state, due, policy, state.rating[:, -1])


def _saved(rivals: Rivals, state: RivalState, due: Array, policy: PolicyState, rating: Array) -> RivalState:
    """The policies [S, ...] go into the ring of the seeds where it is `due` [S], rated as `rating` [S]."""
    at = jnp.where(due, state.saves % rivals.settings.window, rivals.settings.window + 1)  # beyond: dropped
    return state.replace(
        pool=_put(state.pool, at, policy),
        rating=jax.vmap(lambda x, at, to: x.at[at].set(to, mode="drop"))(state.rating, at, rating),
        met=jax.vmap(lambda x, at: x.at[at].set(0.0, mode="drop"))(state.met, at) if len(state.met) else (),
        saves=state.saves + due,
    )


def joined(
    rivals: Rivals, state: RivalState, policy: PolicyState, step: Array, ready: Array
) -> tuple[RivalState, Array]:
    """Exploiters that are done leave their policies to their main agents: the state, and which, bool [S].

    `ready`: bool [S], whether a seed has learned from all that it has met.
    """
    own = rivals.settings.league
    if own is None:
        return state, jnp.zeros_like(ready)
    which, rating = league.due(own, state.league, step) & ready, state.rating[:, -1]
    for number in range(1, rivals.size):
        now, of, rated = league.of_next((which, policy, rating), number)
        state = _saved(rivals, state, now & league.leads(len(step), rivals.size), of, rated)
    begins = league.of_main(rating, rivals.size) if own.begin == "main" else rivals.settings.initial_elo
    rated = state.rating.at[:, -1].set(jnp.where(which, begins, rating))
    return state.replace(rating=rated, league=league.begun_anew(own, state.league, which, step)), which


def drawn(rivals: Rivals, state: RivalState, policy: PolicyState, new: Array, iteration: Array) -> RivalState:
    """Every group draws its opponents where it is time: the newest policy, or one of the snapshots."""
    settings = rivals.settings
    due = new | (state.ghost - state.swapped > settings.swap_steps)
    keys = jax.vmap(lambda key, n: jax.random.split(jax.random.fold_in(jax.random.fold_in(key, _DRAW), n)))(
        state.key, iteration
    )
    shape, filled = state.opponent.shape[1:], jnp.minimum(state.saves, settings.window)
    old = jax.vmap(partial(jax.random.uniform, shape=shape))(keys[:, 0])
    some = jax.vmap(partial(_snapshot, settings, shape))(keys[:, 1], filled, state.met)
    chosen = jnp.where(old < 1.0 - settings.play_against_latest_model_ratio, some, settings.window)
    state = state.replace(pool=_put(state.pool, jnp.where(due, settings.window, settings.window + 1), policy))
    if rivals.size > 1:
        lead = league.leads(len(due), rivals.size)
        chosen, state = select(lead, chosen, 0), _facing_main(rivals, state, policy, due & ~lead)
    return state.replace(
        opponent=jnp.where(due[:, None, None], chosen, state.opponent),
        swapped=jnp.where(due, state.ghost, state.swapped),
    )


def _facing_main(rivals: Rivals, state: RivalState, policy: PolicyState, due: Array) -> RivalState:
    """Row 0 of exploiters is their main agent: as it is rated now, and where it is `due` [S] as it plays now."""
    newest, rating = league.of_main((policy, state.rating[:, -1]), rivals.size)
    facing = jnp.where(league.leads(len(due), rivals.size), state.rating[:, 0], rating)
    pool = _put(state.pool, jnp.where(due, 0, rivals.settings.window + 1), newest)
    return state.replace(pool=pool, rating=state.rating.at[:, 0].set(facing))


def _snapshot(settings: SelfPlaySettings, shape: tuple[int, ...], key: Array, filled: Array, met: Any) -> Array:
    """Rows of one seed's snapshots, of which `filled` are there, int32 `shape`."""
    if settings.opponent_sampling == "uniform":
        return jax.random.randint(key, shape, 0, filled)
    games, score = met[:-1].T
    weight = jnp.where(jnp.arange(settings.window) < filled, sampling.weight(games, score, settings.pfsp_power), 0.0)
    return jax.random.categorical(key, jnp.log(weight), shape=shape).astype(jnp.int32)


def _put(pool: PolicyState, at: Array, policy: PolicyState) -> PolicyState:
    """The pool with the policies in the rows `at` [S]; what is beyond the last row is dropped."""
    put = jax.vmap(lambda rows, at, x: rows.at[at].set(x, mode="drop"))
    return jax.tree.map(lambda rows, x: put(rows, at, x), pool, policy)
