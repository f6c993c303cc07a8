"""Match-3: matches, falls, swaps, masks and rewards on boards drawn by hand; what random and greedy play earn."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.drawing import Box
from jaxrl.jax_envs.interface import TeamActions, advance_areas, start_areas
from jaxrl.jax_envs.match3 import (
    EMPTY,
    MOST_CASCADES,
    Board,
    Match3Settings,
    Match3State,
    Supply,
    allowed,
    fall,
    fill,
    make_match3,
    make_match3_vector,
    matched,
    playable,
    settle,
    swap,
    swaps,
)
from tests.jax_envs.toy_jax_env import quick_jit

SHAPE = (3, 4)
QUIET = "2323 3202 1101"
"""Nothing matches. The swaps 2, 14 and 15 are allowed."""
CHAIN = "3232 2003 1101"
"""Swap 2 clears three pieces; then 0 0 fall beside a 0."""
SUPPLY = Supply(colours=4, specials=2, chance=0.3)
SMALL = Match3Settings(rows=3, columns=4, colours=4, specials=2, moves=3)
ENV = make_match3(SMALL)
compiled_step, compiled_reset = quick_jit(ENV.step), quick_jit(ENV.reset)


def drawn(text: str) -> np.ndarray:
    """Colours of a board as it is seen, the highest row first; `.` is empty."""
    rows = [[EMPTY if sign == "." else int(sign) for sign in line] for line in text.split()]
    return np.array(rows[::-1], np.int32)


def board(text: str, special: str | None = None) -> Board:
    colour = drawn(text)
    return Board(jnp.asarray(colour), jnp.asarray(drawn(special) if special else np.zeros_like(colour)))


def number(first: tuple[int, int], second: tuple[int, int], shape: tuple[int, int]) -> int:
    """Which swap exchanges two cells (row from below, column)."""
    cells = np.arange(shape[0] * shape[1]).reshape(shape)
    after = swaps(*shape)
    return int(np.flatnonzero((after[:, cells[first]] == cells[second]) & (after[:, cells[second]] == cells[first]))[0])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0123 1230 2301", "0000 0000 0000"),
        ("0001 1230 2301", "1110 0000 0000"),
        ("0123 1111 2301", "0000 1111 0000"),
        ("0123 0230 0301", "1000 1000 1000"),
        ("0001 0230 0301", "1110 1000 1000"),  # both lines of a corner
        ("0010 1101 0010", "0000 0000 0000"),  # two side by side, or around a corner, are no line
        ("...1 ...2 ...3", "0000 0000 0000"),  # empty cells are no colour
    ],
)
def test_matches(text: str, found: str) -> None:
    assert matched(jnp.asarray(drawn(text))).tolist() == (drawn(found) > 0).tolist()


def test_pieces_fall_in_their_order() -> None:
    after = fall(board("01.3 .2.. 1.30", special="10.2 .1.. 0.10".replace(".", "0")))
    assert after.colour.tolist() == drawn("....  01.3 1230").tolist()
    assert after.special.tolist() == drawn("0000  1002 0110").tolist()


def test_swaps_are_counted_by_row_and_exchange_neighbours() -> None:
    """3 rows of 3 pairs side by side, then 2 rows of 4 pairs one above the other."""
    assert swaps(3, 4).shape == (17, 12) and ENV.spec.action.discrete_branches == (17,)
    assert number((0, 0), (0, 1), (3, 4)) == 0 and number((1, 0), (1, 1), (3, 4)) == 3
    assert number((0, 0), (1, 0), (3, 4)) == 9 and number((1, 3), (2, 3), (3, 4)) == 16
    after = swap(board("0123 1230 2301", special="0000 0000 1200"), jnp.int32(0))
    assert after.colour.tolist() == drawn("0123 1230 3201").tolist()
    assert after.special.tolist() == drawn("0000 0000 2100").tolist()
    assert swaps(8, 8).shape == (2 * 7 * 8, 64)


def test_allowed_are_the_swaps_after_which_something_matches() -> None:
    """By hand: 1 to 1 1, the lower 2 up to 2 2, the upper 2 down to 2 2; and by trying all on drawn boards."""
    found = np.flatnonzero(allowed(jnp.asarray(drawn(QUIET))))
    lines = [number((0, 2), (0, 3), SHAPE), number((1, 1), (2, 1), SHAPE), number((1, 2), (2, 2), SHAPE)]
    assert found.tolist() == lines == [2, 14, 15]
    shuffled = quick_jit(jax.vmap(partial(playable, board=board(".... .... .... .... ...."), supply=SUPPLY)))
    boards, masks = shuffled(jax.random.split(jax.random.key(3), 20))
    for colour, mask in zip(np.asarray(boards.colour), np.asarray(masks), strict=True):
        assert not has_line(colour) and (colour != EMPTY).all()
        tried = [has_line(colour.reshape(-1)[after].reshape(colour.shape)) for after in swaps(*colour.shape)]
        assert mask.tolist() == tried


def has_line(colour: np.ndarray) -> bool:
    """Three of a colour side by side, looked for cell by cell."""
    rows, columns = colour.shape
    across = (len({*colour[r, c : c + 3].tolist()}) == 1 for r in range(rows) for c in range(columns - 2))
    along = (len({*colour[r : r + 3, c].tolist()}) == 1 for r in range(rows - 2) for c in range(columns))
    return any(across) or any(along)


def play(text: str, swap_number: int, special: str | None = None, clock: int = 0):
    """200 areas that make one move on the same board, by 200 keys."""
    at = board(text, special)
    state = Match3State(at, allowed(at.colour), jnp.float32(0.0), jnp.int32(clock))
    actions = TeamActions(continuous=jnp.zeros((1, 0)), discrete=jnp.array([[swap_number]], jnp.int32))
    return many(jax.random.split(jax.random.key(0), 200), state, actions)


many = quick_jit(jax.vmap(ENV.step, (0, None, None)))


@pytest.mark.parametrize(
    ("text", "special", "least"),
    [
        (QUIET, "0000 0000 0000", 3),
        (QUIET, "2222 2222 0202", 3 + 2 + 2),  # pieces of kind 2 in columns 1 and 3 of the lowest row
        (CHAIN, "0000 0000 0000", 3 + 3),
        (CHAIN, "0000 0120 0000", 3 + (1 + 1) + (1 + 2) + 1),
    ],
)
def test_rewards_by_hand(text: str, special: str, least: int) -> None:
    """New pieces may match too, so that the least of 200 moves is what the old ones pay."""
    state, step = play(text, 2, special)
    points = np.round(100 * np.asarray(step.reward[:, 0])).astype(int)
    np.testing.assert_allclose(step.reward[:, 0], points / 100, rtol=1e-5)
    assert points.min() == least and (points == least).mean() > 0.2 and points.max() > least
    np.testing.assert_array_equal(state.earned, step.reward[:, 0])
    quiet = np.asarray(state.board.colour)[points == least]
    above = 1 if text == QUIET else 2  # rows that fell
    if text == QUIET:
        assert (quiet[:, : 3 - above, :3] == drawn(text)[above:, :3]).all() and (quiet[:, 0, 3] == 0).all()
    assert not np.asarray(matched(state.board.colour)).any() and (np.asarray(state.board.colour) != EMPTY).all()
    assert step.view.action_mask.any(axis=-1).all() and not step.over.any()


def test_a_swap_that_is_not_allowed_does_nothing() -> None:
    state, step = play(QUIET, 0)
    assert (np.asarray(state.board.colour) == drawn(QUIET)).all() and not step.reward.any()
    assert (np.asarray(state.clock) == 1).all()


def test_the_last_move_truncates() -> None:
    assert not play(QUIET, 2, clock=1)[1].over.any()
    _, step = play(QUIET, 2, clock=2)
    assert step.over.all() and step.truncated.all() and not step.terminated.any() and not step.view.alive.any()
    assert step.view.action_mask.all()
    pieces = np.asarray(step.reward[:, 0]) / (3 * 0.01)  # nothing was earned before
    np.testing.assert_allclose(step.stats["Environment/Pieces Per Move"], pieces, rtol=1e-5)


def test_a_board_without_moves_is_drawn_anew() -> None:
    stuck = board("0123 1230 2301")
    assert not allowed(stuck.colour).any()
    fresh, mask = quick_jit(partial(playable, supply=SUPPLY))(jax.random.key(0), stuck)
    assert mask.any() and (fresh.colour != stuck.colour).any() and not matched(fresh.colour).any()
    kept, _ = quick_jit(partial(playable, supply=SUPPLY))(jax.random.key(0), board(QUIET))
    assert kept.colour.tolist() == drawn(QUIET).tolist()


def test_what_can_never_settle_ends() -> None:
    """One colour alone matches for ever: the waits are bounded, and then every swap is said to be allowed."""
    one = Supply(colours=1, specials=0, chance=0.0)
    _, points = quick_jit(partial(settle, supply=one))(jax.random.key(0), board("0000 0000 0000"))
    assert points == MOST_CASCADES * 12
    tiny = jnp.zeros((2, 2), jnp.int32)  # nothing can match
    _, mask = quick_jit(partial(playable, supply=one))(jax.random.key(0), Board(tiny, tiny))
    assert mask.tolist() == [True] * 4


def test_new_pieces_are_drawn_by_chance() -> None:
    """4,000 pieces: a quarter of each colour, 15 % of each kind of special ones; full cells stay."""
    empty = Board(jnp.full((40, 100), EMPTY), jnp.zeros((40, 100), jnp.int32))
    full = fill(jax.random.key(1), empty, SUPPLY)
    colours, kinds = np.bincount(np.ravel(full.colour)), np.bincount(np.ravel(full.special))
    assert colours == pytest.approx([1000] * 4, abs=110)  # four standard deviations
    assert kinds == pytest.approx([2800, 600, 600], abs=116)
    same = fill(jax.random.key(2), full, SUPPLY)
    assert (same.colour == full.colour).all() and (same.special == full.special).all()


def test_observations_by_hand() -> None:
    at = board(QUIET, special="0000 0000 1002")
    state = Match3State(at, allowed(at.colour), jnp.float32(0.0), jnp.int32(0))
    actions = TeamActions(continuous=jnp.zeros((1, 0)), discrete=jnp.array([[0]], jnp.int32))  # not allowed
    _, step = compiled_step(jax.random.key(0), state, actions)
    grid = np.asarray(step.view.obs[0][0])
    assert grid.shape == (6, 3, 4) and grid.dtype == np.uint8 and {*np.unique(grid)} == {0, 255}
    assert [np.argwhere(channel).tolist() for channel in grid[[0, 4, 5]]] == [[[0, 2], [1, 2]], [[0, 0]], [[0, 3]]]
    assert (grid[:4] > 0).sum(axis=0).tolist() == [[1] * 4] * 3
    assert np.flatnonzero(step.view.action_mask[0]).tolist() == [2, 14, 15]
    _, step = quick_jit(make_match3_vector(SMALL).step)(jax.random.key(0), state, actions)
    assert step.view.obs[0].dtype == np.float32
    np.testing.assert_array_equal(step.view.obs[0][0], grid.reshape(-1) / 255)


def test_the_same_key_repeats_an_episode_and_starts_pay_nothing() -> None:
    first, view = compiled_reset(jax.random.key(4), {})
    again, _ = compiled_reset(jax.random.key(4), {})
    other, _ = compiled_reset(jax.random.key(5), {})
    assert (first.board.colour == again.board.colour).all() and (first.board.colour != other.board.colour).any()
    assert first.earned == 0 and view.action_mask[0].tolist() == first.allowed.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("greedy", "expected"), [(False, 34.2), (True, 36.9)])
def test_what_random_and_greedy_play_earn(greedy: bool, expected: float) -> None:
    """64 episodes of the usual board; the standard error of their mean is 0.16."""
    env, areas = ENVIRONMENTS["match3_vector"](), 64

    def worth(at: Board) -> jax.Array:
        after = swaps(*at.colour.shape)
        colour, special = (x.reshape(-1)[after].reshape(-1, *x.shape) for x in at)
        return jnp.where(matched(colour), 1 + special, 0).sum((-1, -2))

    def move(carry, key):
        areas_now, view = carry
        luck = jax.random.uniform(key, view.action_mask[:, 0].shape)
        score = jnp.where(view.action_mask[:, 0], luck + greedy * jax.vmap(worth)(areas_now.state.board), -1.0)
        actions = TeamActions(jnp.zeros((areas, 1, 0)), jnp.argmax(score, axis=1).astype(jnp.int32)[:, None, None])
        areas_now, played = advance_areas(env, areas_now, actions, {})
        return (areas_now, played.view), played.step.reward[:, 0]

    start = start_areas(env, jax.random.key(0), areas, {})
    rewards = jax.jit(lambda start, keys: jax.lax.scan(move, start, keys)[1])(
        start, jax.random.split(jax.random.key(1), 500)
    )
    assert float(rewards.sum(axis=0).mean()) == pytest.approx(expected, abs=0.6)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"rows": 2}, "rows = 2, columns = 8"),
        ({"rows": 3, "columns": 3}, "rows = 3, columns = 3"),
        ({"colours": 2}, "colours = 2"),
        ({"colours": 10}, "colours = 10"),
        ({"moves": 0}, "moves = 0"),
    ],
)
def test_impossible_settings_are_refused_by_name(bad, text) -> None:
    with pytest.raises(ValueError, match=text):
        make_match3(Match3Settings(**bad))


def test_the_film_shows_pieces_and_what_special_ones_count() -> None:
    at = board(QUIET, special="0000 0100 0002")
    assert ENV.draw is not None
    scene = ENV.draw(jax.tree.map(np.asarray, Match3State(at, allowed(at.colour), jnp.float32(0), jnp.int32(0))))
    boxes = [shape for shape in scene.shapes if isinstance(shape, Box)]
    assert len(boxes) == 12 and scene.size == (4.0, 3.0)
    assert {box.label: box.centre for box in boxes if box.label} == {"2": (1.5, 1.5), "3": (3.5, 0.5)}
    assert len({box.colour for box in boxes}) == 4
