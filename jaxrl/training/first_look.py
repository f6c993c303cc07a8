"""A look at a run after its first minute: what is probably not meant, and cannot be known before. No JAX.

Each remark is made once. A run that is over sooner gets none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator

from jaxrl.settings import RunSettings
from jaxrl.settings.environment_parameters import judged_behaviors
from jaxrl.settings.section import dotted, nearest

log = logging.getLogger(__name__)

SECONDS = 60.0
"""Seconds from the first decision to the look."""
DECISIONS = 1000
"""Decisions of a behavior without an ended episode, before a remark."""


class FirstLook:
    """Behaviors that have come, with their decisions and finished episodes, until all remarks are made."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._begun: float | None = None
        self._looked = False
        self._names: set[str] = set()
        self._endless: dict[str, int] = {}  # decisions of behaviors of which no episode has ended
        self._ending: set[str] = set()  # all others

    def met(self, names: Iterable[str]) -> None:
        """Note behaviors that the environments have shown."""
        self._names.update(names)

    def acted(self, name: str, decisions: int, episodes: int) -> None:
        """Note new decisions of a behavior, and how many of its agents' episodes ended with them."""
        if name in self._ending:
            return
        if episodes:
            self._ending.add(name)
            self._endless.pop(name, None)
        else:
            self._endless[name] = self._endless.get(name, 0) + decisions

    def look(self) -> None:
        """Make the remarks that are due."""
        if self._looked and not self._endless:
            return
        now = time.monotonic()
        self._begun = now if self._begun is None else self._begun
        if now - self._begun < SECONDS:
            return
        if not self._looked:
            self._looked = True
            for text in self._of_names():
                log.warning("%s", text)
        for name in [name for name, decisions in self._endless.items() if decisions >= DECISIONS]:
            log.warning(
                "%s: no episode has ended in the first %d decisions, so there is no Mean Reward yet: does every "
                "episode reach an end (in Unity: EndEpisode, or a Max Step)?",
                name, self._endless.pop(name),
            )  # fmt: skip
            self._ending.add(name)

    def _of_names(self) -> Iterator[str]:
        """Yield remarks on names of the file that do not fit those that the environments have shown."""
        listed, came = self._settings.behaviors, ", ".join(sorted(self._names)) or "none"
        for name in listed:
            if name not in self._names:
                yield f"behaviors.{name}: no such behavior has come so far; {self._near(name)}there are {came}"
        if listed and self._settings.default_settings is not None:
            for name in sorted(self._names - set(listed)):
                yield f"{name}: is trained by default_settings, because behaviors does not list it"
        for location, criteria in judged_behaviors(self._settings.environment_parameters):
            if criteria.behavior not in self._names:
                path = dotted(("environment_parameters", *location, "behavior"))
                yield (
                    f"{path}: no behavior {criteria.behavior} has come so far, and the lesson goes on until it does; "
                    f"{self._near(criteria.behavior)}there are {came}"
                )

    def _near(self, name: str) -> str:
        match = nearest(name, self._names)
        return f"did you mean {match}? " if match else ""
