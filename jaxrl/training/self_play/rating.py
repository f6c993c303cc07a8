"""ELO as ML-Agents computes it, with K = 1, and results of games from the rewards of all teams. Imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def result(paid: float) -> float:
    """Return 1 for a win, 0.5 for a draw, 0 for a loss: the sign of the deciding reward (`self_play.result`)."""
    return 1.0 if paid > 0 else 0.5 if paid == 0 else 0.0


def results(paid: float, others: Sequence[Mapping[float, int]]) -> list[float]:
    """Return the result of a game against each other team, from the rewards of the learner and of those teams.

    Against one team the sign of the learner's reward decides, as in ML-Agents. Of several teams each is compared with
    the learner, by the mean over its agents: otherwise ratings of equal players would fall in games with one winner.
    The sign decides against a team that plays on.

    Args:
      others: by team, deciding reward → number of its agents with it whose games ended with this one.
    """
    if len(others) == 1:
        return [result(paid)]
    return [_mean_result(paid, team) if team else result(paid) for team in others]


def _mean_result(paid: float, team: Mapping[float, int]) -> float:
    return sum(result(paid - other) * count for other, count in team.items()) / sum(team.values())


def is_decided(paid: float, others: Sequence[Mapping[float, int]]) -> bool:
    """Return whether a game has winners or losers; arguments as of `results`.

    If two teams have rewards of one sign, both win, lose or draw. A game that is over only for the learner counts as
    decided unless its reward is 0.
    """
    if not any(others):
        return paid != 0
    if len(others) > 1:
        return any(other != paid for team in others for other in team)
    learner = result(paid)
    return any(result(other) != learner for other in others[0])


def expected(rating: float, opponent: float) -> float:
    """Compute the expected result, E = 10^(rating/400) / (10^(rating/400) + 10^(opponent/400))."""
    strength, other = 10.0 ** (rating / 400), 10.0 ** (opponent / 400)
    return strength / (strength + other)


def change(rating: float, opponent: float, outcome: float) -> float:
    """Compute the learner's gain and the opponent's loss of rating: result - E, K is 1."""
    return outcome - expected(rating, opponent)
