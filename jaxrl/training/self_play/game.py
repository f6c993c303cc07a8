"""All behaviors that play against earlier selves as one: who learns, who plays, and what everybody is rated. No JAX.

The order of events is that of ML-Agents' ghost trainers; `Game.turn` is one of them at work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxrl.settings.behavior import SelfPlaySettings
from jaxrl.training.self_play import rating
from jaxrl.training.self_play.pool import LATEST, Draws, Pool
from jaxrl.training.self_play.schedule import Rotation, Schedule


class Played(NamedTuple):
    """What one team has done since the last turn."""

    steps: int = 0  # decisions with their outcome
    last_rewards: tuple[float, ...] = ()  # own and group reward of the last step, per agent whose game is decided


class Sent(NamedTuple):
    """A team is to act with these weights from now on."""

    team: int
    weights: Any


@dataclass
class Side:
    """One behavior: its teams, the pool that they share, and its clocks."""

    settings: SelfPlaySettings
    pool: Pool
    schedule: Schedule
    latest: Any  # newest weights of the learner
    learning: int | None  # the learning team as this side knows it: it learns of a change at its next turn
    teams: list[int] = field(default_factory=list)  # in the order in which they were seen first
    ghost_step: int = 0  # decisions that nobody learned from


class Game:
    """Sides and the rotation of their teams.

    Args:
      random: what opponents are drawn with.
    """

    def __init__(self, random: Draws) -> None:
        self.rotation = Rotation()
        self.sides: dict[str, Side] = {}
        self._random = random
        self._home: dict[int, Side] = {}  # team → the side that it belongs to

    def join(
        self, name: str, team: int, settings: SelfPlaySettings, latest: Any, *, step: int = 0, elo: float | None = None
    ) -> None:
        """A team of behavior `name` is seen for the first time; all of a behavior begin with `latest`.

        The first one makes the side, whose pool begins with `latest` at trainer step `step`.

        Args:
          elo: what everybody is rated; None: the settings' initial_elo.
        """
        self.rotation.join(team)
        side = self.sides.get(name)
        if side is None:
            pool = Pool(settings.window, settings.initial_elo if elo is None else elo)
            pool.save(latest, step)
            schedule = Schedule(settings, last_save=step, last_change=step)
            side = self.sides[name] = Side(settings, pool, schedule, latest, self.rotation.learning)
        if team not in side.teams:
            side.teams.append(team)
        self._home.setdefault(team, side)

    def learns(self, name: str, team: int) -> bool:
        """Whether the experience of this team of behavior `name` is learned from now."""
        side = self.sides[name]
        return team == side.learning and team in side.teams

    def turn(self, name: str, played: Mapping[int, Played], step: int, trained: Any = None) -> tuple[list[Sent], bool]:
        """One behavior takes its turn after every message; behaviors in the order in which they were seen first.

        Args:
          played: by team, what it has done since the last turn.
          step: trainer step now, with what the learning team has done.
          trained: the new weights of the learner if it has learned since the last turn.

        Returns who is to act with other weights, and whether the learning team changes: all episodes begin anew then.
        """
        side = self.sides[name]
        for team in side.teams:
            part = played.get(team, Played())
            if team != side.learning:
                side.ghost_step += part.steps
                continue
            for reward in part.last_rewards:
                self.rate(side, rating.result(reward))
        changed = side.schedule.change_due(step) and self.rotation.change()
        sent = self._newest(side, trained)
        if side.schedule.save_due(step):
            side.pool.save(side.latest, step)
        new = self.rotation.learning
        if side.schedule.swap_due(side.ghost_step, changed=side.learning != new):
            side.learning = new
            sent += self.swap(side)
        return sent, changed

    def rate(self, side: Side, result: float) -> None:
        """The learner of a side has finished a game. Everybody of the other teams loses what it gains."""
        others = [home for team, home in self._home.items() if team != self.rotation.learning]
        opponent = others[-1].pool.opponent_elo if others else 0.0
        change = rating.change(side.pool.elo, opponent, result)
        for home in others:
            home.pool.ratings[home.pool.opponent] -= change
        side.pool.ratings[LATEST] += change

    def swap(self, side: Side) -> list[Sent]:
        """Each team that does not learn gets an opponent of its own draw; the last draw is the one that is rated."""
        return [Sent(team, self._drawn(side)) for team in side.teams if team != side.learning]

    def _newest(self, side: Side, trained: Any) -> list[Sent]:
        """The learner's weights go to the team that learns, if they or the team are new."""
        new, sent = self.rotation.learning, list[Sent]()
        if trained is not None:
            side.latest = trained
            if side.learning == new and new in side.teams:
                sent.append(Sent(new, side.latest))
        if side.learning != new and new in side.teams:
            sent.append(Sent(new, side.latest))
        return sent

    def _drawn(self, side: Side) -> Any:
        slot = side.pool.draw(side.settings.play_against_latest_model_ratio, self._random)
        return side.latest if slot == LATEST else side.pool.snapshots[slot].weights
