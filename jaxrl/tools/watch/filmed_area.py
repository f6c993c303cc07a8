"""One copy of somebody's environment whose pictures are kept, with what was earned until each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from jaxrl.envs.foreign.area import Area, AreaOutcome
from jaxrl.envs.foreign.rendering import checked_picture
from jaxrl.envs.interface import EnvironmentFailure

FRAMES = 400
"""Pictures that are kept at most, beside the ends of episodes: of a longer film every second, fourth and so on."""
LONGEST = 480
"""Pixels of the longer side of a kept picture."""


class Shot(NamedTuple):
    """A picture and what led to it."""

    picture: Image.Image
    episode: int  # from 1
    clock: int  # steps in this episode
    earned: tuple[float, ...]  # in this episode so far, by behavior: the sum of its agents' own rewards
    ends: bool


class FilmedArea:
    """`area`, which it passes everything on to, and its pictures so far in `shots`.

    Raises EnvironmentFailure from `reset` and `step` where it renders no picture.
    """

    def __init__(self, area: Area, address: str) -> None:
        self.teams = area.teams
        self.frames_per_second = area.frames_per_second
        self.shots: list[Shot] = []
        self.stride = 1  # steps from one kept picture to the next
        self.returns: list[tuple[float, ...]] = []  # of each episode, by behavior; the last one may go on
        self.steps = 0
        self.ended = 0  # episodes
        self.spaces, self.behavior, self.render, self.close = area.spaces, area.behavior, area.render, area.close
        self._area = area
        self._address = address
        self._earned: dict[str, float] = {}
        self._clock = 0

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> AreaOutcome:
        """Begin an episode."""
        outcome = self._area.reset(seed, options)
        self._earned = dict.fromkeys(dict.fromkeys(map(self.behavior, outcome.living)), 0.0)
        self._clock = 0
        self.returns.append(tuple(self._earned.values()))
        self._shoot(ends=False)
        return outcome

    def step(self, actions: Mapping[Any, Any]) -> AreaOutcome:
        """One step."""
        outcome = self._area.step(actions)
        self.steps, self._clock = self.steps + 1, self._clock + 1
        for agent, reward in outcome.reward.items():
            name = self.behavior(agent)
            self._earned[name] = self._earned.get(name, 0.0) + float(np.asarray(reward))
        self.returns[-1] = tuple(self._earned.values())
        self.ended += not outcome.living
        self._shoot(ends=not outcome.living)
        return outcome

    def _shoot(self, *, ends: bool) -> None:
        if self._clock % self.stride and not ends:
            return
        given = self._area.render()
        if given is None or isinstance(given, bool | np.bool_):
            raise EnvironmentFailure(
                f"{self._address}: its render gives {given} in place of a picture, so there is nothing to film; an "
                "environment that can be filmed offers render_mode rgb_array"
            )
        picture = Image.fromarray(checked_picture(given, self._address, "mend it, or watch another environment"))
        picture.thumbnail((LONGEST, LONGEST), Image.Resampling.BOX)
        self.shots.append(Shot(picture, len(self.returns), self._clock, self.returns[-1], ends))
        if sum(not shot.ends for shot in self.shots) > FRAMES:
            self.stride *= 2
            self.shots = [shot for shot in self.shots if shot.clock % self.stride == 0 or shot.ends]
