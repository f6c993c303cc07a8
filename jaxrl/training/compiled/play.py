"""State of behaviors in their areas, and the record of T decisions. The letters are those of `iteration.py`."""

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
    """Sums over the running episodes so far."""

    reward: Array  # float32 [S, E, A], own reward of each agent
    length: Array  # int32 [S, E, A], decisions that were followed by another, as ML-Agents counts
    group_reward: Array  # float32 [S, E, K], of each of the K teams, whichever member received it
    received: Array  # float32 [S, E, A], group reward of each agent
    mates_reward: Array  # float32 [S, E, A], own rewards of the others of its team while it lived


class Made(NamedTuple):
    """Decisions with their inputs; fields as in `Transitions`. Leading axes [S, E, A]."""

    obs: tuple[Array, ...]
    action_mask: Array
    action: Action
    extras: dict[str, Array]
    carry: Any
    begin: Array


class Open(NamedTuple):
    """Decisions that are open because their member is paused."""

    waits: Array  # bool [S, E, A], whether there is one; the other fields are valid only there
    reward: Array  # float32 [S, E, A], individual reward of the decision so far
    group_reward: Array  # float32 [S, E, A]
    mates_reward: Array  # float32 [S, E, A]
    action: Any  # `Action` [S, E, A, *] if there is memory, which reads the actions of all members; else ()


class Play(NamedTuple):
    """State of a behavior in the areas, between two decisions."""

    areas: Any  # `Areas` [S, E] in a state of a single behavior; else (), the areas are shared
    view: TeamView  # [S, E, A, ...]
    sums: EpisodeSums
    carry: Any  # members' memory, a pytree of arrays [S, E, A, *]; () without memory
    open: Open
    connectors: Any = ()  # connectors' memory of the members, likewise; () without connectors
    made: Any = ()  # `Made` of pending decisions from before the newest update; () without learning


class Transitions(NamedTuple):
    """T decisions with their outcomes. Leading axes [T, S, E, A]."""

    obs: tuple[Array, ...]  # as the policies saw them, after the connectors, in the sensor's dtype [..., *shape]
    action_mask: Array  # bool [..., M]
    action: Action  # raw samples, [..., C] and [..., D]
    extras: dict[str, Array]  # float32 [..., *shape], the algorithm's notes
    carry: Any  # memory before the decision, a pytree of arrays [..., *]
    last_carry: Any  # memory after it; empty unless the environment truncates
    begin: Array  # bool, the first decision of an episode
    alive: Array  # bool, the member decided
    waits: Array  # bool, the member is paused: its decision of an earlier step is still pending
    arrived: Array  # bool, its decision's outcome is complete: it decides again after this step, or has ended
    reward: Array  # float32, where arrived: the decision's reward, as the connectors return it; else 0
    mates_reward: Array  # float32, likewise: own rewards of its mates that arrived meanwhile
    group_reward: Array  # float32, likewise
    terminated: Array  # bool
    truncated: Array  # bool
    stays: Array  # bool, lives on after the step, deciding or pausing; False for all if the episode is over
    last_obs: tuple[Array, ...]  # members' observations after the step; empty unless the environment truncates
    sums: EpisodeSums  # with this step's rewards, as the environment gave them
    over: Array  # bool [T, S, E]
    stats: dict[str, Array]  # float32 [T, S, E], valid where over


World = tuple[Areas, dict[str, Play]]
"""E areas of each seed [S, E], and the play of each behavior in them."""


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
    """Begin a new episode in all areas of the seeds where `which` [S] is True; other arguments as in `start_play`."""
    areas, plays = world
    count, seeds = areas.clock.shape[1], len(which)
    values = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), parameters)
    moved, views = split(begin_areas_anew(scene, join(areas), values), seeds)
    state = jax.tree.map(partial(select, which), moved.state, areas.state)
    new_plays = {}
    for name, play in plays.items():
        fresh = begin_play(scene.part(name), algorithms[name], views[name])
        fields = ("view", "sums", "carry", "open", "connectors")
        new, old = ({field: getattr(item, field) for field in fields} for item in (fresh, play))
        new_plays[name] = play._replace(**jax.tree.map(partial(select, which), new, old))
    return areas._replace(state=state), new_plays


def begin_play(env: Sizes, algorithm: Algorithm, view: TeamView) -> Play:
    """Return the play before the first decision of all members in `view` [S, E, A], without rewards yet."""
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
    """Return which members' next decision is the first of an episode, bool [S, E, A]."""
    return play.view.alive & (play.sums.length == 0)


def remembered(play: Play) -> Any:
    """Return members' memory before their next decision, a pytree of [S, E, A, *]; zeros where an episode begins."""
    return jax.tree.map(lambda x: select(begins(play), jnp.zeros_like(x), x), play.carry)


def by_team(env: Sizes, x: Array) -> Array:
    """Reshape members [..., A] by team, to [..., K, A / K]."""
    return x.reshape(*x.shape[:-1], env.teams, env.members)


def join(x: Any) -> Any:
    """Reshape every array of a pytree from [S, E, ...] to [S·E, ...]."""
    return jax.tree.map(lambda a: a.reshape(a.shape[0] * a.shape[1], *a.shape[2:]), x)


def split(x: Any, seeds: int) -> Any:
    """Reshape every array of a pytree from [S·E, ...] to [S, E, ...]."""
    return jax.tree.map(lambda a: a.reshape(seeds, a.shape[0] // seeds, *a.shape[1:]), x)
