"""Match-3: swap neighbours so that three of a colour stand in a line; longer lines and special pieces pay more.

After the example scene "Match 3" of ML-Agents: hundreds of actions of which a mask allows a few, and a board as
observation.

Rules. A board of `rows` x `columns` pieces in `colours` colours; a piece is special with `special_chance`, of kind 1 to
`specials`. A decision swaps two neighbours; only swaps are allowed after which three or more of a colour stand in a row
or column. All pieces in such lines are cleared, a piece of kind k (0: not special) pays (1 + k) · 0.01; those above
fall, new ones fill the top, and what matches then is cleared and pays as well, until nothing matches. A board that
allows no swap is drawn anew. A swap that is not allowed does nothing. After `moves` decisions the episode is truncated,
since nobody sees how many are left.

Random allowed swaps earn 34.2 in an episode, which `special_chance` was chosen for, the swap that clears most at once
36.9. ML-Agents documents 34.2 and 37.0, and 39.5 (visual) and 38.5 (vector) for its trained agents.

The action is one branch: the swaps of a piece with its right neighbour, row by row from below, then those with the
piece above it.

Observation: uint8 [colours + specials, rows, columns], 255 in the channel of a piece's colour and, where it is special,
in that of its kind; row 0 is the lowest. `make_match3_vector` shows the same numbers as a float32 vector of 0 and 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.drawing import Box, Scene, Shape
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView
from jaxrl.jax_envs.match3_board import EMPTY, Board, Supply, playable, settle, swap
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec

PIECE_REWARD = 0.01
_EVEN = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE
_COLOURS = ("#cc3430", "#40a048", "#2e5eaa", "#e0b030", "#8848a8", "#e07828", "#30a0a8", "#a0a0a0", "#604830")


class Match3Settings(NamedTuple):
    """Sizes, fixed when the environment is made."""

    rows: int = 8
    columns: int = 8
    colours: int = 6
    specials: int = 2
    special_chance: float = 0.29
    moves: int = 500  # decisions of an episode


DEFAULTS = Match3Settings()


class Match3State(NamedTuple):
    """One area, between two moves: nothing matches on the board."""

    board: Board
    allowed: Array  # bool [M], swaps
    earned: Array  # float32 [], in this episode
    clock: Array  # int32 [], decisions made


def make_match3(settings: Match3Settings = DEFAULTS) -> JaxEnv:
    """Seen as a grid.

    Raises:
        ValueError: a board of less than 3 x 4 pieces, less than 3 colours or more than 9, no move.
    """
    shape = (settings.colours + settings.specials, settings.rows, settings.columns)
    sensor = ObservationSpec("Match3 Sensor", shape, (DimensionProperty.NONE, _EVEN, _EVEN), dtype="uint8")
    return _make("Match3VisualObs", settings, sensor)


def make_match3_vector(settings: Match3Settings = DEFAULTS) -> JaxEnv:
    """Seen as a vector. Raises ValueError as `make_match3`."""
    size = (settings.colours + settings.specials) * settings.rows * settings.columns
    return _make("Match3VectorObs", settings, ObservationSpec("Match3 Sensor", (size,), (DimensionProperty.NONE,)))


def _make(name: str, settings: Match3Settings, sensor: ObservationSpec) -> JaxEnv:
    rows, columns = settings.rows, settings.columns
    if min(rows, columns) < 3 or max(rows, columns) < 4:
        raise ValueError(f"rows = {rows}, columns = {columns}: swaps that match need 3 x 4 pieces or more")
    if not 3 <= settings.colours <= len(_COLOURS) or settings.moves < 1:
        raise ValueError(
            f"colours = {settings.colours}, moves = {settings.moves}: must be 3 to {len(_COLOURS)}, and at least 1"
        )
    supply = Supply(settings.colours, settings.specials, settings.special_chance if settings.specials else 0.0)

    def reset(key: Array, parameters: EnvParams | None = None) -> tuple[Match3State, TeamView]:
        none = Board(jnp.full((rows, columns), EMPTY, jnp.int32), jnp.zeros((rows, columns), jnp.int32))
        board, mask = playable(key, none, supply)
        state = Match3State(board, mask, jnp.float32(0.0), jnp.int32(0))
        return state, _view(settings, sensor, state, jnp.bool_(True))

    def step(key: Array, state: Match3State, actions: TeamActions) -> tuple[Match3State, TeamStep]:
        settle_key, draw_key = jax.random.split(key)
        chosen = actions.discrete[0, 0]
        moved = jax.tree.map(
            lambda new, old: jnp.where(state.allowed[chosen], new, old), swap(state.board, chosen), state.board
        )
        board, points = settle(settle_key, moved, supply)
        board, mask = playable(draw_key, board, supply)
        reward = PIECE_REWARD * points.astype(jnp.float32)
        state = Match3State(board, mask, state.earned + reward, state.clock + 1)
        return state, _told(settings, sensor, state, reward)

    return JaxEnv(
        name=name,
        spec=BehaviorSpec((sensor,), ActionSpec(0, (rows * (columns - 1) + (rows - 1) * columns,))),
        members=1,
        parameters={},
        reset=reset,
        step=step,
        truncates=True,
        draw=lambda state: _draw(settings, state),
    )


def _told(settings: Match3Settings, sensor: ObservationSpec, state: Match3State, reward: Array) -> TeamStep:
    late = state.clock >= settings.moves
    pieces = state.earned / (PIECE_REWARD * settings.moves)
    return TeamStep(
        view=_view(settings, sensor, state, ~late),
        reward=reward[None],
        group_reward=jnp.zeros(1, jnp.float32),
        terminated=jnp.zeros(1, bool),
        truncated=late[None],
        over=late,
        stats={"Environment/Pieces Per Move": pieces},
    )


def _view(settings: Match3Settings, sensor: ObservationSpec, state: Match3State, alive: Array) -> TeamView:
    colour, special = state.board
    channels = [colour == i for i in range(settings.colours)] + [special == 1 + i for i in range(settings.specials)]
    grid = jnp.stack(channels)
    shown = jnp.where(grid, 255, 0).astype(jnp.uint8) if sensor.dtype == "uint8" else grid.reshape(-1) * jnp.float32(1)
    return TeamView(obs=(shown[None],), action_mask=(state.allowed | ~alive)[None], alive=alive[None])


def _draw(settings: Match3Settings, state: Any) -> Scene:
    """Pieces by colour; special ones bear what they count. `state`: numpy arrays."""
    shapes: list[Shape] = []
    for (row, column), colour in np.ndenumerate(state.board.colour):
        kind = int(state.board.special[row, column])
        shapes.append(
            Box((column + 0.5, row + 0.5), (0.86, 0.86), _COLOURS[colour], label=str(1 + kind) if kind else "")
        )
    return Scene((float(settings.columns), float(settings.rows)), tuple(shapes), background="#2f3136")
