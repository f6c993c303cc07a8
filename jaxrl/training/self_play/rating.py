"""ELO as ML-Agents computes it, with K = 1, and who has won a game by what everybody was paid. No JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def result(paid: float) -> float:
    """Return 1 for a win, 0.5 for a draw, 0 for a loss: the sign of what decides about a game (`self_play.result`)."""
    return 1.0 if paid > 0 else 0.5 if paid == 0 else 0.0


def results(paid: float, others: Sequence[Mapping[float, int]]) -> list[float]:
    """Return the result of a game against each other team, by what was paid to the learner and to them.

    Against one team the sign of what the learner was paid decides, as in ML-Agents. Of several teams each is compared
    with the learner, by the mean over its agents: else a rating would fall among equals in games with one winner. The
    sign decides for a team that plays on.

    Args:
      others: by team, how many of its agents were paid how much as their games ended with this one.
    """
    if len(others) == 1:
        return [result(paid)]
    return [_mean_result(paid, team) if team else result(paid) for team in others]


def _mean_result(paid: float, team: Mapping[float, int]) -> float:
    return sum(result(paid - other) * count for other, count in team.items()) / sum(team.values())


def is_decided(paid: float, others: Sequence[Mapping[float, int]]) -> bool:
    """Return whether a game has winners or losers; arguments as of `results`.

    Of two teams with one sign both win, lose or draw. A game that is over for the learner alone counts as decided
    unless it was paid nothing.
    """
    if not any(others):
        return paid != 0
    if len(others) > 1:
        return any(other != paid for team in others for other in team)
    learner = result(paid)
    return any(result(other) != learner for other in others[0])


def expected(rating: float, opponent: float) -> float:
    """Expected result: E = 10^(rating/400) / (10^(rating/400) + 10^(opponent/400))."""
    own, other = 10.0 ** (rating / 400), 10.0 ** (opponent / 400)
    return own / (own + other)


def change(rating: float, opponent: float, outcome: float) -> float:
    """What the learner's rating gains and the opponent's loses: result - E, K is 1."""
    return outcome - expected(rating, opponent)
