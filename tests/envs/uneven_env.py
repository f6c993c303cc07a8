"""Areas whose episodes are of different lengths: a mean over those that end first is that of the short ones."""

from __future__ import annotations

from typing import Any

from tests.envs.toy_env import ToyEnv, ToySettings

UNEVEN = ToySettings(areas=16, agents_per_team=1, teams=False)


class Uneven(ToyEnv):
    """Of 16 areas every second one has episodes of 1 decision and return 0, the others of 20 decisions and return 1."""

    def _begin(self, area: Any) -> None:
        super()._begin(area)
        length = 20 if self._areas["Toy?team=0"].index(area) % 2 else 1
        area.finishes = lambda: area.clock >= length

    def _reward(self, area: Any, *_: Any) -> float:
        return 0.05 if self._areas["Toy?team=0"].index(area) % 2 else 0.0
