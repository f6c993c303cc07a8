"""Self-play of all behaviors together: the learning team, the opponents, and the ratings. Imports no JAX.

The order of events is that of ML-Agents' ghost trainers; `Game.turn` is one step of one of them. `Schedule` says when a
snapshot, another opponent and another learning team are due, `Rotation` which team learns next.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from jaxrl.rollout.booking.episodes import GameEnd
from jaxrl.settings.behavior import SelfPlaySettings
from jaxrl.training.self_play import rating
from jaxrl.training.self_play.pool import LATEST, Pool, Snapshot


@dataclass
class Schedule:
    """Clocks of one behavior. An event is due when MORE than its number of steps have passed, as in ML-Agents."""

    settings: SelfPlaySettings
    last_save: int = 0  # trainer step
    last_change: int = 0  # trainer step
    last_swap: int = 0  # ghost step

    def save_due(self, step: int) -> bool:
        """Return whether a snapshot is due at this trainer step; if so, restart its clock."""
        due = step - self.last_save > self.settings.save_steps
        self.last_save = step if due else self.last_save
        return due

    def change_due(self, step: int) -> bool:
        """Return whether another learning team is due at this trainer step; if so, restart its clock."""
        due = step - self.last_change > self.settings.team_change
        self.last_change = step if due else self.last_change
        return due

    def swap_due(self, ghost_step: int, *, changed: bool) -> bool:
        """Return whether new opponents are due, by ghost step or as the team `changed`; if so, restart their clock."""
        due = changed or ghost_step - self.last_swap > self.settings.swap_steps
        self.last_swap = ghost_step if due else self.last_swap
        return due


class Rotation:
    """Learning team of all behaviors: teams take turns in the order in which they were seen first."""

    def __init__(self, learning: int | None = None, queue: Iterable[int] = ()) -> None:
        self.learning = learning  # None: no team yet
        self.queue = deque(queue)

    def join(self, team: int) -> None:
        """Add a team that is seen for the first time: the first one learns, others wait for their turn."""
        if self.learning is None:
            self.learning = team
        elif team != self.learning and team not in self.queue:
            self.queue.append(team)

    def change(self) -> bool:
        """Move the learning team to the end of the queue, let the first one learn; return whether it is another."""
        assert self.learning is not None
        before = self.learning
        self.queue.append(before)
        self.learning = self.queue.popleft()
        return self.learning != before


class Played(NamedTuple):
    """Steps and games of one team since the last `Game.turn`."""

    steps: int = 0  # decisions with their outcome
    games: Sequence[GameEnd] = ()  # one per agent whose game has ended


NOT_PLAYED = Played()


class Sent(NamedTuple):
    """Weights that a team must act with from now on."""

    team: int
    weights: Any


class Turn(NamedTuple):
    """Result of `Game.turn` for one behavior."""

    sent: list[Sent]
    changed: bool  # another team learns from now on: all episodes begin anew
    rated: list[Rated]  # games of the learner


class Rated(NamedTuple):
    """Game of the learner, as counted for one of its agents."""

    elo: float  # the learner's rating after it
    decided: bool  # False if all sides won, all lost or all drew


class Foe(NamedTuple):
    """A team that plays against the learner."""

    side: Side
    team: int

    @property
    def number(self) -> int:
        """Number of the snapshot that plays it, or LATEST."""
        return self.side.pool.opponents[self.team]

    @property
    def elo(self) -> float:
        """Rating of the opponent that plays it."""
        pool = self.side.pool
        return pool.ratings[pool.slot(self.number)]


@dataclass
class Side:
    """Behavior: its teams, the pool that they share, and its clocks."""

    name: str
    settings: SelfPlaySettings
    pool: Pool
    schedule: Schedule
    latest: Any  # newest weights of the learner
    learning: int | None  # the learning team as this side knows it: it notices a change at its next turn
    teams: list[int] = field(default_factory=list)  # in the order in which they were seen first
    ghost_step: int = 0  # decisions of opponents, which are not learned from


class Game:
    """Sides and the rotation of their teams.

    Args:
      random: generator that draws opponents.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self.rotation = Rotation()
        self.sides: dict[str, Side] = {}
        self.turns = 0  # calls of `turn` so far, for all sides
        self._random = random

    def join(
        self, name: str, team: int, settings: SelfPlaySettings, latest: Any, *, step: int = 0, elo: float | None = None
    ) -> None:
        """Add a team of behavior `name` that is seen for the first time; it begins with `latest`.

        A behavior's first team makes the side, whose pool begins with `latest` at trainer step `step`.

        Args:
          elo: initial rating of all; None: the settings' initial_elo.
        """
        self.rotation.join(team)
        side = self.sides.get(name)
        if side is None:
            pool = Pool(settings.window, settings.initial_elo if elo is None else elo)
            pool.save(latest, step)
            schedule = Schedule(settings, last_save=step, last_change=step)
            side = self.sides[name] = Side(name, settings, pool, schedule, latest, self.rotation.learning)
        if team not in side.teams:
            side.teams.append(team)
            side.pool.opponents[team] = 0 if side.latest is side.pool.snapshots[0].weights else LATEST

    def learns(self, name: str, team: int) -> bool:
        """Return whether this team of behavior `name` is the learning team, as its side knows it."""
        side = self.sides[name]
        return team == side.learning and team in side.teams

    def turn(self, name: str, played: Mapping[tuple[str, int], Played], step: int, trained: Any = None) -> Turn:
        """Update one behavior's side after a message; call it in the order in which behaviors were seen first.

        Args:
          played: steps and games since the last turn, by behavior and team.
          step: present trainer step, including the learning team's new decisions.
          trained: the new weights of the learner if it has learned since the last turn.
        """
        side, rated = self.sides[name], []
        self.turns += 1
        for team in side.teams:
            part = played.get((name, team), NOT_PLAYED)
            if team == side.learning:
                rated = self._rate_all(side, part.games, played)
            else:
                side.ghost_step += part.steps
        changed = self._change(side, step)
        sent = self._newest(side, trained)
        if side.schedule.save_due(step):
            side.pool.save(side.latest, step)
        new = self.rotation.learning
        if side.schedule.swap_due(side.ghost_step, changed=side.learning != new):
            side.learning = new
            sent += [Sent(team, self._drawn(side, team)) for team in side.teams if team != new]
        return Turn(sent, changed, rated)

    def foes(self, side: Side) -> list[Foe]:
        """Return the teams that play against the learner of a side; of a team of several behaviors, the side's own."""
        return [
            Foe(home, team)
            for home in self.sides.values()
            for team in home.teams
            if team != side.learning and (home is side or team not in side.teams)
        ]

    def state(self, name: str, kept: Callable[[Any], Any]) -> dict[str, Any]:
        """Return all data that a side's turns depend on, except its latest weights, as plain JSON values.

        `kept`: weights → the value that represents them.
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
            "opponents": [[team, number] for team, number in pool.opponents.items()],
            "ratings": list(pool.ratings),
            "met": [list(score) for score in pool.met],
            "snapshots": [{"step": item.step, "weights": kept(item.weights)} for item in pool.snapshots],
        }

    def restore(
        self, name: str, settings: SelfPlaySettings, state: Mapping[str, Any], latest: Any, found: Callable[[Any], Any]
    ) -> None:
        """Restore a side from a `state`, and the rotation too if it is newer than those of the sides restored before.

        `found`: the value that `kept` returned → the weights.
        """
        pool = Pool(settings.window, settings.initial_elo)
        snapshots = [Snapshot(item["step"], found(item["weights"])) for item in state["snapshots"]]
        pool.restore(snapshots, state["ratings"], state["saved"], dict(state["opponents"]), state.get("met", ()))
        side = Side(name, settings, pool, Schedule(settings, *state["last"]), latest, state["learning"])
        side.teams, side.ghost_step = list(state["teams"]), state["ghost_step"]
        self.sides[name] = side
        if state["turns"] >= self.turns:
            self.turns = state["turns"]
            self.rotation = Rotation(state["rotation"]["learning"], state["rotation"]["queue"])

    def _rate_all(self, side: Side, games: Sequence[GameEnd], played: Mapping[tuple[str, int], Played]) -> list[Rated]:
        """Rate games of a side's learner. Without another team nothing changes (in ML-Agents, a game against 0)."""
        foes = self.foes(side) if games else []
        if not foes:
            return [Rated(side.pool.elo, True) for _ in games]
        ends = [played.get((foe.side.name, foe.team), NOT_PLAYED).games for foe in foes]
        return [self._rate(side, foes, *pay) for pay in payments(side.settings, games, ends)]

    def _rate(self, side: Side, foes: Sequence[Foe], paid: float, others: Sequence[Mapping[float, int]]) -> Rated:
        """Rate a game of a side's learner against each other team: its opponent loses what the learner gains.

        Args:
          paid: reward of the learner that decides the game.
          others: by team, deciding reward → number of its agents with it whose games ended with this one.
        """
        results, learner, gained = rating.results(paid, others), side.pool.elo, 0.0
        scores: dict[tuple[str, int], list[float]] = {}
        changes = [rating.change(learner, foe.elo, result) for foe, result in zip(foes, results, strict=True)]
        for foe, change, result in zip(foes, changes, results, strict=True):
            pool, number = foe.side.pool, foe.number
            pool.ratings[pool.slot(number)] -= change
            gained += change
            scores.setdefault((foe.side.name, number), []).append(result)
        for (name, number), values in scores.items():  # a snapshot that plays several teams has played once
            self.sides[name].pool.played(number, sum(values) / len(values))
        side.pool.ratings[LATEST] += gained
        return Rated(side.pool.elo, rating.is_decided(paid, others))

    def _change(self, side: Side, step: int) -> bool:
        """Let the next team learn if the turn of a side's team is over; return whether the learning team changed.

        Behaviors of one team end its turn together: the clocks of the others restart.
        """
        if side.learning in side.teams and side.learning != self.rotation.learning:
            side.schedule.last_change = step
            return False
        return side.schedule.change_due(step) and self.rotation.change()

    def _newest(self, side: Side, trained: Any) -> list[Sent]:
        """Return the learner's weights for the learning team, if they or the team are new."""
        new = self.rotation.learning
        if trained is not None:
            side.latest = trained
        if new not in side.teams or (trained is None and side.learning == new):
            return []
        assert new is not None
        return [Sent(new, side.latest)]

    def _drawn(self, side: Side, team: int) -> Any:
        settings, pool = side.settings, side.pool
        power = settings.pfsp_power if settings.opponent_sampling == "pfsp" else None
        number = pool.draw(team, settings.play_against_latest_model_ratio, self._random, power)
        return side.latest if number == LATEST else pool.snapshots[pool.slot(number)].weights


def payments(
    settings: SelfPlaySettings, games: Sequence[GameEnd], others: Sequence[Sequence[GameEnd]]
) -> list[tuple[float, list[Mapping[float, int]]]]:
    """Return for each game of a learner the rewards that decide it: the learner's, and those of other teams.

    Args:
      others: by team, games that ended with the same message; those of the same worker count.

    Returns:
      The arguments of `rating.results` for each game.
    """
    worth = (lambda end: end.total) if settings.result == "return" else (lambda end: end.last)
    paid: list[dict[int, Counter[float]]] = [defaultdict(Counter) for _ in others]
    for team, ends in zip(paid, others, strict=True):
        for end in ends:
            team[end.worker][worth(end)] += 1
    return [(worth(game), [team[game.worker] for team in paid]) for game in games]
