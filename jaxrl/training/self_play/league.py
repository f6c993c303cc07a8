"""Exploiters of a league: when one joins the pool, and how many copies of a game a league takes. Imports no JAX.

After AlphaStar's main exploiters (Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent
reinforcement learning", methods). Both loops share this arithmetic, over numbers or arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxrl.settings import SettingsError
from jaxrl.settings.behavior import LeagueSettings
from jaxrl.training.self_play import rating, sampling

GAMES = 20
"""Smallest number of games after which an exploiter can have won."""


def due(settings: LeagueSettings, games: Any, score: Any, steps: Any) -> Any:
    """Return whether an exploiter that began `steps` ago joins its main agent's pool and begins anew."""
    won = (games >= GAMES) & (score >= settings.win_share * games)
    return won | (steps > settings.renew_steps)


def check_copies(key: str, copies: int, size: int) -> None:
    """Raise SettingsError unless `copies` of a game, set by `key`, make whole leagues of `size`."""
    if copies % size:
        raise SettingsError(
            f"{key}: got {copies}, expected a multiple of {size}: a league of self_play takes so many, one for the "
            f"main agent and {size - 1} for exploiter(s)"
        )


@dataclass
class Standing:
    """Rating, games and clocks of one exploiter."""

    elo: float
    games: float = 0.0  # recent games against the main agent, as `sampling.remembered`
    score: float = 0.0
    begun: int = 0  # its trainer step when it last began anew
    joined: int = 0  # policies of it that have joined the pool
    ghost_step: int = 0  # decisions of the main agents against it
    swapped: int = 0  # ghost step at which it last got the newest main agent as opponent

    def played(self, results: Sequence[float], opponents: Sequence[float]) -> None:
        """Book a game against teams of main agents of these ratings: 1 win, 0.5 draw, 0 loss against each."""
        self.games, self.score = sampling.remembered(self.games, self.score, 1, sum(results) / len(results))
        self.elo += sum(map(partial(rating.change, self.elo), opponents, results))

    def leave(self, step: int, elo: float) -> None:
        """Begin anew at this trainer step, rated `elo`, after its policy has joined the pool."""
        self.elo, self.games, self.score, self.begun = elo, 0.0, 0.0, step
        self.joined += 1
