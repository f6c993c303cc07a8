"""A behavior of the host loop as files and console see it: its learner, and the actor that collects its data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.interface import Algorithm, TrainState
from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.booking.slots import Source
from jaxrl.settings import LARGEST_STEP, BehaviorSettings, EnvironmentSettings
from jaxrl.training.host.acting_policy import ActingPolicy
from jaxrl.training.host.collector import USUAL, Collector
from jaxrl.training.host.decide import ActorPrograms
from jaxrl.training.host.learner import Learner, LearnerPrograms
from jaxrl.training.host.paged_buffer import wanted_of
from jaxrl.training.host.team_policy import KindPolicy
from jaxrl.training.host.threaded import ThreadedLearner
from jaxrl.training.memory import check_store
from jaxrl.types import NOTHING, Action, BehaviorMessage, BehaviorSpec


class Programs(NamedTuple):
    """The compiled programs of a behavior."""

    actor: ActorPrograms
    learner: LearnerPrograms


class Behavior(NamedTuple):
    """A learner and the actor that it learns from; in a team of several behaviors, this behavior's part of both."""

    learner: Learner
    actor: ActingPolicy | KindPolicy
    team: Sequence[Behavior] = ()  # behaviors that learn together, this one included
    exploiters: Sequence[Behavior] = ()  # exploiters of its league; its checkpoints hold them
    main: str | None = None  # for an exploiter: the behavior whose checkpoints hold it

    @property
    def mates(self) -> list[Behavior]:
        """Other behaviors of its team."""
        return [behavior for behavior in self.team if behavior.name != self.name]

    @property
    def name(self) -> str:
        """Behavior name without the team suffix."""
        return self.learner.name

    @property
    def spec(self) -> BehaviorSpec:
        """Specification of its observations and actions."""
        return self.learner.spec

    @property
    def settings(self) -> BehaviorSettings:
        """Settings that it is trained with."""
        return self.learner.settings

    @property
    def algorithm(self) -> Algorithm:
        """Algorithm of the learner."""
        return self.learner.algorithm

    @property
    def training(self) -> bool:
        """True if it learns; False with inference."""
        return self.learner.training

    @property
    def state(self) -> TrainState:
        """Train state of the learner, with the input statistics of the actor's connectors."""
        state, statistics = self.learner.state, self.actor.statistics
        return state if not statistics else state.replace(policy=state.policy.replace(connectors=statistics))

    @property
    def collector(self) -> Collector:
        """Collector of the trajectories that it learns from: its actor, or its team's common one."""
        return self.actor.team if isinstance(self.actor, KindPolicy) else self.actor

    @property
    def step(self) -> int:
        """Trainer step: number of finished agent decisions."""
        return self.learner.step

    @property
    def updates(self) -> int:
        """Number of updates in this run."""
        return self.learner.updates

    @property
    def decisions(self) -> int:
        """Number of calls of `decide` so far."""
        return self.collector.decisions

    @property
    def moment(self) -> tuple[Any, ...]:
        """Counters that change whenever a checkpoint would."""
        return self.step, self.updates, self.decisions, *(exploiter.moment for exploiter in self.exploiters)

    def restore(self, state: TrainState, *, step: int, decisions: int) -> None:
        """Continue from a checkpoint: parameters, optimiser, normaliser, keys, trainer step and decisions."""
        self.learner.state, self.learner.step = state, step
        self.actor.policy, collector = self.learner.policy, self.collector
        collector.decisions = max(collector.decisions, decisions)  # behaviors of a team share the largest count

    def begin_anew(self) -> None:
        """Drop all collected data, as if a checkpoint written now had just been restored."""
        state = self.state.replace(step=jnp.int32(min(self.step, LARGEST_STEP)))
        self.learner.begin_anew()
        self.collector.begin_anew()
        self.restore(state, step=self.step, decisions=self.decisions)

    def begin_from(self, state: TrainState) -> None:
        """Replace the learner's state and let the actor follow it."""
        self.learner.state = state
        self.actor.act_as(self.learner.policy)

    def renew(self, key: jax.Array, other: TrainState | None) -> None:
        """Replace networks and optimizer by new ones or by `other`'s; keep step and random key. Consumes the key."""
        fresh = self.learner.fresh_state(key) if other is None else jax.tree.map(jnp.copy, other)
        self.begin_from(fresh.replace(step=self.state.step, key=self.state.key))

    def recorded(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Return the newest real observations and action masks, to check an exported policy with."""
        return self.actor.recorded()

    def estimates(self) -> dict[str, float]:
        """Compute the value and entropy metrics that statistics show between two updates."""
        return self.learner.estimates(self.collector)

    def act(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> tuple[dict[Source, Action], list[EpisodeRecords]]:
        """Book one message per source; return each source's actions in its agents' order, and finished episodes.

        Not for behaviors of a team: their `Team` acts for all.
        """
        assert isinstance(self.actor, ActingPolicy)
        if not self.unfinished():
            self.actor.learn_no_more()
        actions, episodes, finished = self.actor.act(messages, untrained)
        self.count(finished)
        if self.training and self.may_learn():
            self.learner.compile_for(self.actor)
        return actions, episodes

    def count(self, finished: int) -> None:
        """Add `finished` decisions to the trainer step, also when the behavior is done (as in ML-Agents)."""
        self.learner.step += finished
        self.learner.tell_ready()

    def may_learn(self) -> bool:
        """Return whether the buffer can fill before the run is over; otherwise no update is compiled ahead."""
        missing = self.collector.keeps - self.collector.held
        return self.settings.count_by == "env_steps" or self.step + missing < self.settings.last_step

    def unfinished(self) -> bool:
        """Return whether there are steps left to train."""
        return self.learner.unfinished()

    @property
    def stopped(self) -> bool:
        """True if one of the settings' `stop` has ended its training."""
        return self.learner.stopped

    def stop(self) -> None:
        """Stop learning, as if max_steps were passed."""
        self.learner.stopped = True

    def due(self) -> bool:
        """Return whether enough data was collected to learn from or to drop (as ML-Agents, more than asked for)."""
        actor = self.collector
        if self.training and self.settings.count_by == "env_steps":
            return actor.fresh > 0 and (actor.full or actor.env_steps >= self.learner.algorithm.collect_size)
        return actor.full or actor.fresh > actor.keeps

    def learn(self) -> dict[str, float]:
        """Learn from the collected data, or store it for later; the actor continues with the new policy.

        Returns the metrics of the update, empty if there was none. Raises DivergedError.
        """
        metrics = self.learner.learn(self.collector)
        self.follow()
        return metrics

    def follow(self) -> None:
        """Give the actor its learner's newest policy, for all behaviors of its team."""
        for behavior in self.team or (self,):
            behavior.actor.policy = behavior.learner.policy


def make_behavior(
    name: str,
    spec: BehaviorSpec,
    settings: BehaviorSettings,
    algorithm: Algorithm,
    programs: Programs,
    key: jax.Array,
    *,
    training: bool,
    areas: int = 1,
    environment: EnvironmentSettings = USUAL,
) -> Behavior:
    """Make a fresh learner and its actor. The key is consumed.

    `areas` is the number of areas in all workers: they share `collect_size` where that counts environment steps.
    Raises SettingsError if the algorithm's store does not fit into memory.
    """
    check_store(name, algorithm, settings)
    learns = ThreadedLearner if settings.threaded and training else Learner
    learner = learns(name, spec, settings, algorithm, programs.learner, key, training=training)
    wanted = wanted_of(settings, algorithm.collect_size, areas=areas, learned=training)
    actor = ActingPolicy(
        name,
        spec,
        algorithm,
        programs.actor,
        learner.policy,
        learner.run_key,
        wanted,
        environment,
        most=settings.team_capacity,
        watch=learner.watch if isinstance(learner, ThreadedLearner) else None,
    )
    return Behavior(learner, actor)
