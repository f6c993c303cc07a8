"""ELO as ML-Agents computes it: K = 1, and the winner of an episode follows from its last step. No JAX."""

from __future__ import annotations


def result(last_reward: float) -> float:
    """1 win, 0.5 draw, 0 loss: the sign of what the last step of an episode paid, own and group reward together."""
    return 1.0 if last_reward > 0 else 0.5 if last_reward == 0 else 0.0


def expected(rating: float, opponent: float) -> float:
    """Expected result: E = 10^(rating/400) / (10^(rating/400) + 10^(opponent/400))."""
    own, other = 10.0 ** (rating / 400), 10.0 ** (opponent / 400)
    return own / (own + other)


def change(rating: float, opponent: float, outcome: float) -> float:
    """What the learner's rating gains and the opponent's loses: result - E, K is 1."""
    return outcome - expected(rating, opponent)
