"""Rules of a league that both loops share: when an exploiter is done, and what is known of it. No JAX."""

from __future__ import annotations

import pytest

from jaxrl.settings.behavior import LeagueSettings
from jaxrl.training.self_play.league import Standing, due

OWN = LeagueSettings(win_share=0.7, renew_steps=100)


@pytest.mark.parametrize(
    ("games", "score", "steps", "over"),
    [(20, 14.1, 0, True), (20, 13.9, 0, False), (19, 19, 0, False), (40, 20, 100, False), (0, 0, 101, True)],
)
def test_who_has_won_enough_or_learned_long_enough_is_done(games: float, score: float, steps: int, over: bool) -> None:
    assert bool(due(OWN, games, score, steps)) is over


def test_games_are_remembered_and_rated_by_hand() -> None:
    """Two equals: 0.5 is expected of the first game, slightly more of the second."""
    standing = Standing(1200.0)
    standing.played([1.0], [1200.0])
    standing.played([0.5], [1200.0])
    assert (standing.games, standing.score) == pytest.approx((1.98, 1.48))
    assert standing.elo == pytest.approx(1200.5 + 0.5 - 1 / (1 + 10 ** (-0.5 / 400)))
    standing.leave(70, 1300.0)
    assert standing == Standing(1300.0, begun=70, joined=1)
