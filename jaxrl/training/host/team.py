"""Behaviors that learn together (`team: NAME`): one that acts for all; files and console see each by itself.

Unity announces a behavior with its first agent. One critic judges all, and what it reads is known when all are. Until
then the agents that are there act with the policy that their behavior begins with, and nobody learns from what they do;
no file is written and no step counts.
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
"""Messages after which the others are missed."""


class Kind(NamedTuple):
    """A behavior of a team that has been seen: all that it is made of, were it alone."""

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
        """Of its behaviors."""
        return [behavior.name for behavior in self.behaviors]

    def act(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> tuple[dict[Source, Action], dict[str, list[EpisodeRecords]]]:
        """Each source's actions in its agents' order, and finished episodes by behavior; see `Behavior.act`."""
        actions, episodes, finished = self.policy.act(messages, untrained)
        for behavior in self.behaviors:
            behavior.count(finished[behavior.name])
        if any(behavior.may_learn() for behavior in self.behaviors):
            self.behaviors[0].learner.compile_for(self.policy)
        return actions, episodes


def make_team_of(name: str, kinds: Mapping[str, Kind], *, areas: int, environment: EnvironmentSettings) -> Team:
    """Return fresh learners of a team, and the policy that acts for them; `kinds` by behavior.

    Of `areas` that step alike, in all workers, each gives its share where `collect_size` counts environment steps.
    Raises SettingsError for behaviors that cannot learn together.
    """
    algorithms = {of: kind.algorithm for of, kind in kinds.items()}
    together = make_team(name, algorithms, {of: kind.settings for of, kind in kinds.items()})
    limits = [kind.settings.segment_limit for kind in kinds.values()]
    actor, learner = compile_team(together, limits, [kind.programs for kind in kinds.values()])
    learners: dict[str, KindLearner] = {}
    policies, behaviors = [], []
    for of, kind in kinds.items():
        algorithm = together.kinds[of]
        known = (of, kind.spec, kind.settings, algorithm)
        learns = ThreadedKindLearner if kind.settings.threaded else KindLearner
        own = learns(*known, learner, kind.key, training=True, together=together, team=learners)
        acts = (of, kind.spec, algorithm, kind.programs.actor, own.policy, own.run_key, environment)
        watch = own.watch if isinstance(own, ThreadedKindLearner) else None
        policies.append(KindPolicy(*acts, kind.settings.team_capacity, watch))
        behaviors.append(Behavior(own, policies[-1], behaviors))
    wanted = wanted_of(next(iter(kinds.values())).settings, together.collect_size, areas=areas)
    return Team(tuple(behaviors), TeamPolicy(name, policies, actor, wanted, environment))


class Gathering:
    """Kinds of members that have been seen of each team of which others have not."""

    def __init__(self, settings: RunSettings) -> None:
        self._wanted = teams_of(settings.behaviors)
        self._seen: dict[str, dict[str, Kind]] = {}  # by team and behavior, of those that are not complete
        self._messages = 0
        self._told: set[str] = set()  # behaviors of which it was said

    def waits(self, name: str) -> Kind | None:
        """A behavior that waits for others."""
        return next((kinds[name] for kinds in self._seen.values() if name in kinds), None)

    def spec_of(self, name: str) -> BehaviorSpec | None:
        """Of a behavior that waits for others."""
        kind = self.waits(name)
        return None if kind is None else kind.spec

    def add(self, team: str, name: str, kind: Kind) -> dict[str, Kind] | None:
        """A behavior was seen; all of its team in the order of the file, if it is the last of them.

        Raises SettingsError for one that the file does not name.
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
        """So many messages have come: say who waits, and once, after many, that a team does not learn."""
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
