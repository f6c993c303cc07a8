"""Shorter pages for a buffer that holds something already: what is needed when few rows become many.

One agent that is alone for a while has one long page. If five hundred more arrive, a page of that length for each would
take hundreds of times the room that is needed. Happens seldom, so it is done by hand with numpy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.rollout.cells import pack, unpack
from jaxrl.rollout.pages import MESSAGE, Pages
from jaxrl.rollout.trajectory import NO_DECISION, TrajectoryState


class Piece(NamedTuple):
    """States [begin, end) of an old page."""

    page: int
    begin: int
    end: int
    goes_on: bool = False  # its last state begins the next piece


def repage(state: TrajectoryState, pages: Pages, *, capacity: int) -> tuple[TrajectoryState, Pages]:
    """The same contents in pages of `capacity` (T', at least 4) states, for the same rows and members.

    A page that is too long is cut: the state at a cut ends one piece, as what its members bootstrap from, and begins
    the next. A decision that is still open moves to the beginning of its row's last piece, as it does after `take`.
    """
    finished, last = _cut(pages, capacity)
    rows, room = len(pages.page), len(finished) + len(pages.page)
    old = jax.tree.map(np.asarray, state.stored)
    new = jax.tree.map(lambda x: np.zeros((capacity, room, *x.shape[2:]), x.dtype), old)

    def fill(number: int, piece: Piece, content: Any) -> None:
        for into, x in zip(jax.tree.leaves(new), jax.tree.leaves(content), strict=True):
            into[: piece.end - piece.begin, number] = x

    for number, piece in enumerate(finished):
        fill(number, piece, _closed(state, old, piece))
    clock = np.array(state.clock)
    for row, piece in enumerate(last):
        content, clock[1, row] = _reopened(state, old, piece, clock[1, row])
        fill(len(finished) + row, piece, content)
    placed = Pages(capacity, rows)
    placed.page, placed.given = np.arange(len(finished), room), room
    placed.size = np.array([piece.end - piece.begin for piece in last], np.int64)
    clock[0], clock[3] = placed.size[:, None], placed.page[:, None]
    stored = jax.tree.map(jnp.asarray, new)
    return TrajectoryState(stored=stored, carry=state.carry, clock=jnp.asarray(clock), layout=state.layout), placed


def _cut(pages: Pages, capacity: int) -> tuple[list[Piece], list[Piece]]:
    """Pieces that are complete, and the one that each row goes on in."""
    sizes = np.full(pages.given, pages.capacity)
    sizes[pages.page] = pages.size
    finished, last = [], [Piece(0, 0, 0)] * len(pages.page)
    row_of = {page: row for row, page in enumerate(pages.page.tolist())}
    for page, size in enumerate(sizes.tolist()):
        begin, room = 0, capacity - MESSAGE if page in row_of else capacity
        while size - begin > room:
            end = min(begin + capacity, size)
            finished.append(Piece(page, begin, end, goes_on=True))
            begin = end - 1
        if page in row_of:
            last[row_of[page]] = Piece(page, begin, size)
        elif size - begin > 1:
            finished.append(Piece(page, begin, size))
    return finished, last


def _closed(state: TrajectoryState, old: Any, piece: Piece) -> Any:
    """The piece [t, A, ...]; where it goes on elsewhere, nobody acts in its last state."""
    content = jax.tree.map(lambda x: np.array(x[piece.begin : piece.end, piece.page]), old)
    if not piece.goes_on:
        return content
    cells = unpack(content, state.layout)
    acted, outcome = np.array(cells.acted), np.array(cells.outcome)
    acted[-1], outcome[-1] = False, 0.0
    return pack(cells._replace(acted=acted, outcome=outcome), state.layout)


def _reopened(state: TrajectoryState, old: Any, piece: Piece, open_at: np.ndarray) -> tuple[Any, np.ndarray]:
    """The last piece [t, A, ...] of a row with all open decisions in it, and where they are, [A]."""
    content = jax.tree.map(lambda x: np.array(x[piece.begin : piece.end, piece.page]), old)
    earlier = (open_at != NO_DECISION) & (open_at < piece.begin)
    for member in np.flatnonzero(earlier):
        made = unpack(jax.tree.map(lambda x, m=member: x[open_at[m], piece.page, m], old), state.layout)
        here = unpack(jax.tree.map(lambda x, m=member: x[0, m], content), state.layout)
        moved = pack(made._replace(obs=here.obs, present=here.present), state.layout)
        for into, x in zip(jax.tree.leaves(content), jax.tree.leaves(moved), strict=True):
            into[0, member] = x
    inside = np.where(open_at == NO_DECISION, NO_DECISION, np.maximum(open_at - piece.begin, 0))
    return content, inside
