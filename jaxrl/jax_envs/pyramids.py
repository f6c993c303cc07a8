"""Pyramids: find and press a switch, then the golden pyramid that it raises in another room. Nothing else pays.

After the example scene of the same name of ML-Agents, as a grid world written for this project.

Rules. A square of `rooms` x `rooms` rooms, each of `room` x `room` cells, with walls as thick as one cell between them;
each wall between two rooms has a doorway in its middle. Rooms are drawn for each episode: the agent starts in the
middle of one and looks any way, in a corner of another stands the switch, off; in a corner of a third the golden
pyramid will stand, and in a corner of each other one stands a pyramid of stone. One decision goes in this order:
1. Actions, one branch of 5: 1 forward, 2 back (one cell), 3 turn left, 4 turn right (a quarter); 0 stays. Neither walls
   nor what stands in a corner is entered.
2. Who walks against the switch presses it: it is on from then, and the golden pyramid stands.
3. Who walks against the golden pyramid topples it and gets the brick: +2, and the episode ends.
4. After `episode_limit` decisions without the brick the agent is cut off (truncated), as in the scene.
Every decision costs 1 / `episode_limit`, as a step of the scene.

Observation: one vector of 2 + 5 x 6 numbers: whether the switch is on · the cells by which the agent moved ahead with
this decision (-1, 0, 1) · then for each ray (left, ahead and left, ahead, ahead and right, right): what it meets as one
of 5 (wall, stone, switch off, switch on, gold) and how far that is, divided by `sight`; if nothing stands within that,
five times 0 and 1. As in the scene nobody is told where he is.

Why. Before the first brick every episode earns the same, -1, so there is nothing to learn from; at random one in some
thousands finds it. A pressed switch pays nothing, but the world then looks as it never did before: that is what
curiosity and random network distillation pay for.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.drawing import Box, Disc, Line, Polygon, Scene, Shape
from jaxrl.jax_envs.hallway import KINDS, NOTHING, WAYS, seen_by_rays
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamStep, TeamView, team_step, vector_sensor
from jaxrl.types import ActionSpec, BehaviorSpec

NUM_ACTIONS = 5
BRICK_REWARD = 2.0
WALL, STONE, SWITCH_OFF, SWITCH_ON, GOLD = range(1, 1 + KINDS)
"""Contents of a cell other than NOTHING."""
LENGTH = 2 + 5 * (KINDS + 1)
_MOVE = np.array([0, 1, -1, 0, 0], np.int32)  # by action, cells ahead
_SPIN = np.array([0, 0, 0, 1, 3], np.int32)  # by action, quarter turns to the left


class PyramidsSettings(NamedTuple):
    """Sizes and constants, fixed when the environment is made."""

    rooms: int = 3  # along each side
    room: int = 5  # cells along each side of a room
    sight: int = 5  # cells that a ray reaches
    episode_limit: int = 300  # decisions


DEFAULTS = PyramidsSettings()


class PyramidsState(NamedTuple):
    """State of one area. Cells are (x, y) from the lower left corner; K = rooms ** 2 - 1."""

    position: Array  # int32 [2]
    heading: Array  # int32 [], quarter turns to the left from the way up, 0..3
    things: Array  # int32 [K, 2]: cells of the switch, of the golden pyramid, and of those of stone
    pressed: Array  # bool []
    clock: Array  # int32 [], decisions made


def make_pyramids(settings: PyramidsSettings = DEFAULTS) -> JaxEnv:
    """Bind `settings` into an environment with one agent.

    Raises:
        ValueError: `rooms` < 2, `room` < 3, or `sight` < 1.
    """
    if settings.rooms < 2:
        raise ValueError(f"rooms = {settings.rooms}: agent, switch and pyramid need at least 2 rooms along each side")
    if settings.room < 3:
        raise ValueError(f"room = {settings.room}: at least 3 cells along each side, or a corner bars a doorway")
    if settings.sight < 1:
        raise ValueError(f"sight = {settings.sight}: a ray must reach at least 1 cell")

    def reset(key: Array, parameters: EnvParams | None = None) -> tuple[PyramidsState, TeamView]:
        state = _place(settings, key)
        return state, _view(settings, state, jnp.int32(0), jnp.bool_(False))

    return JaxEnv(
        name="Pyramids",
        spec=BehaviorSpec((vector_sensor(LENGTH),), ActionSpec(continuous_size=0, discrete_branches=(NUM_ACTIONS,))),
        members=1,
        parameters={},
        reset=reset,
        step=lambda _, state, actions: _step(settings, state, actions.discrete[0, 0]),
        truncates=True,
        draw=partial(draw, settings),
        tell=tell,
    )


def _place(settings: PyramidsSettings, key: Array) -> PyramidsState:
    """Draw the room and corner of each thing, and the agent's room."""
    room_key, corner_key, heading_key = jax.random.split(key, 3)
    place = jax.random.permutation(room_key, settings.rooms**2)
    first = jnp.stack([place % settings.rooms, place // settings.rooms], axis=1) * (settings.room + 1)
    corners = jax.random.randint(corner_key, (settings.rooms**2 - 1, 2), 0, 2, jnp.int32) * (settings.room - 1)
    return PyramidsState(
        position=first[0] + settings.room // 2,
        heading=jax.random.randint(heading_key, (), 0, 4, jnp.int32),
        things=first[1:] + corners,
        pressed=jnp.bool_(False),
        clock=jnp.int32(0),
    )


def is_wall(settings: PyramidsSettings, cell: Any) -> Any:
    """Return which of the cells [..., 2] belong to walls, bool [...]; cells outside do."""
    within = cell % (settings.room + 1)
    between = within == settings.room  # [..., 2]
    doorway = between.any(-1) & (within == settings.room // 2).any(-1)
    outside = (cell < 0) | (cell >= settings.rooms * (settings.room + 1) - 1)
    return outside.any(-1) | (between.any(-1) & ~doorway)


def _content(settings: PyramidsSettings, state: PyramidsState, cell: Array) -> Array:
    """Return the contents of the cells [..., 2], int32 [...]."""
    here = (cell[..., None, :] == state.things).all(-1)  # [..., K]
    first_two = jnp.where(state.pressed, jnp.array([SWITCH_ON, GOLD]), jnp.array([SWITCH_OFF, NOTHING]))
    kind = jnp.concatenate([first_two, jnp.full(len(state.things) - 2, STONE)])
    return jnp.where(is_wall(settings, cell), WALL, (here * kind).sum(-1))


def _step(settings: PyramidsSettings, state: PyramidsState, action: Array) -> tuple[PyramidsState, TeamStep]:
    """Apply the rules of the module's docstring, in their order."""
    move = jnp.asarray(_MOVE)[action]
    onto = state.position + move * jnp.asarray(WAYS)[state.heading]
    held = _content(settings, state, onto)
    moved = jnp.where(held == NOTHING, move, 0)
    state = state._replace(
        position=jnp.where(held == NOTHING, onto, state.position),
        heading=(state.heading + jnp.asarray(_SPIN)[action]) % 4,
        pressed=state.pressed | (held == SWITCH_OFF),
        clock=state.clock + 1,
    )
    has_brick = held == GOLD
    late = ~has_brick & (state.clock >= settings.episode_limit)
    reward = BRICK_REWARD * has_brick - 1.0 / settings.episode_limit
    view = _view(settings, state, moved, has_brick | late)
    figures = {"Switch": state.pressed, "Brick": has_brick}
    return state, team_step(view, reward=reward, terminated=has_brick, truncated=late, figures=figures)


def _view(settings: PyramidsSettings, state: PyramidsState, moved: Array, over: Array) -> TeamView:
    """Compute the observation that the module's docstring lays out."""
    rays = seen_by_rays(partial(_content, settings, state), state.position, state.heading, settings.sight)
    obs = jnp.concatenate([jnp.stack([state.pressed, moved]), rays])
    everything = jnp.ones((1, NUM_ACTIONS), bool)
    return TeamView(obs=(obs[None].astype(jnp.float32),), action_mask=everything, alive=~over[None])


_WALLS, _FLOOR, _STONE, _GOLD, _AGENT = "#5b5750", "#ece6d8", "#a39e94", "#e0aa1e", "#3b6fb6"
_SWITCH = ("#b8352f", "#2e8b57")  # off, on


def draw(settings: PyramidsSettings, state: Any) -> Scene:
    """Draw the rooms from above; `state` is a `PyramidsState` of numpy arrays."""
    side = settings.rooms * (settings.room + 1) - 1
    cells = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1).reshape(-1, 2)

    def middle(cell: Any) -> tuple[float, float]:
        return float(cell[0]) + 1.5, float(cell[1]) + 1.5

    shapes: list[Shape] = [Box(middle(cell), (1.0, 1.0), _FLOOR) for cell in cells[~is_wall(settings, cells)]]
    switch, gold, *stones = state.things
    shapes.append(Box(middle(switch), (0.7, 0.7), _SWITCH[int(state.pressed)]))
    for cell, colour in [(stone, _STONE) for stone in stones] + [(gold, _GOLD)] * int(state.pressed):
        x, y = middle(cell)
        shapes.append(Polygon(((x - 0.4, y - 0.35), (x + 0.4, y - 0.35), (x, y + 0.4)), colour))
    (x, y), (along, up) = middle(state.position), WAYS[int(state.heading)]
    shapes.append(Disc((x, y), 0.3, _AGENT))
    shapes.append(Line((x, y), (x + 0.42 * float(along), y + 0.42 * float(up)), 0.1, _AGENT))
    return Scene((side + 2.0, side + 2.0), tuple(shapes), background=_WALLS)


def tell(state: Any, over: bool) -> str:
    """Describe the agent's progress in a few words; `state` as above."""
    if not state.pressed:
        return "too late, the switch is off" if over else "looks for the switch"
    return "the end" if over else "looks for the golden pyramid"
