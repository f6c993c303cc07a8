"""All behaviors that play against earlier selves as one: who learns, who plays, and what everybody is rated. No JAX.

The order of events is that of ML-Agents' ghost trainers; `Game.turn` is one of them at work. `Schedule` says when a
snapshot, another opponent and another learning team are due, `Rotation` whose turn to learn comes next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from jaxrl.settings.behavior import SelfPlaySettings
from jaxrl.training.self_play import rating
from jaxrl.training.self_play.pool import LATEST, Pool, Snapshot

QUEUE = 10
"""Teams that wait for their turn at most, as in ML-Agents; with more the one that waits longest is forgotten."""


@dataclass
class Schedule:
    """The clocks of one behavior. Something is due when MORE than its number of steps have passed, as in ML-Agents."""

    settings: SelfPlaySettings
    last_save: int = 0  # trainer step
    last_change: int = 0  # trainer step
    last_swap: int = 0  # ghost step

    def save_due(self, step: int) -> bool:
        """A snapshot, at this trainer step; if so, the next is counted from here."""
        due = step - self.last_save > self.settings.save_steps
        self.last_save = step if due else self.last_save
        return due

    def change_due(self, step: int) -> bool:
        """The end of the learning team's turn, at this trainer step; if so, the next is counted from here."""
        due = step - self.last_change > self.settings.team_change
        self.last_change = step if due else self.last_change
        return due

    def swap_due(self, ghost_step: int, *, changed: bool) -> bool:
        """New opponents: at this ghost step, or because the learning team has `changed`; counted from here then."""
        due = changed or ghost_step - self.last_swap > self.settings.swap_steps
        self.last_swap = ghost_step if due else self.last_swap
        return due


class Rotation:
    """Which team of all behaviors learns: they take turns in the order in which they were seen first."""

    def __init__(self, learning: int | None = None, queue: Iterable[int] = ()) -> None:
        self.learning = learning  # None: no team yet
        self.queue = deque(queue, maxlen=QUEUE)

    def join(self, team: int) -> None:
        """A team that is seen for the first time: it learns if nobody does, and waits for its turn otherwise."""
        if self.learning is None:
            self.learning = team
        elif team != self.learning and team not in self.queue:
            self.queue.append(team)

    def change(self) -> bool:
        """The learning team goes to the end of the queue and the first of it learns; whether it is another one."""
        assert self.learning is not None
        before = self.learning
        self.queue.append(before)
        self.learning = self.queue.popleft()
        return self.learning != before


class Played(NamedTuple):
    """What one team has done since the last turn."""

    steps: int = 0  # decisions with their outcome
    last_rewards: Sequence[float] = ()  # own and group reward of the last step, per agent whose game is decided


class Sent(NamedTuple):
    """A team is to act with these weights from now on."""

    team: int
    weights: Any


class Turn(NamedTuple):
    """What follows from the turn of one behavior."""

    sent: list[Sent]
    changed: bool  # another team learns from now on: all episodes begin anew
    elos: list[float]  # the learner's rating after each of its games


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

    def __init__(self, random: np.random.Generator) -> None:
        self.rotation = Rotation()
        self.sides: dict[str, Side] = {}
        self.turns = 0  # so far, of all sides
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

    def turn(self, name: str, played: Mapping[int, Played], step: int, trained: Any = None) -> Turn:
        """One behavior takes its turn after every message; behaviors in the order in which they were seen first.

        Args:
          played: by team, what it has done since the last turn.
          step: trainer step now, with what the learning team has done.
          trained: the new weights of the learner if it has learned since the last turn.
        """
        side, elos = self.sides[name], list[float]()
        self.turns += 1
        for team in side.teams:
            part = played.get(team, Played())
            if team != side.learning:
                side.ghost_step += part.steps
                continue
            elos += [self._rate(side, rating.result(reward)) for reward in part.last_rewards]
        changed = side.schedule.change_due(step) and self.rotation.change()
        sent = self._newest(side, trained)
        if side.schedule.save_due(step):
            side.pool.save(side.latest, step)
        new = self.rotation.learning
        if side.schedule.swap_due(side.ghost_step, changed=side.learning != new):
            side.learning = new
            sent += [Sent(team, self._drawn(side)) for team in side.teams if team != new]
        return Turn(sent, changed, elos)

    def facing(self) -> Side | None:
        """The side whose team plays against the learning one, the last of several; None: there is no other team."""
        others = [home for team, home in self._home.items() if team != self.rotation.learning]
        return others[-1] if others else None

    def state(self, name: str, kept: Callable[[Any], Any]) -> dict[str, Any]:
        """All that the turns of a side depend on, but for its latest weights, as plain JSON values.

        `kept`: what stands for weights.
        """
        side = self.sides[name]
        pool, clock = side.pool, side.schedule
        return {
            "turns": self.turns,
            "rotation": {"learning": self.rotation.learning, "queue": list(self.rotation.queue)},
            "teams": list(side.teams),
            "learning": side.learning,
            "ghost_step": side.ghost_step,
            "last": [clock.last_save, clock.last_change, clock.last_swap],
            "saved": pool.saved,
            "opponent": pool.opponent,
            "ratings": list(pool.ratings),
            "met": [list(of) for of in pool.met],
            "snapshots": [{"step": each.step, "weights": kept(each.weights)} for each in pool.snapshots],
        }

    def restore(
        self, name: str, settings: SelfPlaySettings, state: Mapping[str, Any], latest: Any, found: Callable[[Any], Any]
    ) -> None:
        """A side goes on from a `state`; the rotation as well, if that is newer than those of the sides before.

        `found`: the weights for what `kept` has given.
        """
        pool = Pool(settings.window, settings.initial_elo)
        snapshots = [Snapshot(each["step"], found(each["weights"])) for each in state["snapshots"]]
        pool.restore(snapshots, state["ratings"], state["saved"], state["opponent"], state.get("met", ()))
        side = Side(settings, pool, Schedule(settings, *state["last"]), latest, state["learning"])
        side.teams, side.ghost_step = list(state["teams"]), state["ghost_step"]
        self.sides[name] = side
        for team in side.teams:
            self._home.setdefault(team, side)
        if state["turns"] >= self.turns:
            self.turns = state["turns"]
            self.rotation = Rotation(state["rotation"]["learning"], state["rotation"]["queue"])

    def _rate(self, side: Side, result: float) -> float:
        """The learner of a side has finished a game; its rating. Everybody of the other teams loses what it gains.

        Nothing changes where there is no other team (ML-Agents rates that as a game against 0).
        """
        foe = self.facing()
        if foe is not None:
            change = rating.change(side.pool.elo, foe.pool.opponent_elo, result)
            for team, home in self._home.items():
                if team != self.rotation.learning:
                    home.pool.ratings[home.pool.opponent] -= change
                    home.pool.played(result)
            side.pool.ratings[LATEST] += change
        return side.pool.elo

    def _newest(self, side: Side, trained: Any) -> list[Sent]:
        """The learner's weights go to the team that learns, if they or the team are new."""
        new = self.rotation.learning
        if trained is not None:
            side.latest = trained
        if new not in side.teams or (trained is None and side.learning == new):
            return []
        assert new is not None
        return [Sent(new, side.latest)]

    def _drawn(self, side: Side) -> Any:
        settings = side.settings
        power = settings.pfsp_power if settings.opponent_sampling == "pfsp" else None
        slot = side.pool.draw(settings.play_against_latest_model_ratio, self._random, power)
        return side.latest if slot == LATEST else side.pool.snapshots[slot].weights
