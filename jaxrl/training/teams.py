"""Teams of one behavior that share one learner, and what the user is told of them, in both loops."""

from __future__ import annotations

import logging
from collections.abc import Sequence

log = logging.getLogger(__name__)


class SharedLearners:
    """Names each behavior once whose second team appears (P22, U41)."""

    def __init__(self) -> None:
        self._teams: dict[str, list[str]] = {}  # behavior ids by behavior

    def meet(self, name: str, behavior_ids: Sequence[str]) -> None:
        """These ids (`Name?team=1`) are teams of behavior `name`; one that is known already is none more."""
        teams = self._teams.setdefault(name, [])
        told = len(teams) > 1
        teams += [behavior_id for behavior_id in dict.fromkeys(behavior_ids) if behavior_id not in teams]
        if len(teams) > 1 and not told:
            several = f"{', '.join(teams[:-1])} and {teams[-1]}"
            log.warning(
                "%s: %s are teams of one behavior without self_play: all of them train one policy, against its newest "
                "version alone. With self_play one team at a time learns, against earlier versions. To train the teams "
                "apart, give each a behavior name of its own in the environment (in Unity: Behavior Parameters) and in "
                "the configuration.",
                name, several,
            )  # fmt: skip
