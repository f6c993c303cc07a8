"""Rating, pool, schedule and game without a loop; against the original they are compared in tests/parity (k_elo)."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from jaxrl.settings import SelfPlaySettings
from jaxrl.training.self_play import rating
from jaxrl.training.self_play.game import QUEUE, Game, Played, Rotation, Schedule, Sent
from jaxrl.training.self_play.pool import LATEST, Pool

SETTINGS = SelfPlaySettings(save_steps=10, team_change=25, swap_steps=7, window=3, initial_elo=1000.0)


def test_the_core_imports_no_jax() -> None:
    code = "import sys, jaxrl.training.self_play.game; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_win_against_an_equal_is_half_a_point_and_both_changes_cancel() -> None:
    assert rating.change(1200.0, 1200.0, 1.0) == 0.5 == -rating.change(1200.0, 1200.0, 0.0)
    assert rating.expected(1600.0, 1200.0) == pytest.approx(10 / 11)  # 10^1 / (10^1 + 1)
    assert [rating.result(x) for x in (0.25, 0.0, -1e-9)] == [1.0, 0.5, 0.0]


def test_opponents_are_drawn_as_asked() -> None:
    pool = Pool(4, 1200.0)
    for step in range(3):
        pool.save(f"policy {step}", step)
    random = np.random.default_rng(0)
    drawn = [pool.draw(0.5, random) for _ in range(6000)]
    shares = {slot: drawn.count(slot) / len(drawn) for slot in set(drawn)}
    assert shares == pytest.approx({LATEST: 1 / 2, 0: 1 / 6, 1: 1 / 6, 2: 1 / 6}, abs=0.03)
    assert {pool.draw(1.0, random) for _ in range(50)} == {LATEST}
    assert LATEST not in {pool.draw(0.0, random) for _ in range(50)}
    first, again = (np.random.default_rng(7) for _ in range(2))
    assert [pool.draw(0.5, first) for _ in range(20)] == [pool.draw(0.5, again) for _ in range(20)]


def test_who_beats_the_learner_is_met_more_often() -> None:
    """Of 3 games each the learner has won all, none, and there was none: x = 3.5/4, 0.5/4 and 1/2, weights squared
    1/64, 49/64 and 16/64."""
    pool = Pool(3, 1200.0)
    for step in range(3):
        pool.save(step, step)
    pool.met = [(3.0, 3.0), (3.0, 0.0), (0.0, 0.0)]
    random = np.random.default_rng(0)
    drawn = np.bincount([pool.draw(0.0, random, 2.0) for _ in range(6600)], minlength=3)
    np.testing.assert_allclose(drawn, [100, 4900, 1600], atol=5 * np.sqrt(1600))
    assert LATEST in {pool.draw(0.5, random, 2.0) for _ in range(50)}
    alike = np.bincount([pool.draw(0.0, random, 0.0) for _ in range(3000)], minlength=3)
    np.testing.assert_allclose(alike, 1000, atol=5 * np.sqrt(1000))


def test_results_are_remembered_of_the_opponent_that_was_met() -> None:
    game = Game(np.random.default_rng(0))
    for team in (0, 1):
        game.join("Duel", team, SETTINGS, "v0")
    pool = game.sides["Duel"].pool
    game.turn("Duel", {0: Played(4, [1.0, 0.0])}, 4)
    assert pool.met == [(0.98 + 1, 0.98 + 0.5), (0.0, 0.0), (0.0, 0.0)], "a win, then a draw"
    pool.opponent = LATEST
    game.turn("Duel", {0: Played(4, [1.0])}, 8)
    assert pool.met[0] == (1.98, 1.48), "the newest is nobody of the past"
    for window, expected in ((3, [(1.98, 1.48), (0.0, 0.0), (0.0, 0.0)]), (1, [(1.98, 1.48)])):
        again = Pool(window, 0.0)
        again.restore(pool.snapshots, pool.ratings, pool.saved, pool.opponent, pool.met)
        assert again.met == expected
    for step in (11, 22, 33):
        game.turn("Duel", {}, step)
    assert pool.saved == 4 and pool.met[0] == (0.0, 0.0), "another one has its slot"


def test_the_oldest_makes_room_and_takes_over_the_rating_of_the_learner() -> None:
    pool = Pool(2, 1200.0)
    for step in range(3):
        pool.ratings[LATEST] = 1200.0 + step
        pool.save(step, step)
    assert [snapshot.weights for snapshot in pool.snapshots] == [2, 1] and pool.ratings == [1202.0, 1201.0, 1202.0]
    pool.opponent = 1
    for window, kept, opponent in ((2, [2, 1], 1), (1, [2], LATEST), (3, [1, 2], 0)):
        other = Pool(window, 0.0)
        other.restore(pool.snapshots, pool.ratings, pool.saved, pool.opponent)
        assert [snapshot.weights for snapshot in other.snapshots] == kept
        assert (other.opponent, other.elo, len(other.ratings)) == (opponent, 1202.0, window + 1)
    assert other.ratings[:2] == [1201.0, 1202.0] and other.save(5, 5) is other.snapshots[2]


def test_something_is_due_when_more_than_its_steps_have_passed() -> None:
    clock = Schedule(SETTINGS)
    assert [clock.save_due(step) for step in (10, 11, 21, 22)] == [False, True, False, True]
    assert [clock.change_due(step) for step in (25, 26, 51, 52)] == [False, True, False, True]
    assert [clock.swap_due(step, changed=step == 9) for step in (7, 8, 9, 16, 17)] == [False, True, True, False, True]


def test_teams_take_turns_and_of_too_many_the_longest_waiting_one_is_forgotten() -> None:
    rotation = Rotation()
    for team in (3, 0, 5, 0):
        rotation.join(team)
    assert rotation.learning == 3 and [rotation.change() and rotation.learning for _ in range(4)] == [0, 5, 3, 0]
    alone = Rotation()
    alone.join(4)
    assert not alone.change() and alone.learning == 4
    crowd = Rotation()
    for team in range(QUEUE + 2):
        crowd.join(team)
    assert list(crowd.queue) == list(range(2, QUEUE + 2)), "team 1 had waited longest"


def a_game(random: int = 0) -> Game:
    game = Game(np.random.default_rng(random))
    for team in (0, 1):
        game.join("Duel", team, SETTINGS, "v0")
    return game


def test_with_one_team_nothing_is_rated() -> None:
    game = Game(np.random.default_rng(0))
    game.join("Duel", 0, SETTINGS, "v0")
    assert game.turn("Duel", {0: Played(4, [1.0])}, 4).elos == [1000.0]


def play(game: Game, first: int, last: int) -> list[tuple[list[Sent], bool, list[float]]]:
    """Each message brings 4 decisions of each team, a game of the learner, and now and then an update."""
    found = []
    for number in range(first, last):
        played = {team: Played(4, [1.0] if game.learns("Duel", team) else ()) for team in (0, 1)}
        trained = f"v{number}" if number % 3 == 0 else None
        found.append(tuple(game.turn("Duel", played, 4 * (number + 1), trained)))
    return found


def test_a_game_goes_on_from_its_state() -> None:
    whole = a_game()
    random = whole._random
    play(whole, 0, 20)
    state = json.loads(json.dumps(whole.state("Duel", str)))
    words = json.loads(json.dumps(random.bit_generator.state))
    again = Game(np.random.default_rng(99))
    again._random.bit_generator.state = words
    again.restore("Duel", SETTINGS, state, whole.sides["Duel"].latest, lambda kept: kept)
    assert again.state("Duel", str) == state
    after = play(whole, 20, 60)
    assert play(again, 20, 60) == after
    assert {changed for _, changed, _ in after} == {True, False} and any(sent for sent, _, _ in after)
