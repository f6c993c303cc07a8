"""Warn of games without winners, which make the rating, pfsp and leagues meaningless. Imports no JAX."""

from __future__ import annotations

import logging

from jaxrl.settings.behavior import SelfPlaySettings

log = logging.getLogger(__name__)

GAMES = 200
"""Games without a winner, counted per agent, after which the warning is logged."""

_TEXT = (
    "%s: none of the first %d games had a winner: both sides lose, both win or both draw, so the rating means nothing. "
    "self_play.result is %s: the sign of %s decides. Pay winners more than 0 and losers less than 0 there%s."
)
_PAID = {"final_reward": "what the last step of a game pays", "return": "the whole return of an episode"}
_OTHER = ", or write result: return, by which the whole episode's return decides"


class Undecided:
    """Count the games of one behavior until one was decided."""

    def __init__(self, name: str, settings: SelfPlaySettings) -> None:
        self._name, self._settings = name, settings
        self._games: float | None = 0.0  # None: the warning was logged, or there was a winner

    def add(self, games: float, decided: float) -> None:
        """Add `games` of which some were `decided`; log once when there were enough and none was."""
        if self._games is None or decided:
            self._games = None
            return
        self._games += games
        if self._games >= GAMES:
            how = self._settings.result
            log.warning(_TEXT, self._name, self._games, how, _PAID[how], _OTHER if how == "final_reward" else "")
            self._games = None
