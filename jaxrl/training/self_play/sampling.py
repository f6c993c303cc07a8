"""Prioritised fictitious self-play: earlier selves that the learner loses against are met more often. No JAX.

    weight = (1 - x)^p, x the share of games that the learner has won against it

AlphaStar's f_hard (Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement learning",
methods). The learner changes, so old games count less. Arithmetic alone, which the compiled loop uses with its arrays.
"""

from __future__ import annotations

from typing import Any

FORGET = 0.98
"""What every game of an earlier one's weight is left after the next: some 50 games are remembered."""


def weight(games: Any, score: Any, power: Any) -> Any:
    """How often one is met, against whom the learner has scored `score` in `games`; one more game is thought drawn."""
    return (1.0 - (score + 0.5) / (games + 1.0)) ** power


def remembered(games: Any, score: Any, count: Any, scored: Any) -> tuple[Any, Any]:
    """`games` and `score` after `count` games more, in which the learner `scored` 1 a win and 1/2 a draw."""
    kept = FORGET**count
    return games * kept + count, score * kept + scored
