"""Exploiters in the host loop: learners that only learn to beat a main agent.

For the rules see `self_play/league.py`. A league of N has N workers: in the first the main agent plays as without a
league, in each of the others one exploiter. The exploiter plays on the main agent's learning team, against the newest
main agent. It is a behavior like any other, but its main agent's checkpoints hold it.
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
    """Exploiters of all main agents of a run, who play the `game`."""

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
        """Add a main agent's team that is seen for the first time; `kept`: the exploiters' saved `state`, or empty."""
        for number, exploiter in enumerate(main.exploiters):
            state = kept[number] if kept else None
            if exploiter.name not in self.standings:
                elo = self._game.sides[main.name].settings.initial_elo
                self.standings[exploiter.name] = Standing(elo) if state is None else Standing(**state["standing"])
            playing = None if state is None else state["playing"].get(str(team))
            self._ghosts.restore(_name(exploiter, team), main.name, playing, latest, read)

    def route(self, main: Behavior, behavior_id: str, team: int) -> None:
        """Route a team, in each exploiter's worker, to the exploiter if it is the learning team, else to a snapshot."""
        for worker, exploiter in enumerate(main.exploiters, start=1):
            learns = self._game.learns(main.name, team)
            policy = exploiter.name if learns else _name(exploiter, team)
            self._behaviors.policies.route(behavior_id, policy, worker)

    def turn(
        self,
        over: Mapping[str, Sequence[EpisodeRecords]],
        learned: Collection[str],
        changed: bool,
        foes: Mapping[str, Sequence[Foe]],
    ) -> bool:
        """Book one message for the exploiters, after the main agents did. Returns whether all have to begin anew.

        Args:
          over: episodes that ended, by policy.
          learned: names of the behaviors that have been updated.
          changed: whether the learning team has changed.
          foes: teams that a behavior's main agent played against in these episodes, by behavior.
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
                joined = sum(self.standings[exploiter.name].joined for exploiter in main.exploiters)
                self._recorder.told(name, LEAGUE_JOINED, joined)
        return left

    def state(self, main: Behavior, kept: Callable[[Weights], str]) -> list[dict[str, Any]]:
        """Return the league state of each exploiter, without its train state, as plain JSON values."""
        teams = self._game.sides[main.name].teams
        return [
            {
                "standing": asdict(self.standings[exploiter.name]),
                "playing": {str(team): self._ghosts.state(_name(exploiter, team), kept) for team in teams},
            }
            for exploiter in main.exploiters
        ]

    def _book(self, side: Side, number: int, over: Mapping[str, Sequence[EpisodeRecords]], foes: Sequence[Foe]) -> None:
        """Book the games of the exploiter with this number against the main agents of its worker."""
        exploiter = self._behaviors[side.name].exploiters[number].name
        ghosts = [_name(self._behaviors[foe.side.name].exploiters[number], foe.team) for foe in foes]
        ends = [games_of(over.get(ghost, ())) for ghost in ghosts]
        for pay in payments(side.settings, games_of(over.get(exploiter, ())), ends) if foes else ():
            self.standings[exploiter].played(rating.results(*pay), [foe.side.pool.elo for foe in foes])

    def _play(self, side: Side, main: Behavior, exploiter: Behavior, changed: bool) -> None:
        """Give an exploiter's opponents the newest main agent, where `swap_steps` or a changed team asks for it."""
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
        """Let an updated exploiter, if it is due, join its main agent's pool and begin anew; return whether it did."""
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
    """Return the name of the frozen main agent that plays a team in this exploiter's worker."""
    return f"{exploiter.name}?team={team}"
