"""Team of several behaviors (`team: NAME`): one actor for all; files and console see each behavior separately.

Unity announces a behavior with its first agent. One critic evaluates all behaviors, so its inputs are known when all
have appeared. Until then agents act with their behavior's initial policy, without learning; no file is written and no
step counts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

import jax

from jaxrl.algorithms.interface import Algorithm
from jaxrl.algorithms.team import make_team
from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.booking.slots import Source
from jaxrl.settings import BehaviorSettings, EnvironmentSettings, RunSettings, SettingsError
from jaxrl.settings.teams import teams_of
from jaxrl.training.host.behavior import Behavior, Programs
from jaxrl.training.host.paged_buffer import wanted_of
from jaxrl.training.host.programs import compile_team
from jaxrl.training.host.team_learner import KindLearner
from jaxrl.training.host.team_policy import KindPolicy, TeamPolicy
from jaxrl.training.host.threaded import ThreadedKindLearner
from jaxrl.types import NOTHING, Action, BehaviorMessage, BehaviorSpec

log = logging.getLogger(__name__)

PATIENCE = 1000
"""Messages after which a warning names the missing behaviors of a team."""


class Kind(NamedTuple):
    """Parts of a behavior that has been seen, as it would be made without a team."""

    spec: BehaviorSpec
    settings: BehaviorSettings
    algorithm: Algorithm
    programs: Programs
    key: jax.Array  # consumed when the team is made


class Team(NamedTuple):
    """The behaviors of a team, in the order of the configuration file."""

    behaviors: tuple[Behavior, ...]
    policy: TeamPolicy

    @property
    def names(self) -> list[str]:
        """Names of its behaviors."""
        return [behavior.name for behavior in self.behaviors]

    def act(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> tuple[dict[Source, Action], dict[str, list[EpisodeRecords]]]:
        """Return each source's actions in its agents' order, and finished episodes by behavior; see `Behavior.act`."""
        actions, episodes, finished = self.policy.act(messages, untrained)
        for behavior in self.behaviors:
            behavior.count(finished[behavior.name])
        if any(behavior.may_learn() for behavior in self.behaviors):
            self.behaviors[0].learner.compile_for(self.policy)
        return actions, episodes


def make_team_of(name: str, kinds: Mapping[str, Kind], *, areas: int, environment: EnvironmentSettings) -> Team:
    """Make the fresh learners and the actor of a team; `kinds` by behavior.

    `areas` is the number of areas in all workers: they share `collect_size` where that counts environment steps.
    Raises SettingsError for behaviors that cannot learn together.
    """
    algorithms = {behavior: kind.algorithm for behavior, kind in kinds.items()}
    together = make_team(name, algorithms, {behavior: kind.settings for behavior, kind in kinds.items()})
    limits = [kind.settings.segment_limit for kind in kinds.values()]
    actor, learner = compile_team(together, limits, [kind.programs for kind in kinds.values()])
    learners: dict[str, KindLearner] = {}
    policies, behaviors = [], []
    for behavior, kind in kinds.items():
        algorithm = together.kinds[behavior]
        known = (behavior, kind.spec, kind.settings, algorithm)
        learns = ThreadedKindLearner if kind.settings.threaded else KindLearner
        part = learns(*known, learner, kind.key, training=True, together=together, team=learners)
        acts = (behavior, kind.spec, algorithm, kind.programs.actor, part.policy, part.run_key, environment)
        watch = part.watch if isinstance(part, ThreadedKindLearner) else None
        policies.append(KindPolicy(*acts, kind.settings.team_capacity, watch))
        behaviors.append(Behavior(part, policies[-1], behaviors))
    wanted = wanted_of(next(iter(kinds.values())).settings, together.collect_size, areas=areas)
    return Team(tuple(behaviors), TeamPolicy(name, policies, actor, wanted, environment))


class Gathering:
    """Behaviors that have been seen, of teams that are not complete."""

    def __init__(self, settings: RunSettings) -> None:
        self._wanted = teams_of(settings.behaviors)
        self._seen: dict[str, dict[str, Kind]] = {}  # by team and behavior; without complete teams
        self._messages = 0
        self._told: set[str] = set()  # behaviors that were logged as waiting

    def waits(self, name: str) -> Kind | None:
        """Return a behavior that waits for others of its team, or None."""
        return next((kinds[name] for kinds in self._seen.values() if name in kinds), None)

    def spec_of(self, name: str) -> BehaviorSpec | None:
        """Return the spec of a behavior that waits for others of its team, or None."""
        kind = self.waits(name)
        return None if kind is None else kind.spec

    def add(self, team: str, name: str, kind: Kind) -> dict[str, Kind] | None:
        """Add a behavior; return its whole team in the order of the file if it is now complete, else None.

        Raises SettingsError for a behavior that the file does not name.
        """
        if name not in self._wanted.get(team, ()):
            raise SettingsError(
                f"behaviors.{name}: default_settings.team is {team}, and a team names its behaviors: add an entry "
                f"`{name}:` below `behaviors:`, or write `team: null` in default_settings"
            )
        seen = self._seen.setdefault(team, {})
        seen[name] = kind
        if len(seen) < len(self._wanted[team]):
            return None
        del self._seen[team]
        return {of: seen[of] for of in self._wanted[team]}

    def miss(self, messages: int) -> None:
        """Count messages; log behaviors that wait, and warn once, after many messages, that a team does not learn."""
        if not self._seen or self._messages > PATIENCE:
            return
        for team, seen in self._seen.items():
            for name in seen.keys() - self._told:
                self._told.add(name)
                log.info("%s: waits for %s of team %s.", name, " and ".join(self._missing(team)), team)
        self._messages += messages
        for team, seen in self._seen.items() if self._messages > PATIENCE else ():
            log.warning(
                "team %s: %s acts and nobody learns from it, because %s has not come in %d messages: let the "
                "environment show an agent of each, or remove `team` from behaviors that it does not have.",
                team, ", ".join(seen), " and ".join(self._missing(team)), PATIENCE,
            )  # fmt: skip

    def _missing(self, team: str) -> list[str]:
        return [name for name in self._wanted[team] if name not in self._seen[team]]
