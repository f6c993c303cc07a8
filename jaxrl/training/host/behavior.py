"""A behavior of the host loop as files and console see it: who learns it, and the actor whose streams are learned."""

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
    """A learner and the actor that it learns from; of a team of several behaviors its part of both."""

    learner: Learner
    actor: ActingPolicy | KindPolicy
    team: Sequence[Behavior] = ()  # those that it learns together with, itself included
    exploiters: Sequence[Behavior] = ()  # of its league, which its checkpoints hold
    main: str | None = None  # of an exploiter: whose checkpoints hold it

    @property
    def mates(self) -> list[Behavior]:
        """The others of its team."""
        return [behavior for behavior in self.team if behavior.name != self.name]

    @property
    def name(self) -> str:
        """Without a team's suffix."""
        return self.learner.name

    @property
    def spec(self) -> BehaviorSpec:
        """Observations and actions."""
        return self.learner.spec

    @property
    def settings(self) -> BehaviorSettings:
        """How it is trained."""
        return self.learner.settings

    @property
    def algorithm(self) -> Algorithm:
        """Of the learner."""
        return self.learner.algorithm

    @property
    def training(self) -> bool:
        """False with inference."""
        return self.learner.training

    @property
    def state(self) -> TrainState:
        """Of the learner, with what the actor's connectors have learned of their input."""
        state, statistics = self.learner.state, self.actor.statistics
        return state if not statistics else state.replace(policy=state.policy.replace(connectors=statistics))

    @property
    def collector(self) -> Collector:
        """What holds the streams that are learned from: its actor, or that of all of its team."""
        return self.actor.team if isinstance(self.actor, KindPolicy) else self.actor

    @property
    def step(self) -> int:
        """The trainer step: finished agent decisions."""
        return self.learner.step

    @property
    def updates(self) -> int:
        """Updates in this run."""
        return self.learner.updates

    @property
    def decisions(self) -> int:
        """Calls of `decide` so far."""
        return self.collector.decisions

    @property
    def moment(self) -> tuple[Any, ...]:
        """Changes whenever a checkpoint would."""
        return self.step, self.updates, self.decisions, *(of.moment for of in self.exploiters)

    def restore(self, state: TrainState, *, step: int, decisions: int) -> None:
        """Continue from a checkpoint: parameters, optimiser, normaliser, keys, trainer step and decisions."""
        self.learner.state, self.learner.step = state, step
        self.actor.policy, collector = self.learner.policy, self.collector
        collector.decisions = max(collector.decisions, decisions)  # of a team, those of whichever kind has most

    def begin_anew(self) -> None:
        """Nothing has been collected yet, as after `restore` of what a checkpoint of this moment holds."""
        state = self.state.replace(step=jnp.int32(min(self.step, LARGEST_STEP)))
        self.learner.begin_anew()
        self.collector.begin_anew()
        self.restore(state, step=self.step, decisions=self.decisions)

    def begin_from(self, state: TrainState) -> None:
        """Start from other weights."""
        self.learner.state = state
        self.actor.act_as(self.learner.policy)

    def renew(self, key: jax.Array, other: TrainState | None) -> None:
        """Go on with new networks and a new optimizer, or those of `other`; steps and draws go on. Consumes the key."""
        fresh = self.learner.fresh_state(key) if other is None else jax.tree.map(jnp.copy, other)
        self.begin_from(fresh.replace(step=self.state.step, key=self.state.key))

    def recorded(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Newest real observations and action masks, for checking an exported policy."""
        return self.actor.recorded()

    def estimates(self) -> dict[str, float]:
        """What statistics show of values and entropy between two updates."""
        return self.learner.estimates(self.collector)

    def act(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> tuple[dict[Source, Action], list[EpisodeRecords]]:
        """Book one message per source; each source's actions in its agents' order, and finished episodes.

        Not of a team, whose `Team` acts for all.
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
        """So many of its decisions were finished, by a message that was decided on.

        The step goes on also when the behavior is done: it counts what was decided, as in ML-Agents.
        """
        self.learner.step += finished
        self.learner.tell_ready()

    def may_learn(self) -> bool:
        """Whether the buffer can fill before the run is over: else the update is not compiled ahead."""
        missing = self.collector.keeps - self.collector.held
        return self.settings.count_by == "env_steps" or self.step + missing < self.settings.last_step

    def unfinished(self) -> bool:
        """Whether there is something left to do."""
        return self.learner.unfinished()

    @property
    def stopped(self) -> bool:
        """Whether one of the settings' `stop` has ended its training."""
        return self.learner.stopped

    def stop(self) -> None:
        """Learn no more, as if max_steps were passed."""
        self.learner.stopped = True

    def due(self) -> bool:
        """Return whether enough was collected to learn from or to discard (as ML-Agents, more than asked for)."""
        actor = self.collector
        if self.training and self.settings.count_by == "env_steps":
            return actor.fresh > 0 and (actor.full or actor.env_steps >= self.learner.algorithm.collect_size)
        return actor.full or actor.fresh > actor.keeps

    def learn(self) -> dict[str, float]:
        """What was collected is learned from, or kept for later; the actor goes on with the new policy.

        Returns the metrics of the update, nothing where there was none. Raises DivergedError.
        """
        metrics = self.learner.learn(self.collector)
        self.follow()
        return metrics

    def follow(self) -> None:
        """Actors go on with the policies that learners have, of a team all of them."""
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
    """Return a fresh learner and its actor. The key is consumed.

    Of `areas` that step alike, in all workers, each gives its share where `collect_size` counts environment steps.
    Raises SettingsError where there is no memory for what the algorithm stores.
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
