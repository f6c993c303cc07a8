"""Opponents of the compiled loop: snapshots as rows of stacked parameters, and the times at which they change.

Self-play follows ML-Agents (see docs/self-play.md), at the ends of iterations. Each seed has a pool of W snapshots.
Areas form G groups; each group draws its own opponents, so that a seed plays against G of them at a time and each one's
decisions are one batched product. A playing opponent is a copy, because its snapshot's row can be overwritten while it
plays. It is drawn anew when more than `swap_steps` ghost steps have passed, not for each episode: otherwise parameters
would have to be gathered with every decision.

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
from jaxrl.training.compiled.play import Play
from jaxrl.training.self_play import sampling
from jaxrl.training.self_play.pool import LATEST
from jaxrl.types import NOTHING

GROUPS = 8
"""Largest number of opponents of a seed at a time; each costs its own product in every decision."""
_DRAW = 2**31 - 1


class Rivals(NamedTuple):
    """Static sizes and functions of the rivals of one behavior."""

    part: Sizes  # J teams of M members
    algorithm: Algorithm  # acts for all of them
    sides: Sides
    groups: int  # G
    settings: SelfPlaySettings

    @property
    def size(self) -> int:
        """Number of seeds of one league; 1 without a league."""
        return self.settings.league_size


class RivalState(struct.PyTreeNode):
    """State of self-play of one behavior. Every array has the leading axis S."""

    play: Play  # of the rivals, [S, E, J * M, ...]
    pool: PolicyState  # snapshots, [S, W, ...]: number n is in row n % W
    rating: Array  # float32 [S, W + 1], of the snapshots and, last, of the learner
    opponent: Array  # int32 [S, G, J], numbers of the snapshots that play, or LATEST
    playing: PolicyState  # their policies, [S, G, J, ...]
    turn: Array  # int32 [S], the side that learns, of all behaviors
    saves: Array  # int32 [S], snapshots taken
    saved: Array  # int32 [S], trainer step of the last snapshot
    ghost: Array  # int32 [S], decisions of rivals
    swapped: Array  # int32 [S], ghost steps when opponents were last drawn
    changed: Array  # int32 [S], trainer step when its turn last ended
    key: Array  # typed key [S], never consumed
    met: Any = ()  # with pfsp: float32 [S, W, 2], games of a learner against each row, and its score
    league: Any = ()  # `LeagueState`, if some of the seeds are exploiters of others


def groups_of(areas: int) -> int:
    """Return G, the number of groups of equal size into which areas are divided."""
    return max(count for count in range(1, min(areas, GROUPS) + 1) if areas % count == 0)


def rival_algorithm(algorithm: Algorithm, groups: int, slots: int) -> Algorithm:
    """Return an algorithm that acts for rivals [E, J * M], with one policy per group and slot, [G, J, ...]."""

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
    """Return the state before the first decision: the learners' policies [S, ...] are the snapshots. `keys` [S]."""
    settings, seeds = rivals.settings, len(keys)
    zeros = jnp.zeros(seeds, jnp.int32)
    opponent = jnp.zeros((seeds, rivals.groups, rivals.sides.slots), jnp.int32)
    pool, playing = begin_pool(league.of_main(policy, rivals.size), settings.window, opponent.shape)
    return RivalState(
        play=play,
        pool=pool,
        rating=jnp.full((seeds, settings.window + 1), settings.initial_elo, jnp.float32),
        opponent=opponent,
        playing=playing,
        turn=zeros,
        saves=zeros + 1,
        saved=zeros,
        ghost=zeros,
        swapped=zeros,
        changed=zeros,
        key=keys,
        met=jnp.zeros((seeds, settings.window, 2)) if settings.opponent_sampling == "pfsp" else (),
        league=league.begin(seeds) if rivals.size > 1 else (),
    )


def begin_pool(policy: PolicyState, window: int, opponents: tuple[int, ...]) -> tuple[PolicyState, PolicyState]:
    """Return a pool [S, W, ...] and opponents [S, G, J, ...], all of which are the policy [S, ...]."""
    pool = jax.tree.map(lambda x: jnp.repeat(x[:, None], window, axis=1), policy)
    playing = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None, None], (*opponents, *x.shape[1:])), policy)
    return pool, playing


def scheduled(
    rivals: Mapping[str, Rivals],
    states: Mapping[str, RivalState],
    policies: Mapping[str, PolicyState],
    steps: Mapping[str, Array],
    iteration: Array,
    frozen: Mapping[str, Array] = NOTHING,
) -> tuple[dict[str, RivalState], Array]:
    """Change learning teams, snapshots and opponents at the end of an iteration, where they are due.

    Args:
      states: with the ratings and ghost steps of the iteration.
      policies: of the learners, [S, ...].
      steps: trainer steps, int32 [S].
      iteration: uint32 [S], selects the random draws.
      frozen: bool [S], behaviors whose steps do not advance: their turns end at once, if others learn.

    Returns:
      The states, and in which seeds the turn has changed, bool [S].
    """
    sides = sum(setup.sides.teams for setup in rivals.values())
    before = next(iter(states.values())).turn
    turn, changed, some_learn = before, {}, ~reduce(jnp.logical_and, frozen.values(), jnp.bool_(True))
    for name, setup in rivals.items():
        over = steps[name] - states[name].changed > setup.settings.team_change
        over = (over | (frozen.get(name, False) & some_learn)) & setup.sides.learning(before)
        changed[name] = jnp.where(over, steps[name], states[name].changed)
        turn = jnp.where(over, (turn + 1) % sides, turn)
    new = turn != before
    new_states = {}
    for name, setup in rivals.items():
        state = states[name].replace(turn=turn, changed=changed[name])
        state = _snapped(setup, state, policies[name], steps[name])
        new_states[name] = drawn(setup, state, policies[name], new, iteration)
    return new_states, new


def _snapped(rivals: Rivals, state: RivalState, policy: PolicyState, step: Array) -> RivalState:
    """Save the learner as a snapshot, with its rating, in seeds where that is due."""
    due = step - state.saved > rivals.settings.save_steps
    due = due & league.leads(len(due), rivals.size) if rivals.size > 1 else due
    state = state.replace(saved=jnp.where(due, step, state.saved))
    return _saved(rivals, state, due, policy, state.rating[:, -1])


def _saved(rivals: Rivals, state: RivalState, due: Array, policy: PolicyState, rating: Array) -> RivalState:
    """Put the policies [S, ...] into the pools of the seeds where `due` [S], rated as `rating` [S]."""
    window = rivals.settings.window
    at = jnp.where(due, state.saves % window, window)  # a row beyond the last is dropped
    place = jnp.where(due, state.saves % window, window + 1)
    return state.replace(
        pool=_put(state.pool, at, policy),
        rating=jax.vmap(lambda x, at, to: x.at[at].set(to, mode="drop"))(state.rating, place, rating),
        met=jax.vmap(lambda x, at: x.at[at].set(0.0, mode="drop"))(state.met, at) if len(state.met) else (),
        saves=state.saves + due,
    )


def joined(
    rivals: Rivals, state: RivalState, policy: PolicyState, step: Array, ready: Array
) -> tuple[RivalState, Array]:
    """Put the policies of exploiters that are done into their main agents' pools; return which exploiters, bool [S].

    `ready`: bool [S], whether a seed has learned from all its data.
    """
    options = rivals.settings.league
    if options is None:
        return state, jnp.zeros_like(ready)
    which, rating = league.due(options, state.league, step) & ready, state.rating[:, -1]
    for number in range(1, rivals.size):
        now, exploiter, rated = league.of_next((which, policy, rating), number)
        state = _saved(rivals, state, now & league.leads(len(step), rivals.size), exploiter, rated)
    begins = league.of_main(rating, rivals.size) if options.begin == "main" else rivals.settings.initial_elo
    rated = state.rating.at[:, -1].set(jnp.where(which, begins, rating))
    return state.replace(rating=rated, league=league.begun_anew(options, state.league, which, step)), which


def drawn(rivals: Rivals, state: RivalState, policy: PolicyState, new: Array, iteration: Array) -> RivalState:
    """Draw each group's opponents where that is due: the newest policy, or one of the snapshots.

    Exploiters only play against their newest main agent, whose rating is in their row 0.
    """
    settings, window = rivals.settings, rivals.settings.window
    due = new | (state.ghost - state.swapped > settings.swap_steps)
    keys = jax.vmap(lambda key, n: jax.random.split(jax.random.fold_in(jax.random.fold_in(key, _DRAW), n)))(
        state.key, iteration
    )
    shape, filled = state.opponent.shape[1:], jnp.minimum(state.saves, window)
    old = jax.vmap(partial(jax.random.uniform, shape=shape))(keys[:, 0])
    rows = jax.vmap(partial(_snapshot, settings, shape))(keys[:, 1], filled, state.met)
    last = (state.saves - 1)[:, None, None]
    chosen = jnp.where(old < 1.0 - settings.play_against_latest_model_ratio, last - (last - rows) % window, LATEST)
    if rivals.size > 1:
        lead = league.leads(len(due), rivals.size)
        policy, newest = league.of_main((policy, state.rating[:, -1]), rivals.size)
        state = state.replace(rating=state.rating.at[:, 0].set(jnp.where(lead, state.rating[:, 0], newest)))
        chosen = select(lead, chosen, LATEST)
    playing = _policies(state.pool, policy, chosen, window)
    playing = jax.tree.map(lambda x, before: select(due, x, before), playing, state.playing)
    if rivals.size > 1:
        chosen = select(lead, chosen, 0)
    return state.replace(
        opponent=select(due, chosen, state.opponent),
        playing=playing,
        swapped=jnp.where(due, state.ghost, state.swapped),
    )


def _policies(pool: PolicyState, newest: PolicyState, numbers: Array, window: int) -> PolicyState:
    """Return the policies [S, G, J, ...] of these numbers [S, G, J], of snapshots in the pool or LATEST."""

    def of_seed(pool: PolicyState, newest: PolicyState, numbers: Array) -> PolicyState:
        return jax.tree.map(lambda rows, x: select(numbers != LATEST, rows[numbers % window], x), pool, newest)

    return jax.vmap(of_seed)(pool, newest, numbers)


def _snapshot(settings: SelfPlaySettings, shape: tuple[int, ...], key: Array, filled: Array, met: Any) -> Array:
    """Draw rows of one seed's snapshots, of which there are `filled`, int32 `shape`."""
    if settings.opponent_sampling == "uniform":
        return jax.random.randint(key, shape, 0, filled)
    games, score = met.T
    weight = jnp.where(jnp.arange(settings.window) < filled, sampling.weight(games, score, settings.pfsp_power), 0.0)
    return jax.random.categorical(key, jnp.log(weight), shape=shape).astype(jnp.int32)


def _put(pool: PolicyState, at: Array, policy: PolicyState) -> PolicyState:
    """Put the policies into the rows `at` [S] of the pool; rows beyond the last are dropped."""
    put = jax.vmap(lambda rows, at, x: rows.at[at].set(x, mode="drop"))
    return jax.tree.map(lambda rows, x: put(rows, at, x), pool, policy)
