"""More or shorter pages for a buffer with contents, for example when few rows become many.

One agent that is alone for a while has one long page. If five hundred more arrive, a page of that length for each would
take hundreds of times the necessary room. This is rare and done with NumPy: JAX would compile a small program for each
array and shape, and keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.rollout.buffer.cells import pack, unpack
from jaxrl.rollout.buffer.pages import MESSAGE, Pages
from jaxrl.rollout.buffer.trajectory_state import CLOCK, NO_DECISION, TrajectoryState


class Piece(NamedTuple):
    """States [begin, end) of an old page."""

    begin: int
    end: int
    goes_on: bool = False  # its last state begins the next piece


def repage(
    state: TrajectoryState, pages: Pages, *, capacity: int, beside: Sequence[TrajectoryState] = ()
) -> tuple[TrajectoryState, Pages]:
    """Move the contents to pages of `capacity` (T', at least 4) states, for the same rows and members.

    `beside`: the buffers of other kinds of members of the same rows, which are cut alike.

    A page that is too long is cut: the state at a cut ends one piece, whose members bootstrap from it, and begins the
    next. A member's last decision before the cut moves to that state if the member does not decide there, as pending
    decisions do after `take`.

    Raises AssertionError for fewer than 4 states, and for `pages` of another buffer.
    """
    chex.assert_scalar_non_negative(capacity - 4)
    chex.assert_axis_dimension(state.clock, 1, len(pages.page))
    chex.assert_axis_dimension(state.stored.columns, 0, pages.capacity)
    old = jax.tree.map(np.asarray, state.stored)
    clock = np.array(state.clock)
    mates = np.zeros(old.columns.shape[:2], bool)  # a member of another kind decided in this state
    for other in beside:
        mates |= np.asarray(other.cells.acted.any(-1))
    sizes = np.full(pages.given, pages.capacity)
    sizes[pages.page] = pages.size
    row_of = {page: row for row, page in enumerate(pages.page.tolist())}
    finished, written, last = [], [], [None] * len(row_of)
    for page, size in enumerate(sizes.tolist()):
        row = row_of.get(page)
        pieces = _cut(size, capacity, current=row is not None)
        open_at = np.full(clock.shape[2], NO_DECISION) if row is None else clock[1, row]
        held = jax.tree.map(lambda x, p=page, n=size: np.array(x[:n, p]), old)
        contents = _contents(state, held, pieces, open_at, mates[:size, page])
        if row is not None:
            last[row] = contents.pop()
            clock[0, row] = pieces[-1].end - pieces[-1].begin
            clock[1, row] = np.where(open_at == NO_DECISION, NO_DECISION, open_at - pieces[-1].begin)
        finished += contents
        written += [pages.rows[page]] * len(contents)
    placed = Pages(capacity, len(last))
    placed.page, placed.given = len(finished) + np.arange(len(last)), len(finished) + len(last)
    placed.rows = np.append(np.array(written, np.int64), np.arange(len(last)))
    placed.size, clock[3] = clock[0, :, 0].astype(np.int64), placed.page[:, None]
    new = jax.tree.map(lambda x: np.zeros((capacity, placed.given, *x.shape[2:]), x.dtype), old)
    for number, content in enumerate([*finished, *last]):
        for into, x in zip(jax.tree.leaves(new), jax.tree.leaves(content), strict=True):
            into[: len(x), number] = x
    stored = jax.tree.map(jnp.asarray, new)
    return TrajectoryState(stored=stored, carry=state.carry, clock=jnp.asarray(clock), layout=state.layout), placed


def _cut(size: int, capacity: int, *, current: bool) -> list[Piece]:
    """Cut a page with `size` states into pieces; the last one of a row's current page has room for a message."""
    pieces, begin = [], 0
    while size - begin > (capacity - MESSAGE if current else capacity):
        pieces.append(Piece(begin, min(begin + capacity, size), goes_on=True))
        begin = pieces[-1].end - 1
    return [*pieces, Piece(begin, size)]


def _contents(
    state: TrajectoryState, page: Any, pieces: list[Piece], open_at: np.ndarray, mates: np.ndarray
) -> list[Any]:
    """Return each piece [t, A, ...] of a page [n, A, ...]; `open_at` [A] is updated for decisions that move.

    mates: bool [n], a member of another kind decided.
    """
    cells = unpack(page, state.layout)
    acted, outcome, present = np.array(cells.acted), np.array(cells.outcome), np.asarray(cells.present)
    contents = []
    for piece in pieces:
        if piece.goes_on and (acted[piece.end - 1].any() or mates[piece.end - 1]):
            _move_on(page, acted, outcome, present, piece.end - 1, open_at)
        part = unpack(jax.tree.map(lambda x, p=piece: x[p.begin : p.end], page), state.layout)
        chose, paid = acted[piece.begin : piece.end].copy(), outcome[piece.begin : piece.end].copy()
        if piece.goes_on:
            chose[-1], paid[-1] = False, 0.0
        contents.append(jax.tree.map(np.asarray, pack(part._replace(acted=chose, outcome=paid), state.layout)))
    return contents


def _move_on(
    page: Any, acted: np.ndarray, outcome: np.ndarray, present: np.ndarray, at: int, open_at: np.ndarray
) -> None:
    """Move the decisions of members that wait in state `at`, in which a mate decided, to that state. All in place.

    In its old state a decision stays without outcome, and is not trained on: a state in which nobody acted would be
    taken for a final one.
    """
    for member in np.flatnonzero(present[at] & ~acted[at]):
        decisions = np.flatnonzero(acted[:at, member])
        if not len(decisions) or not present[decisions[-1] : at, member].all():
            continue  # it never decided here, or the decision is of an earlier agent that has ended
        for x in jax.tree.leaves(page):
            x[at, member] = x[decisions[-1], member]
        acted[at, member] = True
        outcome[at, member], outcome[decisions[-1], member] = outcome[decisions[-1], member].copy(), 0.0
        if open_at[member] == decisions[-1]:
            open_at[member] = at


def resize(state: TrajectoryState, *, capacity: int, pages: int, members: int, fresh: Any = ()) -> TrajectoryState:
    """Change the room of a buffer; contents keep their place. No page may hold more than `capacity` states.

    `fresh` are the pages of new rows, one each, not given out before. Raises AssertionError for fewer pages or members
    than before.
    """
    _, old_pages, old_members = state.shape
    chex.assert_scalar_non_negative(pages - old_pages)
    chex.assert_scalar_non_negative(members - old_members)
    fresh = np.asarray(fresh, np.int32)
    chex.assert_rank(fresh, 1)
    old_rows = state.clock.shape[1]
    rows = old_rows + len(fresh)
    clock = _padded(state.clock, CLOCK, rows, members)
    size, open_at, _, page, _ = clock
    size[:], page[:] = size[:, :1], page[:, :1]  # both are repeated for every member
    page[old_rows:] = fresh[:, None]
    open_at[old_rows:] = open_at[:, old_members:] = NO_DECISION
    return TrajectoryState(
        stored=jax.tree.map(lambda x: jnp.asarray(_padded(x, capacity, pages, members)), state.stored),
        carry=jax.tree.map(lambda x: jnp.asarray(_padded(x, rows, members)), state.carry),
        clock=jnp.asarray(clock),
        layout=state.layout,
    )


def _padded(x: jax.Array, *lead: int) -> np.ndarray:
    """Pad or cut the first axes of an array to these lengths: contents keep their place, zeros follow."""
    old = np.asarray(x)[tuple(map(slice, lead))]
    new = np.zeros((*lead, *old.shape[len(lead) :]), old.dtype)
    new[tuple(map(slice, old.shape[: len(lead)]))] = old
    return new
