"""Warn of teams that share one learner, and of team rewards that cancel."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from jaxrl.types import NO_GROUP

ENOUGH = 20
"""Payments to teams after which rewards that have always cancelled each other are named."""

log = logging.getLogger(__name__)


class SharedLearners:
    """Warns once for each behavior when its second team appears."""

    def __init__(self) -> None:
        self._teams: dict[str, list[str]] = {}  # behavior ids by behavior

    def meet(self, name: str, behavior_ids: Sequence[str]) -> None:
        """Register teams of behavior `name` by their ids (`Name?team=1`); known ids are ignored."""
        teams = self._teams.setdefault(name, [])
        warned = len(teams) > 1
        teams += [behavior_id for behavior_id in dict.fromkeys(behavior_ids) if behavior_id not in teams]
        if len(teams) > 1 and not warned:
            several = f"{', '.join(teams[:-1])} and {teams[-1]}"
            log.warning(
                "%s: %s are teams of one behavior without self_play: all of them train one policy, against its newest "
                "version alone. With self_play one team at a time learns, against earlier versions. To train the teams "
                "apart, give each a behavior name of its own in the environment (in Unity: Behavior Parameters) and in "
                "the configuration.",
                name, several,
            )  # fmt: skip


class CancellingRewards:
    """Notices each behavior once whose team's members take from each other what they earn: players of one game."""

    def __init__(self) -> None:
        # Payments that cancelled, by behavior; None: one did not, or a warning was given.
        self._payments: dict[str, int | None] = {}

    def see(self, name: str, trainer_type: str, group_id: np.ndarray, reward: np.ndarray) -> str:
        """Look at the individual rewards [N] of one message of a behavior. Returns what is to be said, else nothing."""
        payments = self._payments.get(name, 0)
        if payments is None or not reward.any():
            return ""
        teams, team = np.unique(group_id, return_inverse=True)
        total, size = np.bincount(team, reward), np.bincount(team, np.abs(reward))
        if (np.abs(total) > 1e-6 * size).any() or NO_GROUP in teams:
            self._payments[name] = None
            return ""
        payments += int((size > 0).sum())
        self._payments[name] = payments if payments < ENOUGH else None
        if payments < ENOUGH:
            return ""
        return (
            f"{name}: the rewards of the members of a team have cancelled each other in all of {payments} payments, "
            f"and {trainer_type} learns from their sum. Members who play against each other are teams of their own: in "
            "Unity give them different Team Ids; with PettingZoo and RLlib say --env-args 'teams={player_0: 0, "
            "player_1: 1}'. Add self_play."
        )
