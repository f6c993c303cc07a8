"""Rating, pool, schedule and game without a loop; against the original they are compared in tests/parity (k_elo)."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from jaxrl.rollout.booking.episodes import GameEnd
from jaxrl.settings import SelfPlaySettings
from jaxrl.training.self_play import rating
from jaxrl.training.self_play.game import Game, Played, Rotation, Schedule, Sent
from jaxrl.training.self_play.pool import LATEST, Pool
from jaxrl.training.self_play.undecided import GAMES, Undecided

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
    drawn = [pool.draw(1, 0.5, random) for _ in range(6000)]
    shares = {slot: drawn.count(slot) / len(drawn) for slot in set(drawn)}
    assert shares == pytest.approx({LATEST: 1 / 2, 0: 1 / 6, 1: 1 / 6, 2: 1 / 6}, abs=0.03)
    assert {pool.draw(1, 1.0, random) for _ in range(50)} == {LATEST}
    assert LATEST not in {pool.draw(1, 0.0, random) for _ in range(50)}
    first, again = (np.random.default_rng(7) for _ in range(2))
    assert [pool.draw(1, 0.5, first) for _ in range(20)] == [pool.draw(1, 0.5, again) for _ in range(20)]


def test_who_beats_the_learner_is_met_more_often() -> None:
    """Of 3 games each the learner has won all, none, and there was none: x = 3.5/4, 0.5/4 and 1/2, weights squared
    1/64, 49/64 and 16/64."""
    pool = Pool(3, 1200.0)
    for step in range(3):
        pool.save(step, step)
    pool.met = [(3.0, 3.0), (3.0, 0.0), (0.0, 0.0)]
    random = np.random.default_rng(0)
    drawn = np.bincount([pool.draw(1, 0.0, random, 2.0) for _ in range(6600)], minlength=3)
    np.testing.assert_allclose(drawn, [100, 4900, 1600], atol=5 * np.sqrt(1600))
    assert LATEST in {pool.draw(1, 0.5, random, 2.0) for _ in range(50)}
    alike = np.bincount([pool.draw(1, 0.0, random, 0.0) for _ in range(3000)], minlength=3)
    np.testing.assert_allclose(alike, 1000, atol=5 * np.sqrt(1000))


def games(*paid: float, worker: int = 0) -> list[GameEnd]:
    """Games that end for agents of one worker, which were paid so much with the last step."""
    return [GameEnd(worker, one, one) for one in paid]


def test_results_are_remembered_of_the_opponent_that_was_met() -> None:
    game = a_game()
    pool = game.sides["Duel"].pool
    game.turn("Duel", {("Duel", 0): Played(4, games(1.0, 0.0))}, 4)
    assert pool.met == [(0.98 + 1, 0.98 + 0.5), (0.0, 0.0), (0.0, 0.0)], "a win, then a draw"
    pool.opponents[1] = LATEST
    game.turn("Duel", {("Duel", 0): Played(4, games(1.0))}, 8)
    assert pool.met[0] == (1.98, 1.48), "the newest is nobody of the past"
    for window, expected in ((3, [(1.98, 1.48), (0.0, 0.0), (0.0, 0.0)]), (1, [(1.98, 1.48)])):
        again = Pool(window, 0.0)
        again.restore(pool.snapshots, pool.ratings, pool.saved, pool.opponents, pool.met)
        assert again.met == expected
    for step in (11, 22, 33):
        game.turn("Duel", {}, step)
    assert pool.saved == 4 and pool.met[0] == (0.0, 0.0), "another one has its slot"


def test_games_against_a_snapshot_that_has_left_the_pool_are_not_booked_as_those_of_its_successor() -> None:
    """Snapshot 0 plays on while snapshot 3 takes its slot; then snapshot 3 itself is drawn."""
    game = a_game(team_change=1000)
    pool = game.sides["Duel"].pool
    for step in (11, 22, 33):
        game.turn("Duel", {}, step)
    assert pool.saved == 4 and pool.opponents[1] == 0
    game.turn("Duel", {("Duel", 0): Played(4, games(1.0, 1.0))}, 33)
    assert pool.met == [(0.0, 0.0)] * 3
    pool.opponents[1] = 3
    game.turn("Duel", {("Duel", 0): Played(4, games(1.0))}, 33)
    assert pool.met == [(1.0, 1.0), (0.0, 0.0), (0.0, 0.0)]


def test_the_oldest_makes_room_and_takes_over_the_rating_of_the_learner() -> None:
    pool = Pool(2, 1200.0)
    for step in range(3):
        pool.ratings[LATEST] = 1200.0 + step
        pool.save(step, step)
    assert [snapshot.weights for snapshot in pool.snapshots] == [2, 1] and pool.ratings == [1202.0, 1201.0, 1202.0]
    pool.opponents = {1: 1, 2: 0, 3: LATEST}
    for window, kept, opponents in (
        (2, [2, 1], {1: 1, 2: 0, 3: LATEST}),
        (1, [2], {1: LATEST, 2: LATEST, 3: LATEST}),
        (3, [1, 2], {1: 0, 2: LATEST, 3: LATEST}),
    ):
        other = Pool(window, 0.0)
        other.restore(pool.snapshots, pool.ratings, pool.saved, pool.opponents)
        assert [snapshot.weights for snapshot in other.snapshots] == kept
        assert (other.opponents, other.elo, len(other.ratings)) == (opponents, 1202.0, window + 1)
    assert other.ratings[:2] == [1201.0, 1202.0] and other.save(5, 5) is other.snapshots[2]


def test_an_opponent_is_drawn_by_the_number_of_its_snapshot() -> None:
    pool = Pool(3, 1200.0)
    for step in range(5):
        pool.save(f"v{step}", step)
    random = np.random.default_rng(0)
    drawn = {pool.draw(1, 0.0, random) for _ in range(60)}
    assert drawn == {2, 3, 4}
    assert [pool.snapshots[pool.slot(number)].weights for number in sorted(drawn)] == ["v2", "v3", "v4"]


def test_something_is_due_when_more_than_its_steps_have_passed() -> None:
    clock = Schedule(SETTINGS)
    assert [clock.save_due(step) for step in (10, 11, 21, 22)] == [False, True, False, True]
    assert [clock.change_due(step) for step in (25, 26, 51, 52)] == [False, True, False, True]
    assert [clock.swap_due(step, changed=step == 9) for step in (7, 8, 9, 16, 17)] == [False, True, True, False, True]


def test_teams_take_turns_however_many_there_are() -> None:
    rotation = Rotation()
    for team in (3, 0, 5, 0):
        rotation.join(team)
    assert rotation.learning == 3 and [rotation.change() and rotation.learning for _ in range(4)] == [0, 5, 3, 0]
    alone = Rotation()
    alone.join(4)
    assert not alone.change() and alone.learning == 4
    crowd = Rotation()
    for team in range(12):  # ML-Agents forgets all but ten
        crowd.join(team)
    assert [crowd.change() and crowd.learning for _ in range(12)] == [*range(1, 12), 0]


def a_game(teams: int = 2, **settings: Any) -> Game:
    game = Game(np.random.default_rng(0))
    for team in range(teams):
        game.join("Duel", team, SETTINGS.model_copy(update=settings), "v0")
    return game


def test_with_one_team_nothing_is_rated() -> None:
    assert [one.elo for one in a_game(1).turn("Duel", {("Duel", 0): Played(4, games(1.0))}, 4).rated] == [1000.0]


def test_each_of_three_teams_is_rated_by_its_own_result_and_rating() -> None:
    """Snapshots rated 900 and 1100 play against a learner rated 1000, which beats the one and loses to the other."""
    game = a_game(3)
    pool = game.sides["Duel"].pool
    for number in range(1, 3):
        pool.save(f"v{number}", number)
    pool.ratings[:] = [950.0, 900.0, 1100.0, 1000.0]
    pool.opponents |= {1: 1, 2: 2}
    ends = {("Duel", 0): games(0.5), ("Duel", 1): games(-1.0), ("Duel", 2): games(1.0)}
    turn = game.turn("Duel", {team: Played(0, of) for team, of in ends.items()}, 0)
    first, second = 1 - 1 / (1 + 10 ** (-100 / 400)), -1 / (1 + 10 ** (100 / 400))
    np.testing.assert_allclose(pool.ratings, [950, 900 - first, 1100 - second, 1000 + first + second], rtol=1e-12)
    assert turn.rated == [(pool.elo, True)] and pool.met == [(0, 0), (1, 1), (1, 0)]
    pool.opponents |= {1: 2}
    game.turn("Duel", {team: Played(0, of) for team, of in ends.items()}, 0)
    assert pool.met == [(0, 0), (1, 1), (1.98, 0.5)], "a snapshot that plays two teams has played once: a half"
    before = list(pool.ratings)
    game.turn("Duel", {("Duel", 0): Played(0, games(-1.0, worker=1)), ("Duel", 2): Played(0, games(-2.0))}, 0)
    assert pool.ratings[2] > before[2] and pool.elo < before[-1], "in another worker, so that the sign decides"


@pytest.mark.parametrize("teams", range(2, 13))
def test_a_rating_neither_falls_nor_rises_against_oneself_and_among_equals(teams: int) -> None:
    """Who wins every game against copies of itself stays; so does who wins its share of games with one winner."""
    game = a_game(teams)
    pool = game.sides["Duel"].pool
    pool.opponents = dict.fromkeys(range(teams), LATEST)
    everybody = [("Duel", team) for team in range(teams)]
    for winner in (0,) * 100:
        game.turn("Duel", {key: Played(0, games(1.0 if key[1] == winner else -1.0)) for key in everybody}, 0)
    assert pool.elo == pytest.approx(1000.0, abs=1e-9)
    pool.opponents, changes = dict.fromkeys(range(teams), 0), []
    for winner in range(teams):
        pool.ratings[:] = [1000.0] * 4
        game.turn("Duel", {key: Played(0, games(1.0 if key[1] == winner else -1.0)) for key in everybody}, 0)
        changes.append(pool.elo - 1000.0)
        assert pool.ratings[0] + pool.elo == 2000.0
    assert changes == [(teams - 1) / 2] + [-0.5] * (teams - 1), "a win against all, a loss against one, and draws"


def test_the_result_is_the_sign_of_the_last_reward_or_of_the_return() -> None:
    """A step penalty: who has won 1 in all has lost 0.01 with its last step."""
    end = GameEnd(0, last=-0.01, total=0.9)
    for how, change in (("final_reward", -0.5), ("return", 0.5)):
        game = a_game(result=how)
        assert game.turn("Duel", {("Duel", 0): Played(0, [end])}, 0).rated[0].elo == 1000.0 + change
    assert a_game(3, result="return").turn("Duel", {("Duel", 0): Played(0, [end])}, 0).rated[0].elo == 1001.0


@pytest.mark.parametrize(
    ("teams", "paid", "decided"),
    [
        (2, (1.0, -1.0), True),
        (2, (-0.01, -0.01), False),  # both lose
        (2, (0.5, 0.1), False),  # both win
        (2, (0.0, 0.0), False),
        (2, (0.0, -1.0), True),
        (2, (-1.0,), True),  # nothing is known of the other
        (2, (0.0,), False),
        (3, (-0.5, -0.5, -1.0), True),  # of several teams who was paid more has won
        (3, (1.0, 1.0, 1.0), False),
    ],
)
def test_a_game_is_decided_where_not_all_win_lose_or_draw(teams: int, paid: Any, decided: bool) -> None:
    played = {("Duel", team): Played(0, games(one)) for team, one in enumerate(paid)}
    (rated,) = a_game(teams).turn("Duel", played, 0).rated
    assert rated.decided is decided


def test_it_is_said_once_that_nobody_wins(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jaxrl"):
        for decided in (0, 1):
            lucky = Undecided("Lucky", SETTINGS)
            lucky.add(GAMES - 1, decided)
            lucky.add(decided, 0)
        assert not caplog.messages
        for how in ("final_reward", "return"):
            remark = Undecided("Duel", SETTINGS.model_copy(update={"result": how}))
            for _ in range(3):
                remark.add(GAMES, 0)
    first, second = caplog.messages
    assert first.startswith(f"Duel: none of the first {GAMES} games had a winner") and "result: return" in first
    assert "self_play.result is return: the sign of the whole return of an episode decides." in second


def test_behaviors_of_one_team_end_its_turn_together() -> None:
    """Strikers and keepers in teams 0 and 1: whoever's clock is over first, all clocks begin again."""
    game, settings = Game(np.random.default_rng(0)), SETTINGS
    for team in (0, 1):
        for name in ("Striker", "Keeper"):
            game.join(name, team, settings, "v0")
    turns, changed = [], 0
    for number in range(1, 60):
        for name, each in (("Striker", 2), ("Keeper", 1)):
            changed += game.turn(name, {}, each * number).changed
        learning = game.rotation.learning or 0
        assert all(game.learns(name, learning) and not game.learns(name, 1 - learning) for name in game.sides)
        turns.append(learning)
    assert turns == [0] * 12 + [1] * 13 + [0] * 13 + [1] * 13 + [0] * 8, "26 steps of strikers each"
    assert changed == 4
    foes = {name: [(foe.side.name, foe.team) for foe in game.foes(side)] for name, side in game.sides.items()}
    assert foes == {"Striker": [("Striker", 1)], "Keeper": [("Keeper", 1)]}
    game.join("Referee", 2, settings, "v0")
    assert [(foe.side.name, foe.team) for foe in game.foes(game.sides["Keeper"])] == [("Keeper", 1), ("Referee", 2)]


def play(game: Game, first: int, last: int) -> list[tuple[list[Sent], bool, list[Any]]]:
    """Each message brings 4 decisions of each team, a game of the learner, and now and then an update."""
    found = []
    for number in range(first, last):
        played = {("Duel", team): Played(4, games(1.0) if game.learns("Duel", team) else ()) for team in (0, 1)}
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
