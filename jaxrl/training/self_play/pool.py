"""Snapshots of a behavior: a ring of rated ones, and the draw of an opponent. Imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.training.self_play import sampling

LATEST = -1
"""Slot and number of the newest policy, whose rating is the last one of `Pool.ratings`."""


class Snapshot(NamedTuple):
    """Frozen policy of an earlier trainer step."""

    step: int  # trainer step
    weights: Any  # policy in the form that the loop uses


class Pool:
    """Snapshots of one behavior and their ratings.

    Snapshots are numbered from 0 on in the order in which they were saved. Opponents are known by their numbers, since
    their slots may be taken by other snapshots while they play.

    Args:
      window: number of snapshots; the next one replaces the oldest.
      initial_elo: rating of all at the start.
    """

    def __init__(self, window: int, initial_elo: float) -> None:
        self.window = window
        self.ratings = [float(initial_elo)] * (window + 1)  # per slot, and last the learner
        self.snapshots: list[Snapshot] = []  # by slot
        self.saved = 0  # snapshots so far
        self.opponents: dict[int, int] = {}  # number of the snapshot that plays a team, or LATEST, by team
        self.met = [(0.0, 0.0)] * window  # games of a learner against a slot, and the learner's score in them

    @property
    def elo(self) -> float:
        """Rating of the learner."""
        return self.ratings[LATEST]

    def slot(self, number: int) -> int:
        """Return the place of a snapshot in `ratings` and `snapshots`, or LATEST.

        A snapshot that has left the pool shares the rating of the one that took its slot, as in ML-Agents.
        """
        return LATEST if number == LATEST else number % self.window

    def save(self, weights: Any, step: int, elo: float | None = None) -> Snapshot:
        """Put a policy into the next slot, rated `elo`; None: the learner's present rating."""
        slot = self.saved % self.window
        snapshot = Snapshot(step, weights)
        self.snapshots[slot : slot + 1] = [snapshot]
        self.ratings[slot] = self.elo if elo is None else elo
        self.met[slot] = (0.0, 0.0)
        self.saved += 1
        return snapshot

    def played(self, number: int, result: float) -> None:
        """Book a game against a snapshot: 1 win of the learner, 0.5 draw, 0 loss. Only snapshots in the pool count."""
        if number != LATEST and number >= self.saved - self.window:
            games, score = self.met[self.slot(number)]
            self.met[self.slot(number)] = sampling.remembered(games, score, 1, result)

    def restore(
        self,
        snapshots: Sequence[Snapshot],
        ratings: Sequence[float],
        saved: int,
        opponents: Mapping[int, int],
        met: Sequence[Sequence[float]] = (),
    ) -> None:
        """Restore a saved pool; if its window was another, its newest snapshots stay.

        Args:
          snapshots: by slot.
          ratings: of each saved slot, and last the learner's.
          opponents: as `Pool.opponents`.
          met: as `Pool.met`; empty: no games yet.
        """
        window, slots, fewer = len(ratings) - 1, list(range(len(snapshots))), 0
        if window != self.window:
            first = saved % window if len(slots) == window else 0  # the oldest
            slots = (slots[first:] + slots[:first])[-self.window :]
            fewer = saved - len(slots)
        self.saved = saved - fewer
        self.opponents = {team: max(number - fewer, LATEST) if fewer else number for team, number in opponents.items()}
        self.snapshots = [snapshots[slot] for slot in slots]
        empty = [ratings[LATEST]] * (self.window - len(slots))
        same = window == self.window
        elos = list(ratings) if same else [*(ratings[slot] for slot in slots), *empty, ratings[LATEST]]
        self.ratings = [float(rating) for rating in elos]
        known = [(float(games), float(score)) for games, score in (met[slot] for slot in slots if slot < len(met))]
        self.met = known + [(0.0, 0.0)] * (self.window - len(known))

    def draw(self, team: int, latest_ratio: float, random: np.random.Generator, power: float | None = None) -> int:
        """Draw the opponent that plays a team: LATEST with probability `latest_ratio`, else the number of a snapshot.

        Draws one uniform number, and one integer if that is below 1 - latest_ratio.

        Args:
          power: p of `sampling.weight`, which weights the draw of the slot; it then takes a second uniform number in
            place of the integer. None: all slots have equal weights.
        """
        number, last = LATEST, self.saved - 1
        if random.random() < 1 - latest_ratio:
            number = last - (last - self._slot(random, power)) % self.window
        self.opponents[team] = number
        return number

    def _slot(self, random: np.random.Generator, power: float | None) -> int:
        if power is None:
            return int(random.integers(len(self.snapshots)))
        weights = [sampling.weight(*self.met[slot], power) for slot in range(len(self.snapshots))]
        left = random.random() * sum(weights)
        for slot, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return slot
        return len(weights) - 1  # rounding
