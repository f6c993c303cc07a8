"""The board of Match-3: what matches, falls and may be swapped. Pure functions of arrays [R, C], row 0 the lowest."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

EMPTY = -1
"""Colour of a cell without a piece."""
MOST_CASCADES = 100
"""Times that pieces match one after the other without a move; what matches then is cleared with the next move."""
MOST_DRAWS = 100
"""Boards that are drawn until one allows a swap."""


class Board(NamedTuple):
    """R x C pieces."""

    colour: Array  # int32 [R, C], 0 .. colours - 1, or EMPTY
    special: Array  # int32 [R, C]: a piece counts 1 + special; 0 where the cell is empty


class Supply(NamedTuple):
    """What new pieces are; static."""

    colours: int
    specials: int  # kinds of special pieces, 1 .. specials, each as likely as the others
    chance: float  # that a piece is special


def swaps(rows: int, columns: int) -> np.ndarray:
    """int32 [M, R · C]: for each swap the piece that each cell holds afterwards, cells counted row by row.

    First the swaps of a cell with its right neighbour, row by row, then those with the cell above.
    """
    cells = np.arange(rows * columns).reshape(rows, columns)
    pairs = [
        *zip(cells[:, :-1].flat, cells[:, 1:].flat, strict=True),
        *zip(cells[:-1].flat, cells[1:].flat, strict=True),
    ]
    after = np.tile(cells.reshape(-1), (len(pairs), 1))
    for swap, (first, second) in enumerate(pairs):
        after[swap, [first, second]] = second, first
    return after.astype(np.int32)


def matched(colour: Array) -> Array:
    """bool [..., R, C]: pieces in a row or column of at least three of one colour."""
    return _in_threes(colour) | _in_threes(colour.swapaxes(-1, -2)).swapaxes(-1, -2)


def _in_threes(colour: Array) -> Array:
    """Along the last axis."""
    first, second, third = colour[..., :-2], colour[..., 1:-1], colour[..., 2:]
    three = (first == second) & (second == third) & (third != EMPTY)
    before = [(0, 0)] * (colour.ndim - 1)
    return jnp.stack([jnp.pad(three, [*before, (i, 2 - i)]) for i in range(3)]).any(0)


def allowed(colour: Array) -> Array:
    """bool [M]: swaps after which something matches, of a board on which nothing does."""
    after = colour.reshape(-1)[swaps(*colour.shape)].reshape(-1, *colour.shape)
    return matched(after).any((-1, -2))


def swap(board: Board, number: Array) -> Board:
    """The board after one of `swaps`."""
    after = jnp.asarray(swaps(*board.colour.shape))[number]
    return Board(*(x.reshape(-1)[after].reshape(x.shape) for x in board))


def fall(board: Board) -> Board:
    """Pieces move down over empty cells, in their order."""
    kept = board.colour != EMPTY
    target = jnp.cumsum(kept, axis=0) - 1
    here = (target == np.arange(len(kept))[:, None, None]) & kept  # [R, R, C]: to row r from row s
    return Board(
        colour=jnp.where(here, board.colour - EMPTY, 0).sum(1) + EMPTY, special=jnp.where(here, board.special, 0).sum(1)
    )


def fill(key: Array, board: Board, supply: Supply) -> Board:
    """New pieces in empty cells. `key` is consumed."""
    colour_key, special_key = jax.random.split(key)
    empty, shape = board.colour == EMPTY, board.colour.shape
    colour = jax.random.randint(colour_key, shape, 0, supply.colours, jnp.int32)
    luck = jax.random.uniform(special_key, shape) / max(supply.chance, 1e-9)  # below 1 with that chance
    special = jnp.where(luck < 1.0, 1 + jnp.floor(luck * supply.specials), 0).astype(jnp.int32)
    return Board(jnp.where(empty, colour, board.colour), jnp.where(empty, special, board.special))


def settle(key: Array, board: Board, supply: Supply) -> tuple[Board, Array]:
    """Clear what matches, let fall, fill, until nothing matches. `key` is consumed.

    Returns:
      The board, and what the cleared pieces count together, int32 [].
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
    """The board if it allows a swap, else a new one that does; and which it allows, bool [M]. `key` is consumed.

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
