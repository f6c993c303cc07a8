"""Self-play in the host loop: teams that do not learn follow frozen policies, which the game of all sides chooses.

Only routing happens here: a learner is a behavior like any other, an opponent a frozen policy that uses its compiled
programs. Another opponent is another set of parameters of the same shapes, so nothing is compiled again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jaxrl.algorithms.interface import PolicyState
from jaxrl.artifacts.checkpoint import earlier
from jaxrl.artifacts.checkpoint.document import CheckpointError, read_info
from jaxrl.artifacts.checkpoint.loop import SELF_PLAY
from jaxrl.artifacts.names import behavior_name, team_of
from jaxrl.artifacts.status import ELO
from jaxrl.rollout.booking.episodes import EpisodeRecords, games_of
from jaxrl.settings import RunSettings, SelfPlaySettings
from jaxrl.training.host.behavior import Behavior
from jaxrl.training.host.behaviors import Behaviors
from jaxrl.training.host.ghosts import Ghosts, Weights
from jaxrl.training.host.league import League
from jaxrl.training.host.policies import copied
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.saver import Snapshot
from jaxrl.training.self_play.game import Game, Played
from jaxrl.training.self_play.undecided import Undecided
from jaxrl.types import EnvMessage

log = logging.getLogger(__name__)

PATIENCE = 100
"""Messages after which a warning says that there is no second team."""


class Opponents:
    """Game of all behaviors with `self_play`. Does nothing without such behaviors, or with inference."""

    def __init__(self, settings: RunSettings, recorder: HostRecorder, behaviors: Behaviors) -> None:
        self._random = np.random.default_rng([settings.env_settings.seed, 21])
        self.game = Game(self._random)
        self._recorder = recorder
        self._behaviors = behaviors
        self._plays = not settings.checkpoint_settings.inference
        self._policy: dict[str, str] = {}  # behavior id → the frozen policy of its team
        self._ghosts = Ghosts(behaviors.policies)
        self.league = League(settings.env_settings.seed, recorder, behaviors, self.game, self._ghosts)
        self._undecided: dict[str, Undecided] = {}  # by behavior
        self._messages: int | None = 0  # messages with one team only; None: a second came, or the warning was logged
        recorder.amend = self.amend

    def meet(self, results: Sequence[EnvMessage]) -> None:
        """Register teams that are seen for the first time.

        Raises CheckpointError if a resumed run's pool is missing or damaged.
        """
        for behavior_id in (name for result in results for name in result.new_specs):
            behavior = self._behaviors.get(behavior_name(behavior_id))  # None: its team is not complete yet
            settings = None if behavior is None else behavior.settings.self_play
            if self._plays and behavior is not None and settings is not None and behavior_id not in self._policy:
                self._join(behavior, settings, behavior_id)
        if self.game.sides and self._messages is not None:
            self._miss(len(results))

    def turn(self, learned: Collection[str]) -> bool:
        """Update opponents, snapshots and ratings after one loop step. True: the learning team changed, reset all.

        Args:
          learned: names of behaviors that have been updated.
        """
        if not self.game.sides:
            return False
        over, changed = self._behaviors.policies.over, False
        foes = {name: self.game.foes(side) for name, side in self.game.sides.items()}
        played = {
            (name, team): self._played(name, team, over)
            for name, side in self.game.sides.items()
            for team in side.teams
        }
        for name in self.game.sides:
            changed |= self._take_turn(name, played, Weights(self._policy_of(name)) if name in learned else None)
        if changed:
            self._follow()
        left = self.league.turn(over, learned, changed, foes)
        if changed:
            self._route()
            log.info(
                "Self-play: team %s learns from here on. All environments begin anew.", self.game.rotation.learning
            )
        return changed or left

    def takes_part(self, name: str) -> bool:
        """Return whether a behavior's learner acts now: not while only a behavior that it plays against learns."""
        side = self.game.sides.get(name)
        return side is None or side.learning in side.teams

    def amend(self, behavior: Behavior, snapshot: Snapshot) -> Snapshot:
        """Return the behavior's checkpoint with its side of the game added."""
        name, side = behavior.name, self.game.sides.get(behavior.name)
        if side is None:
            return snapshot
        folder, packed = self._recorder.folder.behavior(name), {}

        def kept(weights: Weights) -> str:
            if not earlier.is_there(folder, weights.name):
                packed.update([earlier.pack(weights.policy)])
            return weights.name

        playing = {
            str(team): self._ghosts.state(_name(name, team), None if self.game.learns(name, team) else kept)
            for team in side.teams
        }
        state = self.game.state(name, kept) | {"playing": playing, "random": self._random.bit_generator.state}
        if behavior.exploiters:
            state["league"] = self.league.state(behavior, kept)
        return snapshot._replace(
            described={**snapshot.described, SELF_PLAY: state},
            notes={**snapshot.notes, ELO: side.pool.elo},
            earlier=packed,
        )

    def _join(self, behavior: Behavior, settings: SelfPlaySettings, behavior_id: str) -> None:
        name, team = behavior.name, team_of(behavior_id)
        if name not in self.game.sides:
            self._restore(behavior, settings)
            self._undecided[name] = Undecided(name, settings)
        latest = self.game.sides[name].latest if name in self.game.sides else Weights(self._policy_of(name))
        elo = self._recorder.status.get(name, ELO) if name in self._recorder.resumed else None
        self.game.join(name, team, settings, latest, step=behavior.step, elo=elo)
        self._policy[behavior_id] = _name(name, team)
        self._begin(behavior, team, latest, {})
        self._follow()  # for a side whose checkpoint is older than another's
        self._route()

    def _begin(self, behavior: Behavior, team: int, latest: Weights, noted: Mapping[str, Any]) -> None:
        """Add the frozen policies of a team, if missing; `noted`: a checkpoint's self-play state of all teams."""
        policy, read = _name(behavior.name, team), partial(self._read, behavior)
        if policy not in self._ghosts:
            self._ghosts.restore(policy, behavior.name, noted.get("playing", {}).get(str(team)), latest, read)
            self.league.join(behavior, team, latest, noted.get("league", ()), read)

    def _restore(self, behavior: Behavior, settings: SelfPlaySettings) -> None:
        """Restore a resumed behavior's side, with all its teams, if its checkpoint holds one."""
        path = self._recorder.resumed.get(behavior.name)
        state = None if path is None else read_info(path).settings.get(SELF_PLAY)
        if state is None:
            return
        if "opponents" not in state:
            raise CheckpointError(
                f"{path}: its self-play pool was written by an earlier version, which did not note who plays which "
                f"team: begin a new pool with this policy: --initialize-from={self._recorder.folder.run_id} and "
                "another --run-id."
            )
        if state["turns"] >= self.game.turns:
            self._random.bit_generator.state = state["random"]
        snapshots = {item["weights"]: self._read(behavior, item["weights"]) for item in state["snapshots"]}
        latest = Weights(self._policy_of(behavior.name))
        self.game.restore(behavior.name, settings, state, latest, snapshots.__getitem__)
        side = self.game.sides[behavior.name]
        for team in side.teams:
            self._begin(behavior, team, latest, state)
        log.info("%s: self-play goes on with %d snapshots, ELO %.3f.", behavior.name, len(snapshots), side.pool.elo)

    def _read(self, behavior: Behavior, file: str) -> Weights:
        return Weights(earlier.read(self._recorder.folder.behavior(behavior.name), file, behavior.state.policy))

    def _policy_of(self, name: str) -> PolicyState:
        """Return a copy of the learner's newest policy."""
        return copied(self._behaviors[name].state.policy)

    def _played(self, name: str, team: int, over: Mapping[str, Sequence[EpisodeRecords]]) -> Played:
        learns, ghost = self.game.learns(name, team), _name(name, team)
        games = games_of(over.get(name if learns else ghost, ()))
        return Played(games=games) if learns else Played(self._ghosts.steps(ghost), games)

    def _take_turn(self, name: str, played: Mapping[tuple[str, int], Played], trained: Weights | None = None) -> bool:
        turn = self.game.turn(name, played, self._behaviors[name].step, trained)
        for team, weights in turn.sent:  # new weights of frozen policies; learners have their newest anyway
            self._ghosts.send(_name(name, team), weights)
        self._recorder.rated(name, turn.rated)
        if len(self.game.sides) > 1 or len(self.game.sides[name].teams) > 1:
            self._undecided[name].add(len(turn.rated), sum(game.decided for game in turn.rated))
        return turn.changed

    def _follow(self) -> None:
        """Let sides that stepped before another side changed the learning team take one more, empty step."""
        game = self.game
        while lagging := [name for name, side in game.sides.items() if side.learning != game.rotation.learning]:
            for name in lagging:
                self._take_turn(name, {})

    def _route(self) -> None:
        """Route the learning team to its behavior's policy, every other team to its frozen policy."""
        for behavior_id, policy in self._policy.items():
            name, team = behavior_name(behavior_id), team_of(behavior_id)
            self._behaviors.policies.route(behavior_id, None if self.game.learns(name, team) else policy)
            self.league.route(self._behaviors[name], behavior_id, team)

    def _miss(self, messages: int) -> None:
        """Warn once if no team plays against the learner."""
        teams = {team for side in self.game.sides.values() for team in side.teams}
        self._messages = None if len(teams) > 1 or self._messages is None else self._messages + messages
        if self._messages is not None and self._messages > PATIENCE:
            self._messages = None
            log.warning(
                "%s: self_play, but only team %d has come in %d messages: nobody plays against it, and nothing is "
                "rated. Give the other side another Team Id in the environment (in Unity: Behavior Parameters; of "
                "PettingZoo and RLlib: --env-args teams), or remove self_play.",
                ", ".join(self.game.sides), *teams, PATIENCE,
            )  # fmt: skip


def _name(name: str, team: int) -> str:
    """Return the name of the frozen policy of a team."""
    return f"{name}?team={team}"
