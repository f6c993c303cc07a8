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

from jaxrl.envs.sensors import IMAGE_PROPERTIES
from jaxrl.jax_envs.drawing import Box, Scene, Shape
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView, team_step
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec

PIECE_REWARD = 0.01
_COLOURS = ("#cc3430", "#40a048", "#2e5eaa", "#e0b030", "#8848a8", "#e07828", "#30a0a8", "#a0a0a0", "#604830")
EMPTY = -1
"""Colour of a cell without a piece."""
MOST_CASCADES = 100
"""Most cascades after one move; pieces that still match are cleared with the next move."""
MOST_DRAWS = 100
"""Most boards that are drawn until one allows a swap."""


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
    """State of one area between two moves: nothing matches on the board."""

    board: Board
    allowed: Array  # bool [M], swaps
    earned: Array  # float32 [], in this episode
    clock: Array  # int32 [], decisions made


def make_match3(settings: Match3Settings = DEFAULTS) -> JaxEnv:
    """Make Match-3 seen as a grid.

    Raises:
        ValueError: a board of less than 3 x 4 pieces, less than 3 colours or more than 9, no move.
    """
    shape = (settings.colours + settings.specials, settings.rows, settings.columns)
    sensor = ObservationSpec("Match3 Sensor", shape, IMAGE_PROPERTIES, dtype="uint8")
    return _make("Match3VisualObs", settings, sensor)


def make_match3_vector(settings: Match3Settings = DEFAULTS) -> JaxEnv:
    """Make Match-3 seen as a vector. Raises ValueError as `make_match3`."""
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
    view = _view(settings, sensor, state, ~late)
    return team_step(view, reward=reward, truncated=late, figures={"Pieces Per Move": pieces})


def _view(settings: Match3Settings, sensor: ObservationSpec, state: Match3State, alive: Array) -> TeamView:
    colour, special = state.board
    channels = [colour == i for i in range(settings.colours)] + [special == 1 + i for i in range(settings.specials)]
    grid = jnp.stack(channels)
    shown = jnp.where(grid, 255, 0).astype(jnp.uint8) if sensor.dtype == "uint8" else grid.reshape(-1) * jnp.float32(1)
    return TeamView(obs=(shown[None],), action_mask=(state.allowed | ~alive)[None], alive=alive[None])


def _draw(settings: Match3Settings, state: Any) -> Scene:
    """Draw pieces by colour; special ones bear what they count. `state` has numpy arrays."""
    shapes: list[Shape] = []
    for (row, column), colour in np.ndenumerate(state.board.colour):
        kind = int(state.board.special[row, column])
        shapes.append(
            Box((column + 0.5, row + 0.5), (0.86, 0.86), _COLOURS[colour], label=str(1 + kind) if kind else "")
        )
    return Scene((float(settings.columns), float(settings.rows)), tuple(shapes), background="#2f3136")


class Board(NamedTuple):
    """Board of R x C pieces."""

    colour: Array  # int32 [R, C], 0 .. colours - 1, or EMPTY
    special: Array  # int32 [R, C]: a piece counts 1 + special; 0 where the cell is empty


class Supply(NamedTuple):
    """Distribution of new pieces; static."""

    colours: int
    specials: int  # kinds of special pieces, 1 .. specials, each as likely as the others
    chance: float  # that a piece is special


def swaps(rows: int, columns: int) -> np.ndarray:
    """Return for each swap the piece that each cell holds afterwards, int32 [M, R · C], cells counted row by row.

    First the swaps of a cell with its right neighbour, row by row, then those with the cell above.
    """
    cells = np.arange(rows * columns).reshape(rows, columns)
    pairs = [
        *zip(cells[:, :-1].flat, cells[:, 1:].flat, strict=True),
        *zip(cells[:-1].flat, cells[1:].flat, strict=True),
    ]
    permutation = np.tile(cells.reshape(-1), (len(pairs), 1))
    for swap, (first, second) in enumerate(pairs):
        permutation[swap, [first, second]] = second, first
    return permutation.astype(np.int32)


def matched(colour: Array) -> Array:
    """Return the pieces in a row or column of at least three of one colour, bool [..., R, C]."""
    return _in_threes(colour) | _in_threes(colour.swapaxes(-1, -2)).swapaxes(-1, -2)


def _in_threes(colour: Array) -> Array:
    """Return the pieces that lie in three of one colour along the last axis, bool [..., R, C]."""
    first, second, third = colour[..., :-2], colour[..., 1:-1], colour[..., 2:]
    three = (first == second) & (second == third) & (third != EMPTY)
    before = [(0, 0)] * (colour.ndim - 1)
    return jnp.stack([jnp.pad(three, [*before, (i, 2 - i)]) for i in range(3)]).any(0)


def allowed(colour: Array) -> Array:
    """Return the swaps after which something matches, bool [M]. On `colour` itself nothing matches."""
    swapped_colour = colour.reshape(-1)[swaps(*colour.shape)].reshape(-1, *colour.shape)
    return matched(swapped_colour).any((-1, -2))


def swap(board: Board, number: Array) -> Board:
    """Return the board after the swap of that number in `swaps`."""
    permutation = jnp.asarray(swaps(*board.colour.shape))[number]
    return Board(*(x.reshape(-1)[permutation].reshape(x.shape) for x in board))


def fall(board: Board) -> Board:
    """Move pieces down over empty cells, in their order."""
    is_piece = board.colour != EMPTY
    target = jnp.cumsum(is_piece, axis=0) - 1
    here = (target == np.arange(len(is_piece))[:, None, None]) & is_piece  # [R, R, C]: to row r from row s
    return Board(
        colour=jnp.where(here, board.colour - EMPTY, 0).sum(1) + EMPTY, special=jnp.where(here, board.special, 0).sum(1)
    )


def fill(key: Array, board: Board, supply: Supply) -> Board:
    """Put new pieces into empty cells. `key` is consumed."""
    colour_key, special_key = jax.random.split(key)
    empty, shape = board.colour == EMPTY, board.colour.shape
    colour = jax.random.randint(colour_key, shape, 0, supply.colours, jnp.int32)
    luck = jax.random.uniform(special_key, shape) / max(supply.chance, 1e-9)  # below 1 with that chance
    special = jnp.where(luck < 1.0, 1 + jnp.floor(luck * supply.specials), 0).astype(jnp.int32)
    return Board(jnp.where(empty, colour, board.colour), jnp.where(empty, special, board.special))


def settle(key: Array, board: Board, supply: Supply) -> tuple[Board, Array]:
    """Clear what matches, let fall, fill, until nothing matches. `key` is consumed.

    Returns:
      The board, and the sum of the cleared pieces' counts, int32 [].
    """

    def goes_on(carry: tuple[Board, Array, Array]) -> Array:
        board, _, count = carry
        return matched(board.colour).any() & (count < MOST_CASCADES)

    def cascade(carry: tuple[Board, Array, Array]) -> tuple[Board, Array, Array]:
        board, points, count = carry
        cleared = matched(board.colour)
        points += jnp.where(cleared, 1 + board.special, 0).sum()
        left = Board(jnp.where(cleared, EMPTY, board.colour), jnp.where(cleared, 0, board.special))
        return fill(jax.random.fold_in(key, count), fall(left), supply), points, count + 1

    board, points, _ = jax.lax.while_loop(goes_on, cascade, (board, jnp.int32(0), jnp.int32(0)))
    return board, points


def playable(key: Array, board: Board, supply: Supply) -> tuple[Board, Array]:
    """Return the board, or a new one if it allows no swap, and its allowed swaps, bool [M]. `key` is consumed.

    Where `MOST_DRAWS` new boards in a row allow none, all swaps are told to be allowed.
    """

    def goes_on(carry: tuple[Board, Array, Array]) -> Array:
        _, mask, count = carry
        return ~mask.any() & (count < MOST_DRAWS)

    def draw(carry: tuple[Board, Array, Array]) -> tuple[Board, Array, Array]:
        board, _, count = carry
        fill_key, settle_key = jax.random.split(jax.random.fold_in(key, count))
        empty = Board(jnp.full_like(board.colour, EMPTY), jnp.zeros_like(board.special))
        board, _ = settle(settle_key, fill(fill_key, empty, supply), supply)
        return board, allowed(board.colour), count + 1

    board, mask, _ = jax.lax.while_loop(goes_on, draw, (board, allowed(board.colour), jnp.int32(0)))
    return board, mask | ~mask.any()
