"""Rates players with intervals from the matches of a round-robin, by OpenSkill's model of Plackett and Luce."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from openskill.models import PlackettLuce

from jaxrl.tools.tournament.matches import Record

ORDERS = 5
"""Number of random orders of the games over which a rating, which depends on the order, is averaged."""
WIDTH = 1.96
"""Standard deviations from the rating to either end of an interval of 95 %."""


class Rating(NamedTuple):
    """Estimated strength of a player; 25 at the start."""

    mean: float
    deviation: float  # of the model, and over the orders of the games

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of 95 %."""
        return self.mean - WIDTH * self.deviation, self.mean + WIDTH * self.deviation


def rate(players: int, matches: Mapping[tuple[int, int], Record], seed: int = 0) -> list[Rating]:
    """Return the ratings by number of the player, from the games of each pair in the view of its first player.

    Players do not change while they play, so the model's dynamics are off (tau = 0).
    """
    games = [
        (first, second, ranks)
        for (first, second), record in matches.items()
        for count, ranks in zip(record[:3], ([0, 1], [0, 0], [1, 0]), strict=True)
        for _ in range(count)
    ]
    draws, model = np.random.default_rng(seed), PlackettLuce(tau=0.0)
    estimates = np.array([_in_order(model, players, games, draws.permutation(len(games))) for _ in range(ORDERS)])
    means, deviations = estimates[..., 0], estimates[..., 1]
    spread = np.square(deviations).mean(0) + means.var(0)
    return [Rating(float(mean), math.sqrt(var)) for mean, var in zip(means.mean(0), spread, strict=True)]


def _in_order(model: Any, players: int, games: Sequence[Any], order: Iterable[int]) -> list[tuple[float, float]]:
    rated = [model.rating() for _ in range(players)]
    for number in order:
        first, second, ranks = games[number]
        (rated[first],), (rated[second],) = model.rate([[rated[first]], [rated[second]]], ranks=ranks)
    return [(rating.mu, rating.sigma) for rating in rated]
