"""Episodes that the deterministic policies play beside the training, in one more environment of their own.

It is started for the first evaluation and kept; the training's environments wait meanwhile. Episodes count in the order
in which they end, so that where many areas play at once short ones come first.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import jax
import numpy as np

from jaxrl.algorithms.connected import deterministic
from jaxrl.artifacts.metrics.statistics import StatsAggregator, Summary
from jaxrl.artifacts.metrics.step_clock import due
from jaxrl.envs import simulator
from jaxrl.envs.address import parse_address
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.booking.missing import MissingAgents, missing_agents
from jaxrl.rollout.booking.slots import Slots
from jaxrl.settings import EVALUATED, EvaluationSettings, RunSettings
from jaxrl.settings.teams import teams_of
from jaxrl.training.host.behavior import Behavior
from jaxrl.training.host.launch import evaluation_pool
from jaxrl.training.host.policies import Frozen, frozen
from jaxrl.training.host.programs import compile_programs
from jaxrl.training.host.routing import Share, decide, joint, whole
from jaxrl.training.interrupt import Interrupt
from jaxrl.types import EnvMessage, JaxrlError, ParameterValue

log = logging.getLogger(__name__)


class Evaluation:
    """The environment and the policies of the evaluation episodes of all behaviors of a run."""

    def __init__(self, settings: RunSettings, interrupt: Interrupt) -> None:
        self._settings = settings
        self._interrupt = interrupt
        self._policies: dict[str, Frozen] = {}
        self._pool: EnvPool | None = None
        self._missing: MissingAgents | None = None  # of the episodes that are played now
        self._shown: set[str] = set()  # behaviors of the environment
        self._books: dict[str, Slots] = {}  # by team, of the episodes that are played now: who is of it, and was paid
        self._absent: set[str] = set()  # those that it does not have: policies that only a mapping hands out

    def due(self, behavior: Behavior, before: int) -> int | None:
        """The step of the evaluation that is due since the trainer step was `before`, or None.

        One that is due with the very steps that end the training is played, as a summary is written.
        """
        learned = before <= behavior.settings.last_step and not behavior.stopped
        if not behavior.training or not (learned or behavior.unfinished()) or behavior.name in self._absent:
            return None
        return due(behavior.settings, before, behavior.step).evaluation

    def play(
        self, name: str, behaviors: Mapping[str, Behavior], parameters: Mapping[str, ParameterValue]
    ) -> dict[str, Summary]:
        """Statistics of one behavior, by tag, over as many of its episodes as its settings ask for.

        Every behavior acts with the policy that it has now; samplers of `parameters` begin with their first draw.
        Raises EnvironmentFailure, as `EnvPool.recv`, and KeyboardInterrupt while it waits.
        """
        options = behaviors[name].settings.evaluation
        assert options is not None
        records: list[EpisodeRecords] = []
        for policy in self._policies.values():
            policy.actor.begin_anew()
        self._books.clear()
        pool, self._missing = self._begun(options, parameters), missing_agents(self._settings.env_settings)
        for number in range(options.max_length * options.episodes):
            with self._interrupt.waiting():
                (result,) = pool.recv()
            for loss in pool.losses():
                for policy in self._policies.values():
                    policy.actor.lose(loss)
                for book in self._books.values():
                    book.lose(loss)
                if self._missing is not None:
                    self._missing.forget(loss)
            records += self._step(pool, result, behaviors).get(name, [])
            if _played(records) >= options.episodes:
                break
            if number >= options.max_length and name not in self._shown:
                self._absent.add(name)
                log.warning("%s: not evaluated, no agent of this name has come in %d decisions.", name, number)
                break
        else:
            log.warning(
                "%s: %d of %d evaluation episodes were over within %d decisions (evaluation.max_length).",
                name, _played(records), options.episodes, options.max_length * options.episodes,
            )  # fmt: skip
        return _statistics(records, options.episodes)

    def close(self) -> None:
        """End the environment, if there is one."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _begun(self, options: EvaluationSettings, parameters: Mapping[str, ParameterValue]) -> EnvPool:
        """The environment at the beginning of its episodes: the same ones each time, where it takes a seed."""
        if self._pool is None:
            self._pool = evaluation_pool(self._settings, options.seed, jax.process_count())
            with self._interrupt.waiting():
                self._pool.ready()
        kind, _ = parse_address(self._settings.env_settings.env_path)
        seeds = [options.seed] if simulator(kind).reseeds else None
        self._pool.reset(parameters, seeds)
        return self._pool

    def _step(
        self, pool: EnvPool, result: EnvMessage, behaviors: Mapping[str, Behavior]
    ) -> dict[str, list[EpisodeRecords]]:
        """Answer one message; by behavior the episodes that are over."""
        asked = result.steps
        result = result if self._missing is None else self._missing.complete(result)
        shares, chosen = whole([result]), {result.worker: {}}
        self._shown |= shares.keys()
        over = decide(shares, {name: self._policy(name, behaviors) for name in shares}, chosen)
        for team, names in teams_of(self._settings.behaviors).items():
            over |= self._of_team(team, {name: behaviors[name] for name in names if name in behaviors}, shares)
        pool.send(0, {name: chosen[result.worker][name] for name in asked})
        return over

    def _of_team(
        self, team: str, mates: Mapping[str, Behavior], shares: Mapping[str, Share]
    ) -> dict[str, list[EpisodeRecords]]:
        """By behavior of a team, the episodes that are over: its members act each for itself and are paid together."""
        share = joint(dict(shares), list(mates))
        if share is None:
            return {}
        if team not in self._books:
            (first, *others), environment = mates.values(), self._settings.env_settings
            self._books[team] = Slots(
                first.spec,
                team_rows=True,
                rows=1,
                members=1,
                beside={mate.name: mate.spec for mate in others},
                max_length=first.settings.max_episode_length,
                interrupt_overdue=environment.missing == "carry",
            )
        found = self._books[team].ingest(share.messages)
        return {name: kind.episodes for name, kind in zip(mates, found.kinds, strict=False)}

    def _policy(self, name: str, behaviors: Mapping[str, Behavior]) -> Frozen:
        behavior = behaviors.get(name)
        if behavior is None:
            raise JaxrlError(
                f"{name}: the environment of the evaluation shows this behavior, which the training's has not shown yet"
            )
        if name not in self._policies:
            algorithm = deterministic(behavior.spec, behavior.settings)
            programs = compile_programs(algorithm, behavior.settings.segment_limit).actor
            given = behavior.spec, behavior.settings, algorithm, programs, behavior.state.policy
            noise = jax.random.key(0)  # which is never asked for
            self._policies[name] = frozen(name, *given, noise, behavior.actor.environment)
        self._policies[name].actor.policy = behavior.state.policy
        return self._policies[name]


def _played(records: list[EpisodeRecords]) -> int:
    """Episodes of teams that are over, or of agents where there are no teams."""
    teams = sum(len(record.team_returns) for record in records)
    return teams or sum(len(record.returns) for record in records)


def _statistics(records: list[EpisodeRecords], episodes: int) -> dict[str, Summary]:
    """Means by tag. Of agents without teams the first `episodes`; of teams all, whose members end together."""
    own, group, length = EVALUATED
    alone = not any(record.team_returns for record in records)
    count = episodes if alone else None
    columns = {
        own: [x for record in records for x in record.returns][:count],
        group: [x for record in records for x in record.team_returns],
        length: [x for record in records for x in record.lengths][:count],
    }
    collected = StatsAggregator()
    for tag, values in columns.items():
        collected.extend(tag, np.asarray(values))
    return collected.take()
