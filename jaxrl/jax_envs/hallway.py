"""Hallway: a sign at the start tells which of two doors at the far end is right. Who does not remember must guess.

After the example scene of the same name of ML-Agents, as a grid world written for this project.

Rules. A room of three columns and two rows, a corridor as wide as one cell, and a last row of three cells across its
end: `length` rows in all, between walls. The agent starts on the first row, in any column, and looks along the hall. On
the second row, in the middle, lies the sign: a cross or a ring. The outer cells of the last row are doors: one shows a
cross, the other a ring, which way round is drawn for each episode. One decision goes in this order:
1. Actions, one branch of 4: 1 forward (one cell), 2 turn left, 3 turn right (a quarter); 0 stays. Walls are not
   entered; the sign can be walked over.
2. A door ends the episode: +1 if it shows what the sign showed, -0.1 if not.
3. After `episode_limit` decisions without a door the agent is cut off (truncated), as in the scene.
Every decision costs 0.0003, as a step of the scene.

Observation: one vector of 4 + 6 x 5 numbers in [0, 1]: the way one looks as one of four (along the hall, then by
quarter turns to the left) · then for each ray (left, ahead and left, ahead, ahead and right, right): what it meets as
one of 5 (wall, sign with a cross, with a ring, door with a cross, with a ring) and how far that is, divided by `sight`;
if nothing stands within `sight` cells, five times 0 and 1.

One of the rays ahead meets the sign at the start, from every column. Whoever goes along the corridor sees the same
whatever the sign showed: without memory half the doors are right, and (1 - 0.1) / 2 = 0.45 is the most. Three things of
the scene are left out for that, because an agent without memory learns to note the sign in them: the width of the hall
(walk at the left for a cross), walking backwards (arrive facing back for a ring), and the clock (wait for a while).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.drawing import Box, Disc, Line, Scene, Shape
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamStep, TeamView, given, team_step, vector_sensor
from jaxrl.types import ActionSpec, BehaviorSpec

WIDTH, ROOM = 3, 2
"""Columns of the room and of the last row; rows of the room."""
NUM_ACTIONS = 4
RIGHT_REWARD, WRONG_REWARD, STEP_REWARD = 1.0, -0.1, -0.0003
SIGN_CELL = (1, 1)
SHORTEST = 4
"""Least `length`: two rows of the room, one of the corridor, one with the doors."""
NOTHING, WALL, SIGN, DOOR = 0, 1, 2, 4
"""Contents of a cell: signs are SIGN + symbol, doors DOOR + symbol; symbols are 0 (cross) and 1 (ring)."""
KINDS = 5  # that a ray can meet
LENGTH = 4 + 5 * (KINDS + 1)
WAYS = np.array([[0, 1], [-1, 0], [0, -1], [1, 0]], np.int32)  # (x, y) by quarter turns to the left; 0 is the hall's
_MOVE = np.array([0, 1, 0, 0], np.int32)  # by action, cells ahead
_SPIN = np.array([0, 0, 1, 3], np.int32)  # by action, quarter turns to the left
_RAYS = np.array([[0, 1], [1, 1], [1, 0], [1, -1], [0, -1]], np.int32)  # cells ahead and left, for one cell of length


class HallwaySettings(NamedTuple):
    """Sizes and constants, fixed when the environment is made, except the default of the parameter."""

    length: int = 8  # rows; parameter `length`, rounded, at least 4
    sight: int = 3  # cells that a ray reaches
    episode_limit: int = 100  # decisions


DEFAULTS = HallwaySettings()


class HallwayState(NamedTuple):
    """State of one area. Cells are (x, y), y counting along the hall."""

    position: Array  # int32 [2]
    heading: Array  # int32 [], quarter turns to the left from the way along the hall, 0..3
    symbol: Array  # int32 [], on the sign
    left_door: Array  # int32 [], symbol on the door in column 0
    length: Array  # int32 [], rows of this episode
    clock: Array  # int32 [], decisions made


def make_hallway(settings: HallwaySettings = DEFAULTS) -> JaxEnv:
    """Bind `settings` into an environment with one agent.

    Raises:
        ValueError: `length` < 4, or `sight` < 1.
    """
    if settings.length < SHORTEST:
        raise ValueError(f"length = {settings.length}: the hall needs at least {SHORTEST} rows")
    if settings.sight < 1:
        raise ValueError(f"sight = {settings.sight}: a ray must reach at least 1 cell, or nobody sees the sign")
    defaults = {"length": float(settings.length)}

    def reset(key: Array, parameters: EnvParams = defaults) -> tuple[HallwayState, TeamView]:
        column, symbol, door = jax.random.randint(key, (3,), 0, jnp.array([WIDTH, 2, 2]), jnp.int32)
        state = HallwayState(
            position=jnp.stack([column, jnp.int32(0)]),
            heading=jnp.int32(0),
            symbol=symbol,
            left_door=door,
            length=jnp.maximum(jnp.round(given(parameters, defaults)["length"]), SHORTEST).astype(jnp.int32),
            clock=jnp.int32(0),
        )
        return state, _view(settings, state, jnp.bool_(False))

    return JaxEnv(
        name="Hallway",
        spec=BehaviorSpec((vector_sensor(LENGTH),), ActionSpec(continuous_size=0, discrete_branches=(NUM_ACTIONS,))),
        members=1,
        parameters=defaults,
        reset=reset,
        step=lambda _, state, actions: _step(settings, state, actions.discrete[0, 0]),
        truncates=True,
        draw=draw,
    )


def _content(state: HallwayState, cell: Array) -> Array:
    """Return the contents of the cells [..., 2], int32 [...]."""
    column, row = cell[..., 0], cell[..., 1]
    outside = (column < 0) | (column >= WIDTH) | (row < 0) | (row >= state.length)
    outside |= (column != 1) & (row >= ROOM) & (row < state.length - 1)
    sign = (column == SIGN_CELL[0]) & (row == SIGN_CELL[1])
    door = (row == state.length - 1) & (column != 1)
    shown = jnp.where(column == 0, state.left_door, 1 - state.left_door)
    held = jnp.where(door, DOOR + shown, jnp.where(sign, SIGN + state.symbol, NOTHING))
    return jnp.where(outside, WALL, held)


def _step(settings: HallwaySettings, state: HallwayState, action: Array) -> tuple[HallwayState, TeamStep]:
    """Apply the rules of the module's docstring, in their order."""
    heading = (state.heading + jnp.asarray(_SPIN)[action]) % 4
    onto = state.position + jnp.asarray(_MOVE)[action] * jnp.asarray(WAYS)[state.heading]
    held = _content(state, onto)
    position = jnp.where(held == WALL, state.position, onto)
    state = state._replace(position=position, heading=heading, clock=state.clock + 1)
    at_door = held >= DOOR
    right = at_door & (held == DOOR + state.symbol)
    late = ~at_door & (state.clock >= settings.episode_limit)
    prize = jnp.where(right, RIGHT_REWARD, jnp.where(at_door, WRONG_REWARD, 0.0))
    figures = {"Right Door": right, "Some Door": at_door}
    view, reward = _view(settings, state, at_door | late), STEP_REWARD + prize
    return state, team_step(view, reward=reward, terminated=at_door, truncated=late, figures=figures)


def _view(settings: HallwaySettings, state: HallwayState, over: Array) -> TeamView:
    """Compute the observation that the module's docstring lays out."""
    rays = seen_by_rays(partial(_content, state), state.position, state.heading, settings.sight)
    obs = jnp.concatenate([jax.nn.one_hot(state.heading, 4), rays])
    everything = jnp.ones((1, NUM_ACTIONS), bool)
    return TeamView(obs=(obs[None].astype(jnp.float32),), action_mask=everything, alive=~over[None])


def seen_by_rays(content: Callable[[Array], Array], position: Array, heading: Array, sight: int) -> Array:
    """Compute for each ray the first thing it meets, as one of KINDS, and its distance / `sight`: float32 [5 * 6].

    `content`: cells [..., 2] → what they hold, int32 [...]: NOTHING, or 1 to KINDS.
    """
    ahead, left = (jnp.asarray(WAYS)[(heading + turn) % 4] for turn in (0, 1))
    ray = _RAYS[:, :1] * ahead + _RAYS[:, 1:] * left  # [5, 2]
    held = content(position + ray[:, None] * np.arange(1, sight + 1)[:, None])  # [5, sight]
    first = jnp.argmax(held != NOTHING, axis=1)
    content_met = jnp.take_along_axis(held, first[:, None], axis=1)[:, 0]
    distance = jnp.where(content_met == NOTHING, 1.0, (1 + first) / sight)
    kind = jax.nn.one_hot(content_met - 1, KINDS)  # of NOTHING: no place, so all 0
    return jnp.concatenate([kind, distance[:, None]], axis=1).reshape(-1)


_STONE, _FLOOR, _SIGN, _DOOR, _AGENT = "#5b5750", "#ece6d8", "#e0aa1e", "#8a5a2b", "#3b6fb6"


def draw(state: Any) -> Scene:
    """Draw the hall from above, lying on its side, its start on the left; `state` has numpy arrays."""
    border, length = 0.4, int(state.length)

    def middle(x: float, y: float) -> tuple[float, float]:
        return float(y) + border + 0.5, WIDTH + border - 0.5 - float(x)

    size = (length + 2.0 * border, WIDTH + 2.0 * border)
    shapes: list[Shape] = [
        Box((size[0] / 2, size[1] / 2), (float(length), 1.0), _FLOOR),
        Box((border + ROOM / 2, size[1] / 2), (float(ROOM), float(WIDTH)), _FLOOR),
    ]
    shapes.append(Box(middle(*SIGN_CELL), (0.8, 0.8), _SIGN))
    shapes += _symbol(middle(*SIGN_CELL), int(state.symbol))
    for column, symbol in ((0, int(state.left_door)), (2, 1 - int(state.left_door))):
        shapes.append(Box(middle(column, length - 1), (1.0, 1.0), _DOOR))
        shapes += _symbol(middle(column, length - 1), symbol)
    x, y = middle(*state.position)
    along, to_left = WAYS[int(state.heading)][1], -WAYS[int(state.heading)][0]
    shapes.append(Disc((x, y), 0.26, _AGENT))
    shapes.append(Line((x, y), (x + 0.36 * along, y + 0.36 * to_left), 0.08, _AGENT))
    return Scene(size, tuple(shapes), background=_STONE)


def _symbol(middle: tuple[float, float], symbol: int) -> list[Shape]:
    """Draw a white cross or ring."""
    x, y = middle
    if symbol:
        return [Disc(middle, 0.3, "#ffffff"), Disc(middle, 0.18, _STONE)]
    ends = ((-0.26, -0.26), (-0.26, 0.26))
    return [Line((x + a, y + b), (x - a, y - b), 0.12, "#ffffff") for a, b in ends]
