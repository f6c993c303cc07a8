"""Where behaviors stand in the areas, and what T decisions bring. The letters are those of `iteration.py`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.algorithms.interface import Algorithm, nothing_remembered
from jaxrl.jax_envs.interface import Areas, TeamView, begin_areas_anew, start_areas
from jaxrl.jax_envs.sampling import Value
from jaxrl.jax_envs.scene import JaxScene, Sizes
from jaxrl.masks import select
from jaxrl.training.compiled import connectors
from jaxrl.types import Action


class EpisodeSums(NamedTuple):
    """What the episodes under way have brought so far."""

    reward: Array  # float32 [S, E, A], own reward of each agent
    length: Array  # int32 [S, E, A], decisions that were followed by another, as ML-Agents counts
    group_reward: Array  # float32 [S, E, K], of each of the K teams, by whomever it was received
    received: Array  # float32 [S, E, A], group reward of each agent
    mates_reward: Array  # float32 [S, E, A], own rewards of the others of its team while it lived


class Made(NamedTuple):
    """What was known when decisions were made; fields as in `Transitions`. Leading axes [S, E, A]."""

    obs: tuple[Array, ...]
    action_mask: Array
    action: Action
    extras: dict[str, Array]
    carry: Any
    begin: Array


class Open(NamedTuple):
    """Of decisions whose members pause."""

    waits: Array  # bool [S, E, A]; everything else is valid there
    reward: Array  # float32 [S, E, A], what came of the decision so far: own reward
    group_reward: Array  # float32 [S, E, A]
    mates_reward: Array  # float32 [S, E, A]
    action: Any  # `Action` [S, E, A, *], where there are memories, which follow what everybody is doing; else ()


class Play(NamedTuple):
    """One behavior in the areas, between two decisions."""

    areas: Any  # `Areas` [S, E], where a state is that of one behavior alone; else (), they are everybody's
    view: TeamView  # [S, E, A, ...]
    sums: EpisodeSums
    carry: Any  # what the members remember, a pytree of arrays [S, E, A, *]; () without memory
    open: Open
    connectors: Any = ()  # what the connectors remember of them, likewise; () without connectors
    made: Any = ()  # `Made` of open decisions that were made before the newest update; () where nobody learns


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
    waits: Array  # bool, it pauses: its decision of an earlier step is still open
    arrived: Array  # bool, what came of its open decision is known: it decides again after this step, or has ended
    reward: Array  # float32, where arrived: what came of the decision, as the connectors leave it; else 0
    mates_reward: Array  # float32, likewise: own rewards of its team's others that arrived meanwhile
    group_reward: Array  # float32, likewise
    terminated: Array  # bool
    truncated: Array  # bool
    stays: Array  # bool, lives on after the step, deciding or pausing; nobody where the episode is over
    last_obs: tuple[Array, ...]  # what the members saw after the step; empty unless the environment truncates
    sums: EpisodeSums  # with this step's rewards, as the environment gave them
    over: Array  # bool [T, S, E]
    stats: dict[str, Array]  # float32 [T, S, E], valid where over


World = tuple[Areas, dict[str, Play]]
"""E areas of each seed [S, E], and what is known of each behavior there."""


def start_play(
    scene: JaxScene, algorithms: Mapping[str, Algorithm], keys: Array, areas: int, parameters: Mapping[str, Value]
) -> World:
    """Begin an episode in each of E = `areas` areas of every seed. `keys` [S] are consumed.

    `parameters` are float32 [S] by name, or a distribution [S] that each episode draws from.
    """
    values = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], (*keys.shape, areas, *x.shape[1:])), parameters)
    started, views = jax.vmap(lambda key, of_seed: start_areas(scene, key, areas, of_seed))(keys, values)
    return started, {name: begin_play(scene.part(name), of, views[name]) for name, of in algorithms.items()}


def start_anew(
    scene: JaxScene, algorithms: Mapping[str, Algorithm], world: World, which: Array, parameters: Mapping[str, Value]
) -> World:
    """Begin another episode in all areas of the seeds of which `which` [S] is True; the rest as in `start_play`."""
    areas, plays = world
    count, seeds = areas.clock.shape[1], len(which)
    values = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), parameters)
    moved, views = split(begin_areas_anew(scene, join(areas), values), seeds)
    state = jax.tree.map(partial(select, which), moved.state, areas.state)
    after = {}
    for name, play in plays.items():
        fresh = begin_play(scene.part(name), algorithms[name], views[name])
        held = ("view", "sums", "carry", "open", "connectors")
        new, old = ({field: getattr(of, field) for field in held} for of in (fresh, play))
        after[name] = play._replace(**jax.tree.map(partial(select, which), new, old))
    return areas._replace(state=state), after


def begin_play(env: Sizes, algorithm: Algorithm, view: TeamView) -> Play:
    """Before the first decision of everybody in `view` [S, E, A]; nothing was earned yet."""
    lead = view.alive.shape
    sums = EpisodeSums(
        reward=jnp.zeros(lead, jnp.float32),
        length=jnp.zeros(lead, jnp.int32),
        group_reward=jnp.zeros((*lead[:2], env.teams), jnp.float32),
        received=jnp.zeros(lead, jnp.float32),
        mates_reward=jnp.zeros(lead, jnp.float32),
    )
    carry = nothing_remembered(algorithm)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (*lead, *x.shape)), carry)
    nothing, action = jnp.zeros(lead, jnp.float32), env.spec.action
    idle = Action(
        continuous=jnp.zeros((*lead, action.continuous_size), jnp.float32),
        discrete=jnp.zeros((*lead, len(action.discrete_branches)), jnp.int32),
    )
    nobody = Open(jnp.zeros(lead, bool), nothing, nothing, nothing, idle if jax.tree.leaves(carry) else ())
    return Play((), view, sums, memory, nobody, connectors.start(algorithm.connectors, lead))


def begins(play: Play) -> Array:
    """bool [S, E, A]: members whose next decision is the first of an episode."""
    return play.view.alive & (play.sums.length == 0)


def remembered(play: Play) -> Any:
    """What members remember before their next decision: nothing where an episode begins. A pytree of [S, E, A, *]."""
    return jax.tree.map(lambda x: select(begins(play), jnp.zeros_like(x), x), play.carry)


def by_team(env: Sizes, x: Array) -> Array:
    """[..., A] → [..., K, A / K], members by team."""
    return x.reshape(*x.shape[:-1], env.teams, env.members)


def join(x: Any) -> Any:
    """[S, E, ...] → [S·E, ...] for every array of a pytree."""
    return jax.tree.map(lambda a: a.reshape(a.shape[0] * a.shape[1], *a.shape[2:]), x)


def split(x: Any, seeds: int) -> Any:
    """[S·E, ...] → [S, E, ...]."""
    return jax.tree.map(lambda a: a.reshape(seeds, a.shape[0] // seeds, *a.shape[1:]), x)
