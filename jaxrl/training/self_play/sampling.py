"""Prioritised fictitious self-play: snapshots that the learner loses against are drawn more often. Imports no JAX.

    weight = (1 - x)^p, x the share of games that the learner has won against it

AlphaStar's f_hard (Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement learning",
methods). The learner changes, so old games count less. The compiled loop uses these functions with arrays.
"""

from __future__ import annotations

from typing import Any

FORGET = 0.98
"""Factor of a game's weight with each later game: about 50 games are remembered."""


def weight(games: Any, score: Any, power: Any) -> Any:
    """Compute a snapshot's weight in the draw from the learner's `score` in `games` against it, plus one drawn game."""
    return (1.0 - (score + 0.5) / (games + 1.0)) ** power


def remembered(games: Any, score: Any, count: Any, scored: Any) -> tuple[Any, Any]:
    """Return `games` and `score` after `count` more games, in which the learner `scored` 1 a win and 1/2 a draw."""
    factor = FORGET**count
    return games * factor + count, score * factor + scored
