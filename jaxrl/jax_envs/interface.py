"""Interface of a JAX-native environment: one area with one team (or several), as two pure functions of static shapes.

Areas are batched from outside (`start_areas`, `advance_areas`). Members that are absent or ended stay as masked rows,
so that shapes never change; the row of a member that ended may later hold another. A simulator is one file with a
`make_*` function that returns a `JaxEnv`, and one line in `__init__.py`.

A member is gone once a step says `terminated` or `truncated` of it, not before. One that was alive, has not ended and
is not alive now *pauses*, as in a game in turns: its decision stays open, what it and its team earn meanwhile is that
decision's, and it goes on when it is alive again. It may end while it pauses. Its team's critic sees what its row of
the view holds meanwhile.

Sensors are of any kind and in any order, as `BehaviorSpec.observations` says: vectors; images and grids [C, H, W], as
uint8 where 0 to 255 stand for 0 to 1 (a byte per pixel all the way to the learner) or as float32; entities [N, F],
where a row of zeros is nobody (VARIABLE_SIZE, NONE); goals (GOAL_SIGNAL). Arrays have the dtype of their sensor.

Axis letters as in `jaxrl.types`, and E areas. The functions of an environment describe one area, without leading axis.
With several teams (`JaxEnv.teams`) the axis A of every array here holds all of them, one team after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl import mesh
from jaxrl.jax_envs.drawing import Scene
from jaxrl.jax_envs.sampling import Value, drawn
from jaxrl.masks import select
from jaxrl.types import BehaviorSpec, DimensionProperty, ObservationSpec

State = Any
"""The environment's own pytree of arrays."""

EnvParams = Mapping[str, Array | float]
"""Environment parameters by name, scalars, which a curriculum or a randomisation sets for the next episode."""


class TeamActions(NamedTuple):
    """Action of each member; rows of members that are not alive are ignored."""

    continuous: Array  # float32 [A, C]
    discrete: Array  # int32 [A, D]


class TeamView(NamedTuple):
    """Observations, allowed actions and living members, now."""

    obs: tuple[Array, ...]  # one per sensor, its dtype [A, *shape]; zeros for members that never lived in this episode
    action_mask: Array  # bool [A, M], True: allowed; all True for members that are not alive
    alive: Array  # bool [A], True: the member asks for an action; False: it pauses, has ended, or does not exist


class TeamStep(NamedTuple):
    """Results of one step of the area. `view` is the true last one when the episode is over."""

    view: TeamView
    reward: Array  # float32 [A], each member's own, of those that pause too
    group_reward: Array  # float32 [A], the team's reward, for the members that were there to get it, else 0
    terminated: Array  # bool [A], the member ended with this step and nothing follows
    truncated: Array  # bool [A], the member was cut off with this step and would have gone on
    over: Array  # bool [], the whole episode is over: every member, pausing ones too, has ended, reset comes next
    stats: Mapping[str, Array]  # float32 [], by tag; the episode's figures, to be read where `over`


def team_step(
    view: TeamView,
    *,
    reward: Array | float = 0.0,
    group_reward: Array | float = 0.0,
    terminated: Array | bool = False,
    truncated: Array | bool = False,
    over: Array | None = None,
    figures: Mapping[str, Array],
) -> TeamStep:
    """Make a step from arrays [A], or scalars for everybody; `figures` by their tag without `Environment/`.

    `over`: None: the episode is over with the first end of a member.
    """

    def of_each(value: Array | float, dtype: Any) -> Array:
        return jnp.broadcast_to(jnp.asarray(value, dtype), view.alive.shape)

    return TeamStep(
        view=view,
        reward=of_each(reward, jnp.float32),
        group_reward=of_each(group_reward, jnp.float32),
        terminated=of_each(terminated, bool),
        truncated=of_each(truncated, bool),
        over=jnp.any(jnp.asarray(terminated) | truncated) if over is None else over,
        stats={f"Environment/{name}": jnp.asarray(value, jnp.float32) for name, value in figures.items()},
    )


def given(parameters: EnvParams, usual: Mapping[str, float]) -> dict[str, Array]:
    """Return each of the `usual` parameters, float32: its value in `parameters` if present, else its usual value."""
    return {name: jnp.asarray(parameters.get(name, value), jnp.float32) for name, value in usual.items()}


def vector_sensor(size: int) -> ObservationSpec:
    """Make the spec of a vector sensor, named as Unity names it."""
    return ObservationSpec(f"VectorSensor_size{size}", (size,), (DimensionProperty.NONE,))


class JaxEnv(NamedTuple):
    """A simulator, bound to its sizes.

    `reset(key, parameters) -> (state, view)` and `step(key, state, actions) -> (state, team_step)` are pure and may be
    vmapped. Each consumes its typed key. A missing parameter takes its value from `parameters`.
    """

    name: str  # behavior name as a Unity scene would have it, without team suffix
    spec: BehaviorSpec
    members: int  # capacity of a team; A = teams * members
    parameters: Mapping[str, float]  # all environment parameters with their usual values
    reset: Callable[[Array, EnvParams], tuple[State, TeamView]]
    step: Callable[[Array, State, TeamActions], tuple[State, TeamStep]]
    teams: int = 1  # in one area; they share the behavior and play with or against each other
    truncates: bool = False  # whether a step ever says `truncated`; a learner then keeps last states apart
    draw: Callable[[State], Scene] | None = None  # a picture of one area; the state as numpy arrays
    tell: Callable[[State, bool], str] | None = None  # the picture in a few words; True: the episode is over


class Areas(NamedTuple):
    """E areas that play one episode after the other. All arrays have a leading axis E."""

    key: Array  # typed key [E], never consumed: random numbers at `clock` are drawn from `fold_in(key, clock)`
    clock: Array  # uint32 [E], steps since the start
    state: State


class AreasTransition(NamedTuple):
    """A step and who decides next: `view` is `step.view` except where the episode was over and a new one has begun.

    Of a scene (`scene.py`) a `SceneStep`, and views by behavior.
    """

    step: Any  # leading axis E everywhere
    view: Any


def start_areas(env: Any, key: Array, areas: int, parameters: Mapping[str, Value]) -> tuple[Areas, Any]:
    """Begin the first episode of each of E = `areas` areas of a JaxEnv or JaxScene. `key` is consumed.

    `parameters` are arrays [E], or a `Distribution` [E], from which each episode draws its own.
    """
    reset_key, play_key = jax.random.split(key)
    begun = Areas(key=jax.random.split(play_key, areas), clock=jnp.zeros(areas, jnp.uint32), state=())
    values = drawn(parameters, partial(_keys, begun, _FIRST_DRAW))
    state, view = jax.vmap(env.reset)(jax.random.split(reset_key, areas), values)
    return begun._replace(state=state), view


def advance_areas(
    env: Any, areas: Areas, actions: Any, parameters: Mapping[str, Value]
) -> tuple[Areas, AreasTransition]:
    """Step E areas and begin a new episode, with `parameters` as in `start_areas`, in those whose episode is over.

    The step that ended keeps its own last view, so that a truncated episode bootstraps from what it really saw last.
    On a CPU new episodes are drawn only in steps in which an area needs one: with few areas most steps are spared that
    work.
    """
    state, step = step_areas(env, areas, actions)

    def begin(played: tuple[State, Any]) -> tuple[State, Any]:
        return jax.tree.map(partial(select, step.over), next_episodes(env, areas, parameters), played)

    played = (state, step.view)
    if mesh.on_accelerator():
        state, view = begin(played)
    else:
        state, view = jax.lax.cond(jnp.any(step.over), begin, lambda played: played, played)
    return areas._replace(clock=areas.clock + 1, state=state), AreasTransition(step=step, view=view)


def step_areas(env: Any, areas: Areas, actions: Any) -> tuple[State, Any]:
    """Step E areas at their clocks, without resets: where the episode is over, the state is its last."""
    return jax.vmap(env.step)(_keys(areas, _STEP), areas.state, actions)


def next_episodes(env: Any, areas: Areas, parameters: Mapping[str, Value]) -> tuple[State, Any]:
    """Reset E areas whose step at their clocks ends an episode; the new episode is played from `clock + 1` on."""
    return jax.vmap(env.reset)(_keys(areas, _RESET), drawn(parameters, partial(_keys, areas, _DRAW)))


def begin_areas_anew(env: Any, areas: Areas, parameters: Mapping[str, Value]) -> tuple[Areas, Any]:
    """Break off the episodes of E areas and begin others there, with `parameters` as in `start_areas`."""
    state, view = jax.vmap(env.reset)(_keys(areas, _ANEW), drawn(parameters, partial(_keys, areas, _DRAW_ANEW)))
    return areas._replace(state=state), view


_STEP, _RESET, _DRAW, _FIRST_DRAW, _ANEW, _DRAW_ANEW = range(6)
"""Purposes of a key."""


def _keys(areas: Areas, purpose: int) -> Array:
    """Derive keys [E] of this moment, where they are used: an environment without chance in `step` pays nothing."""
    now = jax.vmap(jax.random.fold_in)(areas.key, areas.clock)
    return jax.vmap(lambda key: jax.random.fold_in(key, purpose))(now)
