"""Grid World: walk to the goal that counts now, seen from above, in a world where another goal costs as much.

After the example scene "GridWorld" of ML-Agents, the smallest environment with an image, a goal signal and masks.

Rules. A square of `size` x `size` cells holds an agent, `plus_goals` green plus signs and `ex_goals` red crosses, all
on cells of their own. One of the two kinds is wanted in this episode. Each decision costs 0.01 and moves the agent by
one cell (0 stays, 1 up, 2 down, 3 left, 4 right); moves out of the square are not allowed and count as 0. On a wanted
sign the agent gets 1, on the other kind -1, and either ends the episode. After `episode_limit` decisions it is
truncated, since nobody sees the clock.

With one sign of each kind in 5 x 5 cells the best mean return is 0.9664: the way is 3.36 cells on average, around the
other sign where that stands between. ML-Agents calls a mean of 0.8 solved.

Observations: what a camera above sees, uint8 [3, size · p, size · p] with p = `cell_pixels`, row 0 at the top (or, in
`make_grid_world_grid`, a grid uint8 [3, size, size] of agent, plus signs and crosses, 255 where one is), then the goal
signal: one-hot [2], plus or cross.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.envs.sensors import IMAGE_PROPERTIES
from jaxrl.jax_envs.drawing import Box, Line, Scene, Shape
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamStep, TeamView, given, team_step
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

KINDS = 2
PLUS, EX = range(KINDS)
PARAMETERS = ("plus_goals", "ex_goals")
STEP_REWARD = -0.01
_MOVES = np.array([(0, 0), (0, 1), (0, -1), (-1, 0), (1, 0)], np.int32)  # by action, (x, y)
_COLOURS = np.array([(16, 16, 16), (60, 120, 230), (64, 160, 72), (204, 52, 48)], np.uint8)  # ground, agent, signs


class GridWorldSettings(NamedTuple):
    """Sizes, fixed when the environment is made."""

    size: int = 5  # cells along each side
    cell_pixels: int = 4  # along each side of a cell: 5 x 4 = 20 is the smallest image that the encoder `simple` reads
    most_goals: int = 2  # of each kind
    episode_limit: int = 100  # decisions


DEFAULTS = GridWorldSettings()


class GridWorldState(NamedTuple):
    """State of one area. Cells are (x, y), y upwards."""

    position: Array  # int32 [2]
    sign: Array  # int32 [2, G, 2], plus signs and crosses
    there: Array  # bool [2, G], signs of this episode
    wanted: Array  # int32 [], PLUS or EX
    clock: Array  # int32 [], decisions made


def make_grid_world(settings: GridWorldSettings = DEFAULTS) -> JaxEnv:
    """Make Grid World seen by a camera.

    Raises:
        ValueError: no pixel, no sign, or fewer cells than signs and agent need.
    """
    side = settings.size * settings.cell_pixels
    camera = ObservationSpec("CameraSensor", (3, side, side), IMAGE_PROPERTIES, dtype="uint8")
    return _make("GridWorld", settings, camera, _photographed)


def make_grid_world_grid(settings: GridWorldSettings = DEFAULTS) -> JaxEnv:
    """Make Grid World seen by a grid sensor. Raises ValueError as `make_grid_world`."""
    grid = ObservationSpec("GridSensor", (3, settings.size, settings.size), IMAGE_PROPERTIES, dtype="uint8")
    return _make("GridWorldGrid", settings, grid, lambda *of: jnp.where(_layers(*of), 255, 0).astype(jnp.uint8))


def _make(name: str, settings: GridWorldSettings, sensor: ObservationSpec, look: Any) -> JaxEnv:
    if settings.cell_pixels < 1 or not 1 <= settings.most_goals <= (settings.size**2 - 1) // KINDS:
        raise ValueError(
            f"cell_pixels = {settings.cell_pixels}, most_goals = {settings.most_goals}, size = {settings.size}: a cell "
            "needs a pixel, and all signs and the agent need cells of their own"
        )
    defaults: dict[str, float] = dict.fromkeys(PARAMETERS, 1.0)

    def reset(key: Array, parameters: EnvParams = defaults) -> tuple[GridWorldState, TeamView]:
        state = _place(settings, key, list(given(parameters, defaults).values()))
        return state, _view(settings, look, state, jnp.bool_(True))

    goal = ObservationSpec("VectorSensor_size2", (KINDS,), (DimensionProperty.NONE,), ObservationType.GOAL_SIGNAL)
    return JaxEnv(
        name=name,
        spec=BehaviorSpec((sensor, goal), ActionSpec(continuous_size=0, discrete_branches=(len(_MOVES),))),
        members=1,
        parameters=defaults,
        reset=reset,
        step=lambda _, state, actions: _step(settings, look, state, actions.discrete[0, 0]),  # nothing is random
        truncates=True,
        draw=lambda state: _draw(settings, state),
    )


def _place(settings: GridWorldSettings, key: Array, counts: list[Array]) -> GridWorldState:
    """Place everything on a cell of its own; `counts`: float32 [], signs of each kind, at least one."""
    cell_key, kind_key = jax.random.split(key)
    most = settings.most_goals
    cell = jnp.argsort(jax.random.uniform(cell_key, (settings.size**2,)))[: 1 + KINDS * most].astype(jnp.int32)
    place = jnp.stack([cell % settings.size, cell // settings.size], axis=1)
    count = jnp.clip(jnp.round(jnp.stack(counts)), 1, most)
    return GridWorldState(
        position=place[0],
        sign=place[1:].reshape(KINDS, most, 2),
        there=jnp.arange(most) < count[:, None],
        wanted=jax.random.randint(kind_key, (), 0, KINDS, jnp.int32),
        clock=jnp.int32(0),
    )


def _allowed(settings: GridWorldSettings, position: Array) -> Array:
    """Return the allowed actions, all but moves out of the square, bool [5]."""
    onto = position + _MOVES
    return jnp.all((onto >= 0) & (onto < settings.size), axis=-1)


def _step(
    settings: GridWorldSettings, look: Any, state: GridWorldState, action: Array
) -> tuple[GridWorldState, TeamStep]:
    action = jnp.where(_allowed(settings, state.position)[action], action, 0)
    state = state._replace(position=state.position + jnp.asarray(_MOVES)[action], clock=state.clock + 1)
    reached = jnp.any(jnp.all(state.sign == state.position, axis=-1) & state.there, axis=1)  # bool [2]
    right, wrong = reached[state.wanted], reached[1 - state.wanted]
    ended = right | wrong
    late = (state.clock >= settings.episode_limit) & ~ended
    figures = {"Right Goal": right, "Wrong Goal": wrong}
    view, reward = _view(settings, look, state, ~(ended | late)), STEP_REWARD + right - 1.0 * wrong
    return state, team_step(view, reward=reward, terminated=ended, truncated=late, figures=figures)


def _view(settings: GridWorldSettings, look: Any, state: GridWorldState, alive: Array) -> TeamView:
    mask = _allowed(settings, state.position) | ~alive
    goal = jax.nn.one_hot(state.wanted, KINDS, dtype=jnp.float32)
    return TeamView(obs=(look(settings, state)[None], goal[None]), action_mask=mask[None], alive=alive[None])


def _layers(settings: GridWorldSettings, state: GridWorldState) -> Array:
    """Return where agent, plus signs and crosses are, bool [3, size, size], row 0 at the top."""
    cells = jnp.concatenate([state.position[None], state.sign.reshape(-1, 2)])
    there = jnp.concatenate([jnp.ones(1, bool), state.there.reshape(-1)])
    axis = np.arange(settings.size)
    occupied = (cells[:, 1, None, None] == axis[::-1, None]) & (cells[:, 0, None, None] == axis) & there[:, None, None]
    return jnp.stack([occupied[0], *jnp.any(occupied[1:].reshape(KINDS, -1, *occupied.shape[1:]), axis=1)])


def _photographed(settings: GridWorldSettings, state: GridWorldState) -> Array:
    """Render the camera's image, uint8 [3, size · p, size · p]: each cell shows its content, the agent above signs."""
    agent, plus, ex = _layers(settings, state)
    code = jnp.where(agent, 1, jnp.where(plus, 2, jnp.where(ex, 3, 0)))  # [size, size]
    tiles = jnp.asarray(_tiles(settings.cell_pixels))[code]  # [size, size, 3, p, p]
    side = settings.size * settings.cell_pixels
    return tiles.transpose(2, 0, 3, 1, 4).reshape(3, side, side)


def _tiles(pixels: int) -> np.ndarray:
    """Make the tiles of empty ground, the agent, a plus sign and a cross, uint8 [4, 3, p, p]."""
    axis = np.abs(2.0 * np.arange(pixels) + 1.0 - pixels) / pixels  # distance from the middle, 0 to 1
    across, along = axis[None, :], axis[:, None]
    covered = np.array([
        np.zeros((pixels, pixels), bool),
        np.ones((pixels, pixels), bool),
        (across < 0.4) | (along < 0.4),
        np.abs(across - along) < 0.4,
    ])  # fmt: skip
    colour, ground = _COLOURS[:, :, None, None], _COLOURS[0][None, :, None, None]
    return np.where(covered[:, None], colour, ground).astype(np.uint8)


def _draw(settings: GridWorldSettings, state: Any) -> Scene:
    """Draw the cells and their content; a bar above says which kind is wanted. `state` has numpy arrays."""
    size, colours = float(settings.size), ["#{:02x}{:02x}{:02x}".format(*colour) for colour in _COLOURS.tolist()]
    shapes: list[Shape] = [Box((size / 2, size + 0.3), (size, 0.5), colours[2 + int(state.wanted)])]
    shapes += [
        Box((x + 0.5, y + 0.5), (0.94, 0.94), colours[0]) for x in range(settings.size) for y in range(settings.size)
    ]
    for kind, (reach, turned) in enumerate(((0.34, 0.0), (0.26, 1.0))):
        for (x, y), there in zip(state.sign[kind].tolist(), state.there[kind].tolist(), strict=True):
            if there:
                for way, bend in ((reach, reach * turned), (reach * turned, -reach)):
                    start, end = (x + 0.5 - way, y + 0.5 - bend), (x + 0.5 + way, y + 0.5 + bend)
                    shapes.append(Line(start, end, 0.16, colours[2 + kind]))
    x, y = state.position.tolist()
    shapes.append(Box((x + 0.5, y + 0.5), (0.6, 0.6), colours[1]))
    return Scene((size, size + 0.6), tuple(shapes))
