"""Acting in a JAX environment inside a compiled program: T decisions of S seeds in E areas each, kept for a rollout.

The environments of all seeds step as one batch of S·E areas, so that a new episode is drawn only in steps in which one
is due; the policies act side by side, one per seed. Everything that no step needs is worked out afterwards, for all T
steps at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.algorithms.interface import Algorithm, Decision, PolicyState
from jaxrl.connectors.chain import Chain
from jaxrl.jax_envs.interface import (
    Areas,
    JaxEnv,
    TeamActions,
    TeamStep,
    TeamView,
    advance_areas,
    begin_areas_anew,
    start_areas,
)
from jaxrl.jax_envs.sampling import Value
from jaxrl.jax_envs.scene import Sizes
from jaxrl.training.compiled import connecting
from jaxrl.types import Action


class EpisodeSums(NamedTuple):
    """What the episodes under way have brought so far."""

    reward: Array  # float32 [S, E, A], own reward of each agent
    length: Array  # int32 [S, E, A], decisions that were followed by another, as ML-Agents counts
    group_reward: Array  # float32 [S, E, K], of each of the K teams, by whomever it was received
    received: Array  # float32 [S, E, A], group reward of each agent
    mates_reward: Array  # float32 [S, E, A], own rewards of the others of its team while it lived


class Play(NamedTuple):
    """Areas between two decisions."""

    areas: Areas  # leading axes [S, E]
    view: TeamView  # [S, E, A, ...]
    sums: EpisodeSums
    carry: Any  # what the members remember, a pytree of arrays [S, E, A, *]; () without memory
    connectors: Any = ()  # what the connectors remember of them, likewise; () without connectors


class Transitions(NamedTuple):
    """T decisions and what came of them. Leading axes [T, S, E, A]."""

    obs: tuple[Array, ...]  # as the policies saw them, in the sensor's dtype [..., *shape]; behind the connectors
    action_mask: Array  # bool [..., M]
    action: Action  # raw samples, [..., C] and [..., D]
    extras: dict[str, Array]  # float32 [..., *shape], what the algorithm noted
    carry: Any  # memory before the decision, a pytree of arrays [..., *]
    last_carry: Any  # memory after it; empty unless the environment truncates
    begin: Array  # bool, the first decision of an episode
    alive: Array  # bool, the member decided
    reward: Array  # float32, as the connectors leave it
    group_reward: Array  # float32, likewise
    terminated: Array  # bool
    truncated: Array  # bool
    stays: Array  # bool, alive after the step; nobody where the episode is over
    last_obs: tuple[Array, ...]  # what the members saw after the step; empty unless the environment truncates
    sums: EpisodeSums  # with this step's rewards, as the environment gave them
    over: Array  # bool [T, S, E]
    stats: dict[str, Array]  # float32 [T, S, E], valid where over


def start_play(
    env: JaxEnv,
    carry: Any,
    keys: Array,
    areas: int,
    parameters: Mapping[str, Value],
    connectors: Chain | None = None,
) -> Play:
    """Begin an episode in each of E = `areas` areas of every seed. `keys` [S] are consumed.

    `carry` is one member's memory before its first decision; `parameters` are float32 [S] by name, or a distribution
    [S] that each episode draws from.
    """
    values = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], (*keys.shape, areas, *x.shape[1:])), parameters)
    started, view = jax.vmap(lambda key, of_seed: start_areas(env, key, areas, of_seed))(keys, values)
    return begin_play(env, carry, started, view, connectors)


def start_anew(
    env: JaxEnv, carry: Any, play: Play, which: Array, parameters: Mapping[str, Value], connectors: Chain | None = None
) -> Play:
    """Begin another episode in all areas of the seeds of which `which` [S] is True; the rest as in `start_play`."""
    seeds, areas = play.view.alive.shape[:2]
    values = jax.tree.map(lambda x: jnp.repeat(x, areas, axis=0), parameters)
    moved, view = split(begin_areas_anew(env, join(play.areas), values), seeds)
    fresh = begin_play(env, carry, moved, view, connectors)
    state = jax.tree.map(partial(_choose, which), fresh.areas.state, play.areas.state)
    rest = (play.view, play.sums, play.carry, play.connectors)
    chosen = jax.tree.map(partial(_choose, which), (fresh.view, fresh.sums, fresh.carry, fresh.connectors), rest)
    return Play(play.areas._replace(state=state), *chosen)


def begin_play(env: Sizes, carry: Any, areas: Any, view: TeamView, connectors: Chain | None = None) -> Play:
    """Before the first decision of everybody in `view` [S, E, A]; nothing was earned yet."""
    lead = view.alive.shape
    sums = EpisodeSums(
        reward=jnp.zeros(lead, jnp.float32),
        length=jnp.zeros(lead, jnp.int32),
        group_reward=jnp.zeros((*lead[:2], env.teams), jnp.float32),
        received=jnp.zeros(lead, jnp.float32),
        mates_reward=jnp.zeros(lead, jnp.float32),
    )
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (*lead, *x.shape)), carry)
    return Play(areas, view, sums, memory, connecting.start(connectors, lead))


def collect(
    env: JaxEnv, algorithm: Algorithm, policy: PolicyState, play: Play, keys: Array, parameters: Mapping[str, Value]
) -> tuple[Play, Transitions]:
    """Act and step T times.

    Args:
      policy: one per seed, leading axis [S].
      keys: typed keys [T, S], consumed: the noise of each decision.
      parameters: float32 [S] by name or a distribution [S], for episodes that begin.

    Returns:
      The areas after it, whose `connectors` are a whole `ChainState`, with statistics; and what happened.
    """
    seeds, areas = play.view.alive.shape[:2]
    values = jax.tree.map(lambda x: jnp.repeat(x, areas, axis=0), parameters)
    noise = noise_of(algorithm, keys, play.view.alive.shape[1:])

    def step(play: Play, key: Array) -> tuple[Play, Transitions]:
        chosen = choose(env, algorithm, policy, play, key)
        moved, result = advance_areas(env, join(play.areas), join(chosen.sent), values)
        after, here = note(env, algorithm, play, chosen, split(result.step, seeds))
        return after._replace(areas=split(moved, seeds), view=split(result.view, seeds)), here

    return jax.lax.scan(step, with_statistics(algorithm, play, policy), noise)


def with_statistics(algorithm: Algorithm, play: Play, policy: PolicyState) -> Play:
    """The areas with the whole state of the connectors, statistics of the policies [S] included."""
    return play._replace(connectors=connecting.with_statistics(algorithm.connectors, play.connectors, policy))


class Choice(NamedTuple):
    """Decisions of the members of S seeds and E areas, and what was known when they were made."""

    begin: Array  # bool [S, E, A]
    view: TeamView  # as the policies saw it
    carry: Any  # memory before the decision
    after: Any  # memory after it
    decision: Decision
    sent: TeamActions  # what the environment gets, [S, E, A, ...]
    connectors: Any  # their state after the decision


def choose(env: Sizes, algorithm: Algorithm, policy: PolicyState, play: Play, key: Array) -> Choice:
    """What the members decide now. `key`: of one step for each seed [S], or what `noise` has drawn from it."""
    chain = algorithm.connectors
    begin = begins(play)
    connected, view = connecting.observed(chain, play.connectors, play.view, begin)
    carry = remembered(play)
    decision = jax.vmap(partial(_decide, env, algorithm))(policy, view, carry, key)
    after = jax.tree.map(partial(_choose, view.alive), decision.carry, carry)  # the dead remember what they knew
    connected, action = connecting.sent(chain, connected, decision, view.alive)
    sent = TeamActions(continuous=action.continuous, discrete=action.discrete)
    return Choice(begin, view, carry, after, decision, sent, connected)


def note(env: Sizes, algorithm: Algorithm, play: Play, chosen: Choice, done: TeamStep) -> tuple[Play, Transitions]:
    """What came of the decisions, `done` [S, E, ...], for a rollout; and the play, its areas and view as before."""
    chain, view, decision = algorithm.connectors, chosen.view, chosen.decision
    sums, sums_after = _add_up(env, play.sums, view.alive, done)
    connected, own, group = connecting.rewarded(chain, chosen.connectors, done.reward, done.group_reward, view.alive)
    here = Transitions(
        obs=view.obs,
        action_mask=view.action_mask,
        action=decision.action,
        extras=decision.extras,
        carry=chosen.carry,
        last_carry=chosen.after if env.truncates else (),
        begin=chosen.begin,
        alive=view.alive,
        reward=own,
        group_reward=group,
        terminated=done.terminated,
        truncated=done.truncated,
        stays=done.view.alive,
        last_obs=connecting.last(chain, connected, done.view) if env.truncates else (),
        sums=sums,
        over=done.over,
        stats=dict(done.stats),
    )
    return play._replace(sums=sums_after, carry=chosen.after, connectors=connected), here


def noise_of(algorithm: Algorithm, keys: Array, lead: tuple[int, ...]) -> Any:
    """What `act` draws from the keys [T, S] for members [*lead], all at once; the keys where it draws for itself.

    The numbers are those that it would draw in each step, where 48 of them took 33 us (one core, jaxlib 0.10.2).
    """
    draw = algorithm.noise
    return keys if draw is None else jax.vmap(jax.vmap(lambda key: draw(key, lead)))(keys)


def begins(play: Play) -> Array:
    """bool [S, E, A]: members whose next decision is the first of an episode."""
    return play.view.alive & (play.sums.length == 0)


def remembered(play: Play) -> Any:
    """What members remember before their next decision: nothing where an episode begins. A pytree of [S, E, A, *]."""
    return jax.tree.map(lambda x: _choose(begins(play), jnp.zeros_like(x), x), play.carry)


def _decide(env: Sizes, algorithm: Algorithm, policy: PolicyState, view: TeamView, carry: Any, key: Array) -> Decision:
    """One seed's decisions, [E, A, ...]; what critics remember is told in rows, as the algorithm wants them."""
    decision = algorithm.act(policy, view.obs, view.action_mask, carry, key)
    if algorithm.remember is None:
        return decision
    lead, members = view.alive.shape, env.members if algorithm.team_rows else 1
    teams = lead[0] * lead[1] // members

    def rows(x: Array) -> Array:
        return x.reshape(teams, members, *x.shape[2:])

    obs, alive, of_rows = jax.tree.map(rows, (view.obs, view.alive, decision))
    after = algorithm.remember(policy, obs, alive, of_rows)
    return decision._replace(carry=jax.tree.map(lambda x: x.reshape(*lead, *x.shape[2:]), after))


def _choose(mask: Array, x: Array, other: Array) -> Array:
    """`x` where mask [S, ...], such as [S, E, A], holds, else `other`; both [*mask.shape, *]."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, other)


def _add_up(env: Sizes, sums: EpisodeSums, alive: Array, done: Any) -> tuple[EpisodeSums, EpisodeSums]:
    """Sums with this step, and what of them goes on: nothing of agents that ended and teams of which nobody is left."""
    ended, stays = done.terminated | done.truncated, done.view.alive
    own, paid = jnp.where(alive, done.reward, 0.0), jnp.where(alive, done.group_reward, 0.0)
    group, earned = by_team(env, paid), by_team(env, own)
    others = (earned.sum(-1, keepdims=True) - earned).reshape(own.shape)
    # The team's reward, by whomever it was received: the dying may get none where the living get it.
    received = jnp.where(group.max(-1) > -group.min(-1), group.max(-1), group.min(-1))
    now = EpisodeSums(
        reward=sums.reward + own,
        length=sums.length,
        group_reward=sums.group_reward + received,
        received=sums.received + paid,
        mates_reward=sums.mates_reward + jnp.where(alive, others, 0.0),
    )
    goes_on = by_team(env, stays).any(-1)
    return now, EpisodeSums(
        reward=jnp.where(ended, 0.0, now.reward),
        length=jnp.where(ended, 0, now.length + alive),
        group_reward=jnp.where(goes_on, now.group_reward, 0.0),
        received=jnp.where(ended, 0.0, now.received),
        mates_reward=jnp.where(ended, 0.0, now.mates_reward),
    )


def by_team(env: Sizes, x: Array) -> Array:
    """[..., A] → [..., K, A / K], members by team."""
    return x.reshape(*x.shape[:-1], env.teams, env.members)


def join(x: Any) -> Any:
    """[S, E, ...] → [S·E, ...] for every array of a pytree."""
    return jax.tree.map(lambda a: a.reshape(a.shape[0] * a.shape[1], *a.shape[2:]), x)


def split(x: Any, seeds: int) -> Any:
    """[S·E, ...] → [S, E, ...]."""
    return jax.tree.map(partial(_split_one, seeds), x)


def _split_one(seeds: int, x: Array) -> Array:
    return x.reshape(seeds, x.shape[0] // seeds, *x.shape[1:])
