"""Exploiters in the host loop: learners beside a main agent, which learn to beat it and nothing else.

The rules are those of `self_play/league.py`. A league of N is N workers: in the first the main agent plays as without
a league, in each of the others one exploiter. It learns on the side that the main agent learns on, by the same turns,
against the newest main agent. It is a behavior as any other, but its main agent's checkpoints hold it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import jax

from jaxrl.artifacts.metrics.statistics import LEAGUE_JOINED, LEAGUE_SHARE
from jaxrl.rollout.booking.episodes import EpisodeRecords, games_of
from jaxrl.settings.behavior import LeagueSettings
from jaxrl.training.host.behavior import Behavior
from jaxrl.training.host.behaviors import Behaviors
from jaxrl.training.host.ghosts import Ghosts, Weights
from jaxrl.training.host.policies import copied
from jaxrl.training.host.programs import key_of
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.self_play import rating
from jaxrl.training.self_play.game import Foe, Game, Side, payments
from jaxrl.training.self_play.league import Standing, due

log = logging.getLogger(__name__)


class League:
    """The exploiters of all main agents of a run, who play the `game`."""

    def __init__(self, seed: int, recorder: HostRecorder, behaviors: Behaviors, game: Game, ghosts: Ghosts) -> None:
        self._seed = seed
        self._recorder = recorder
        self._behaviors = behaviors
        self._game = game
        self._ghosts = ghosts
        self.standings: dict[str, Standing] = {}  # by exploiter

    def join(
        self,
        main: Behavior,
        team: int,
        latest: Weights,
        kept: Sequence[Mapping[str, Any]],
        read: Callable[[str], Weights],
    ) -> None:
        """A team of a main agent is seen for the first time; `kept`: a `state` of exploiters that go on, or none."""
        for number, exploiter in enumerate(main.exploiters):
            state = kept[number] if kept else None
            if exploiter.name not in self.standings:
                elo = self._game.sides[main.name].settings.initial_elo
                self.standings[exploiter.name] = Standing(elo) if state is None else Standing(**state["standing"])
            playing = None if state is None else state["playing"].get(str(team))
            self._ghosts.restore(_name(exploiter, team), main.name, playing, latest, read)

    def route(self, main: Behavior, behavior_id: str, team: int) -> None:
        """Who acts for a team in the workers of exploiters: the exploiter where its main agent learns, else a ghost."""
        for place, exploiter in enumerate(main.exploiters, start=1):
            learns = self._game.learns(main.name, team)
            policy = exploiter.name if learns else _name(exploiter, team)
            self._behaviors.policies.route(behavior_id, policy, place)

    def turn(
        self,
        over: Mapping[str, Sequence[EpisodeRecords]],
        learned: Collection[str],
        changed: bool,
        foes: Mapping[str, Sequence[Foe]],
    ) -> bool:
        """What follows from one message; after the turns of the main agents. True: all have to begin anew.

        Args:
          over: by policy, the episodes that ended.
          learned: names of those that have been updated.
          changed: another team learns from now on.
          foes: by behavior, teams whose main agents were met in these episodes, before that.
        """
        left = False
        for name, side in self._game.sides.items():
            main = self._behaviors[name]
            for number, exploiter in enumerate(main.exploiters):
                self._book(side, number, over, foes[name])
                self._play(side, main, exploiter, changed)
                if exploiter.name in learned:
                    left |= self._learned(side, main, exploiter)
            if main.exploiters and name in learned:
                joined = sum(self.standings[of.name].joined for of in main.exploiters)
                self._recorder.told(name, LEAGUE_JOINED, joined)
        return left

    def state(self, main: Behavior, kept: Callable[[Weights], str]) -> list[dict[str, Any]]:
        """Of each exploiter all that its turns depend on, but for what it has learned, as plain JSON values."""
        teams = self._game.sides[main.name].teams
        return [
            {
                "standing": asdict(self.standings[of.name]),
                "playing": {str(team): self._ghosts.state(_name(of, team), kept) for team in teams},
            }
            for of in main.exploiters
        ]

    def _book(self, side: Side, number: int, over: Mapping[str, Sequence[EpisodeRecords]], foes: Sequence[Foe]) -> None:
        """Book the games of an exploiter of this number against the main agents of its workers."""
        exploiter = self._behaviors[side.name].exploiters[number].name
        ghosts = [_name(self._behaviors[foe.side.name].exploiters[number], foe.team) for foe in foes]
        ends = [games_of(over.get(ghost, ())) for ghost in ghosts]
        for pay in payments(side.settings, games_of(over.get(exploiter, ())), ends) if foes else ():
            self.standings[exploiter].played(rating.results(*pay), [foe.side.pool.elo for foe in foes])

    def _play(self, side: Side, main: Behavior, exploiter: Behavior, changed: bool) -> None:
        """Choose whom an exploiter meets from now on."""
        standing = self.standings[exploiter.name]
        if not main.unfinished():
            exploiter.stop()
        ghosts = [_name(exploiter, team) for team in side.teams]
        standing.ghost_step += sum(map(self._ghosts.steps, ghosts))
        if changed or standing.ghost_step - standing.swapped > side.settings.swap_steps:
            standing.swapped = standing.ghost_step
            for ghost in ghosts:
                self._ghosts.send(ghost, side.latest)

    def _learned(self, side: Side, main: Behavior, exploiter: Behavior) -> bool:
        """It has learned from all that it has met; whether it leaves its policy to its main agent and begins anew."""
        own, standing = side.settings.league, self.standings[exploiter.name]
        assert own is not None
        if standing.games > 0:
            self._recorder.told(exploiter.name, LEAGUE_SHARE, standing.score / standing.games)
        left = due(own, standing.games, standing.score, exploiter.step - standing.begun)
        if left:
            side.pool.save(Weights(copied(exploiter.state.policy)), main.step, standing.elo)
            log.info(
                "%s: joins the pool of %s at step %d: %.1f of its last %.1f games scored, ELO %.3f. It begins anew.",
                exploiter.name, main.name, main.step, standing.score, standing.games, standing.elo,
            )  # fmt: skip
            standing.leave(exploiter.step, side.pool.elo if own.begin == "main" else side.settings.initial_elo)
            self._renew(own, main, exploiter, standing.joined)
        self._recorder.told(exploiter.name, LEAGUE_JOINED, standing.joined)
        return left

    def _renew(self, own: LeagueSettings, main: Behavior, exploiter: Behavior, number: int) -> None:
        key = jax.random.fold_in(key_of(self._seed, exploiter.name), number)
        exploiter.renew(key, main.state if own.begin == "main" else None)


def _name(exploiter: Behavior, team: int) -> str:
    """What the frozen main agent of a team is called where this exploiter plays."""
    return f"{exploiter.name}?team={team}"
