"""Behaviors of a team while others of it have not been seen: Unity announces a behavior with its first agent.

One critic judges all, and what it reads is known when all are. Until then the agents that are there act with the policy
that their behavior begins with, and nobody learns from what they do; no file is written and no step counts.
"""

from __future__ import annotations

import logging

from jaxrl.settings import RunSettings, SettingsError
from jaxrl.settings.teams import teams_of
from jaxrl.training.host.team import Kind
from jaxrl.types import BehaviorSpec

log = logging.getLogger(__name__)

PATIENCE = 1000
"""Messages after which the others are missed."""


class Gathering:
    """Kinds of members of each team that have been seen."""

    def __init__(self, settings: RunSettings) -> None:
        self._wanted = teams_of(settings.behaviors)
        self._seen: dict[str, dict[str, Kind]] = {}  # by team and behavior, of those that are not complete
        self._messages = 0
        self._told: set[str] = set()  # behaviors of which it was said

    def waits(self, name: str) -> Kind | None:
        """A behavior that waits for others."""
        return next((kinds[name] for kinds in self._seen.values() if name in kinds), None)

    def spec_of(self, name: str) -> BehaviorSpec | None:
        """Of a behavior that waits for others."""
        kind = self.waits(name)
        return None if kind is None else kind.spec

    def add(self, team: str, name: str, kind: Kind) -> dict[str, Kind] | None:
        """A behavior was seen; all of its team in the order of the file, if it is the last of them.

        Raises SettingsError for one that the file does not name.
        """
        if name not in self._wanted.get(team, ()):
            raise SettingsError(
                f"behaviors.{name}: default_settings.team is {team}, and a team names its behaviors: add an entry "
                f"`{name}:` below `behaviors:`, or write `team: null` in default_settings"
            )
        seen = self._seen.setdefault(team, {})
        seen[name] = kind
        if len(seen) < len(self._wanted[team]):
            return None
        del self._seen[team]
        return {of: seen[of] for of in self._wanted[team]}

    def miss(self, messages: int) -> None:
        """So many messages have come: say who waits, and once, after many, that a team does not learn."""
        if not self._seen or self._messages > PATIENCE:
            return
        for team, seen in self._seen.items():
            for name in seen.keys() - self._told:
                self._told.add(name)
                log.info("%s: waits for %s of team %s.", name, " and ".join(self._missing(team)), team)
        self._messages += messages
        for team, seen in self._seen.items() if self._messages > PATIENCE else ():
            log.warning(
                "team %s: %s acts and nobody learns from it, because %s has not come in %d messages: let the "
                "environment show an agent of each, or remove `team` from behaviors that it does not have.",
                team, ", ".join(seen), " and ".join(self._missing(team)), PATIENCE,
            )  # fmt: skip

    def _missing(self, team: str) -> list[str]:
        return [name for name in self._wanted[team] if name not in self._seen[team]]
