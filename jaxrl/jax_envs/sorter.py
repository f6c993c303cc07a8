"""Sorter: visit numbered tiles in ascending order. How many there are changes: a variable-length observation.

After the example scene of the same name of ML-Agents, as points in a plane, written for this project.

Rules. A round place of radius 1; the agent starts in its middle and looks anywhere. `num_tiles` tiles lie around it,
at equal angles (the first anywhere) and 0.75 to 0.95 from the middle; their numbers are drawn from 1 to 20, all
different, so that the order must be read, not learned. One decision goes in this order:
1. Actions, three branches of 3 as in the scene: along the way one looks (1 forward, 2 back), sideways (1 left,
   2 right), turn (1 left, 2 right); 0 does nothing. The agent turns by `turn` radians, then moves by `stride` along its
   own axes (also slantwise by no more than `stride`), and is held within the place.
2. A tile closer than `reach` is visited; tiles lie too far apart for two. Visited before: nothing happens. The lowest
   number not visited yet: +1. Any other: -1, and the episode ends.
3. The last tile ends the episode, and so does decision `episode_limit`; both terminate it (the clock is in the
   observation, so nothing is cut off).
Every decision costs 0.001 (a decision is five of the scene's steps at 0.0002).

Observations, in this order:
- `BufferSensor`, entities: [max_tiles, 5], (to it, ahead and left in the agent's own frame, halved · number / 20 · 1 if
  visited · 1 if not); a row without a tile reads 0, so it is absent.
- `VectorSensor_size5`: own place (x, y) · own way (x, y) · time left.
All numbers lie in [-1, 1].
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.drawing import Box, Disc, Line, Point, Scene, Shape
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamStep, TeamView, given, team_step, vector_sensor
from jaxrl.jax_envs.soccer_twos import BRANCHES, SIGN, at_most, left_of
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec

HIGHEST = 20
"""Highest number on a tile; the lowest is 1."""
FEATURES = 5
NEAREST, FARTHEST = 0.75, 0.95
"""Distance of tiles from the middle. 20 of them are at least 2 sin(π / 20) 0.75 = 0.234 apart."""
STEP_REWARD = -0.001


class SorterSettings(NamedTuple):
    """Sizes and constants, fixed when the environment is made, except the default of the parameter."""

    max_tiles: int = 20  # N, rows of the variable-length observation
    num_tiles: int = 2  # parameter `num_tiles`, cut to 1..max_tiles
    stride: float = 0.15
    turn: float = 0.4  # radians
    reach: float = 0.1
    episode_limit: int = 300  # decisions


DEFAULTS = SorterSettings()


class SorterState(NamedTuple):
    """State of one area, seen from above; (0, 0) is its middle."""

    position: Array  # float32 [2]
    way: Array  # float32 [2], where the agent looks, of length 1
    tile: Array  # float32 [N, 2]
    number: Array  # int32 [N], 1 to 20; 0 where there is no tile
    visited: Array  # bool [N]
    clock: Array  # int32 [], decisions made


def make_sorter(settings: SorterSettings = DEFAULTS) -> JaxEnv:
    """Bind `settings` into an environment with one agent.

    Raises:
        ValueError: `max_tiles` is not within 1 to 20, or `reach` is so long that two tiles can be touched at once.
    """
    if not 1 <= settings.max_tiles <= HIGHEST:
        raise ValueError(f"max_tiles = {settings.max_tiles}: must lie between 1 and {HIGHEST}, the numbers that exist")
    room = 2.0 * NEAREST * math.sin(math.pi / settings.max_tiles)
    if settings.max_tiles > 1 and 2.0 * settings.reach > room:
        raise ValueError(f"reach = {settings.reach}: must be at most {room / 2:.3f}, half the way between two tiles")
    defaults = {"num_tiles": float(settings.num_tiles)}

    def reset(key: Array, parameters: EnvParams = defaults) -> tuple[SorterState, TeamView]:
        state = _place(settings, key, given(parameters, defaults)["num_tiles"])
        return state, _view(settings, state, jnp.bool_(False))

    tiles = ObservationSpec(
        "BufferSensor", (settings.max_tiles, FEATURES), (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
    )
    own_vector = vector_sensor(5)
    return JaxEnv(
        name="Sorter",
        spec=BehaviorSpec((tiles, own_vector), ActionSpec(continuous_size=0, discrete_branches=BRANCHES)),
        members=1,
        parameters=defaults,
        reset=reset,
        step=lambda _, state, actions: _judge(settings, _move(settings, state, actions.discrete[0])),
        draw=lambda state: draw(settings, state),
    )


def _place(settings: SorterSettings, key: Array, wanted: Array) -> SorterState:
    """Place `wanted` tiles, float32 [], around the middle."""
    number_key, radius_key, angle_key = jax.random.split(key, 3)
    count = jnp.clip(jnp.round(wanted), 1.0, settings.max_tiles)
    index = jnp.arange(settings.max_tiles)
    there = index < count
    numbers = 1 + jax.random.permutation(number_key, HIGHEST)[: settings.max_tiles]
    start, heading = jax.random.uniform(angle_key, (2,), maxval=2.0 * math.pi)
    radius = jax.random.uniform(radius_key, (settings.max_tiles, 1), minval=NEAREST, maxval=FARTHEST)
    tile = radius * _unit(start + 2.0 * math.pi * index / count)
    return SorterState(
        position=jnp.zeros(2, jnp.float32),
        way=_unit(heading),
        tile=jnp.where(there[:, None], tile, 0.0),
        number=jnp.where(there, numbers, 0).astype(jnp.int32),
        visited=jnp.zeros(settings.max_tiles, bool),
        clock=jnp.int32(0),
    )


def _unit(angle: Array) -> Array:
    """Return unit vectors [..., 2] of angles [...]."""
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)


def _move(settings: SorterSettings, state: SorterState, action: Array) -> SorterState:
    """Turn and move the agent (rule 1); `action` int32 [3]."""
    ahead, left, turn = jnp.asarray(SIGN)[action]
    angle = settings.turn * turn
    way = jnp.cos(angle) * state.way + jnp.sin(angle) * left_of(state.way)
    way = way / jnp.sqrt(jnp.sum(way * way))  # rounding must not add up
    move = at_most(settings.stride * (ahead * way + left * left_of(way)), settings.stride)
    return state._replace(position=at_most(state.position + move, 1.0), way=way, clock=state.clock + 1)


def _judge(settings: SorterSettings, state: SorterState) -> tuple[SorterState, TeamStep]:
    """Visit tiles and decide reward and end (rules 2 and 3)."""
    open_tiles = (state.number > 0) & ~state.visited
    distance = jnp.sum(jnp.square(state.tile - state.position), axis=1)
    touched = open_tiles & (distance < settings.reach**2)
    lowest = jnp.min(jnp.where(open_tiles, state.number, HIGHEST + 1))
    right = jnp.any(touched & (state.number == lowest))
    wrong = jnp.any(touched & (state.number != lowest))
    state = state._replace(visited=state.visited | touched)
    done = ~wrong & ~jnp.any((state.number > 0) & ~state.visited)
    over = wrong | done | (state.clock >= settings.episode_limit)
    reward = STEP_REWARD + right - wrong.astype(jnp.float32)
    in_order = jnp.sum(state.visited) - wrong
    figures = {"Tiles In Order": in_order, "All In Order": done}
    return state, team_step(_view(settings, state, over), reward=reward, terminated=over, figures=figures)


def _view(settings: SorterSettings, state: SorterState, over: Array) -> TeamView:
    """Compute the observations that the module's docstring lists."""
    away = state.tile - state.position
    frame = jnp.stack([state.way, left_of(state.way)])  # [2, 2], ahead and left
    to_tile = 0.5 * jnp.sum(away[:, None] * frame[None], axis=-1)
    features = [to_tile, (state.number / HIGHEST)[:, None], state.visited[:, None], ~state.visited[:, None]]
    tiles = jnp.where((state.number > 0)[:, None], jnp.concatenate(features, axis=1), 0.0)
    left = 1.0 - state.clock / settings.episode_limit
    own_vector = jnp.concatenate([state.position, state.way, left[None]])
    return TeamView(
        obs=(tiles[None].astype(jnp.float32), own_vector[None].astype(jnp.float32)),
        action_mask=jnp.ones((1, sum(BRANCHES)), bool),
        alive=~over[None],
    )


_RIM, _FLOOR, _OPEN, _DONE, _AGENT = 1.15, "#e6e0d4", "#e9c46a", "#a8d5a2", "#264653"


def draw(settings: SorterSettings, state: Any) -> Scene:
    """Draw the place with its tiles, green once visited, and the agent; `state` is a `SorterState` of numpy arrays."""

    def point(place: np.ndarray) -> Point:
        return float(place[0]) + _RIM, float(place[1]) + _RIM

    shapes: list[Shape] = [Disc((_RIM, _RIM), _RIM, "#b8ae98"), Disc((_RIM, _RIM), 1.0 + settings.reach, _FLOOR)]
    for place, number, visited in zip(state.tile, state.number, state.visited, strict=True):
        if number:
            side = 2.0 * settings.reach
            shapes.append(Box(point(place), (side, side), _DONE if visited else _OPEN, label=str(int(number))))
    shapes.append(Disc(point(state.position), 0.07, _AGENT))
    shapes.append(Line(point(state.position), point(state.position + 0.11 * state.way), 0.03, _AGENT))
    return Scene((2.0 * _RIM, 2.0 * _RIM), tuple(shapes))
