"""Plays one environment of Gymnasium or PettingZoo and keeps its pictures: the film of a run of the host loop.

The environment is stepped in this process, as in the host loop; each behavior's policy is one small compiled program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from jaxrl.envs.behavior_names import NamedEnvironment
from jaxrl.envs.foreign.area import Area, AreaOutcome
from jaxrl.envs.foreign.behaviors import Behaviors, described, expected
from jaxrl.envs.foreign.environment import ForeignEnvironment
from jaxrl.envs.foreign.rendering import DrawingOptions, checked_picture
from jaxrl.envs.foreign.simulator import open_area
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.training.player import Players, names_of_run, settings_of_run

_FRAMES_PER_SECOND = 30.0
_DRAWN = DrawingOptions(film_every=1)
FRAMES = 400
"""Largest number of kept pictures, beside the ends of episodes: longer films keep every second, fourth and so on."""
LONGEST = 480
"""Length in pixels of the longer side of a kept picture."""


class Played(NamedTuple):
    """A film's pictures and returns."""

    behaviors: tuple[str, ...]
    origin: str  # runs of the policies
    steps: int
    shots: tuple[Shot, ...]  # at least one
    returns: tuple[tuple[float, ...], ...]  # of each episode, by behavior: the sum of its agents' own rewards
    frame_seconds: float  # time that a picture stays


def play_foreign(
    address: str,
    run: Path | None,
    env_args: Sequence[str] | None,
    *,
    seed: int,
    episodes: int,
    steps: int,
    deterministic: bool,
    models: Sequence[Path] = (),
) -> Played:
    """Play until `episodes` have ended, or `steps` steps.

    Environment parameters, and `env_args` if none are given, are those of the run.

    Raises JaxrlError if it cannot be made, filmed or played with the policies of the run.
    """
    written, parameters = settings_of_run(run)
    arguments = written if env_args is None else env_args
    filmed: list[FilmedArea] = []

    names = names_of_run(run)

    def make_area(_: int) -> FilmedArea:
        filmed.append(FilmedArea(open_area(address, arguments, _DRAWN), address, Behaviors(names)))
        return filmed[0]

    env = NamedEnvironment(ForeignEnvironment(worker=0, name=address, make_area=make_area, areas=1, seed=seed), names)
    players = Players(run, seed, deterministic, models)
    try:
        area, message = filmed[0], env.reset(parameters)
        players.meet(message)
        while area.ended < episodes and area.steps < steps:
            message = env.step(players.act(message))
            players.meet(message)
    finally:
        env.close()
    last = episodes if area.ended >= episodes else len(area.returns)  # the next episode has begun by itself
    return Played(
        behaviors=tuple(area.earned),
        origin=", ".join(dict.fromkeys(players.origins.values())),
        steps=area.steps,
        shots=tuple(shot for shot in area.shots if shot.episode <= last),
        returns=tuple(area.returns[:last]),
        frame_seconds=area.stride / (area.frames_per_second or _FRAMES_PER_SECOND),
    )


class Shot(NamedTuple):
    """A picture with its place in the episode."""

    picture: Image.Image
    episode: int  # from 1
    clock: int  # steps in this episode
    earned: tuple[float, ...]  # in this episode so far, by behavior: the sum of its agents' own rewards
    ends: bool


class FilmedArea:
    """Passes everything on to `area`, and collects pictures in `shots`.

    `behaviors` give the behavior of its agents. `reset` and `step` raise EnvironmentFailure if it renders no picture.
    """

    def __init__(self, area: Area, address: str, behaviors: Behaviors) -> None:
        self.teams = area.teams
        self.sides, self.side = area.sides, area.side
        self.frames_per_second = area.frames_per_second
        self.shots: list[Shot] = []
        self.stride = 1  # steps from one kept picture to the next
        self.returns: list[tuple[float, ...]] = []  # of each episode, by behavior; the last one may go on
        self.steps = 0
        self.ended = 0  # episodes
        self.announced = area.announced
        self.spaces, self.behavior, self.render, self.close = area.spaces, area.behavior, area.render, area.close
        self._area = area
        self._address = address
        self._behaviors = behaviors
        self._behavior_of: dict[Any, str] = {}  # of the agents of this episode
        self.earned: dict[str, float] = {}  # in this episode so far, by behavior
        self._clock = 0

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> AreaOutcome:
        """Begin an episode."""
        outcome = self._area.reset(seed, options)
        self.earned = dict.fromkeys(self.earned, 0.0)
        self._behavior_of = {}
        self._behaviors.announce(expected(self._area, outcome))
        self._meet(outcome)
        self._clock = 0
        self.returns.append(tuple(self.earned.values()))
        self._shoot(ends=False)
        return outcome

    def step(self, actions: Mapping[Any, Any]) -> AreaOutcome:
        """Step the area."""
        outcome = self._area.step(actions)
        self.steps, self._clock = self.steps + 1, self._clock + 1
        self._meet(outcome)
        for agent, reward in outcome.reward.items():
            if agent in self._behavior_of:
                self.earned[self._behavior_of[agent]] += float(np.asarray(reward).reshape(-1)[0])
        self.returns[-1] = tuple(self.earned.values())
        self.ended += outcome.over
        self._shoot(ends=outcome.over)
        return outcome

    def _meet(self, outcome: AreaOutcome) -> None:
        for agent in outcome.living:
            if agent not in self._behavior_of:
                name = self._behaviors.kind(described(self._area, agent)).name
                self._behavior_of[agent] = name
                self.earned.setdefault(name, 0.0)

    def _shoot(self, *, ends: bool) -> None:
        if self._clock % self.stride and not ends:
            return
        image = self._area.render()
        if image is None or isinstance(image, bool | np.bool_):
            raise EnvironmentFailure(
                f"{self._address}: its render gives {image} in place of a picture, so there is nothing to film; an "
                "environment that can be filmed offers render_mode rgb_array"
            )
        picture = Image.fromarray(checked_picture(image, self._address, "mend it, or watch another environment"))
        picture.thumbnail((LONGEST, LONGEST), Image.Resampling.BOX)
        self.shots.append(Shot(picture, len(self.returns), self._clock, self.returns[-1], ends))
        if sum(not shot.ends for shot in self.shots) > FRAMES:
            self.stride *= 2
            self.shots = [shot for shot in self.shots if shot.clock % self.stride == 0 or shot.ends]
