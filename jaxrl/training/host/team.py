"""Behaviors that learn together (`team: NAME`): one that acts for all; files and console see each by itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import jax

from jaxrl.algorithms.interface import Algorithm
from jaxrl.algorithms.team import make_team
from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.booking.slots import Source
from jaxrl.settings import BehaviorSettings, EnvironmentSettings
from jaxrl.training.host.behavior import Behavior, Programs
from jaxrl.training.host.paged_buffer import wanted_of
from jaxrl.training.host.programs import compile_team
from jaxrl.training.host.team_learner import KindLearner
from jaxrl.training.host.team_policy import KindPolicy, TeamPolicy
from jaxrl.training.host.threaded import ThreadedKindLearner
from jaxrl.types import NOTHING, Action, BehaviorMessage, BehaviorSpec


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
    """Fresh learners of a team and what acts for them; `kinds` by behavior.

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
