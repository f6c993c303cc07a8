"""Episodes that the deterministic policies play beside the training, in one more environment of their own.

It is started for the first evaluation and kept; the training's environments wait meanwhile. An episode is that of a
team, or of an agent without one; every place in the environment plays its share of them (`FairShare`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import jax

from jaxrl.algorithms.connected import deterministic
from jaxrl.artifacts.metrics.statistics import StatsAggregator, Summary
from jaxrl.artifacts.metrics.step_clock import due
from jaxrl.envs import simulator
from jaxrl.envs.address import parse_address
from jaxrl.envs.behavior_names import BehaviorNames
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.rollout.booking.missing import MissingAgents, interrupting, missing_agents
from jaxrl.rollout.booking.occupants import Source
from jaxrl.rollout.following.fair_share import FairShare
from jaxrl.rollout.following.followed import AgentRecord, Episode
from jaxrl.rollout.following.tracker import EpisodeTracker
from jaxrl.settings import EVALUATED, EvaluationSettings, RunSettings
from jaxrl.settings.records import CUT
from jaxrl.training.host.behavior import Behavior
from jaxrl.training.host.launch import evaluation_pool
from jaxrl.training.host.policies import Frozen, frozen
from jaxrl.training.host.programs import compile_programs
from jaxrl.training.host.routing import decide, whole
from jaxrl.training.interrupt import Interrupt
from jaxrl.types import NO_GROUP, EnvMessage, JaxrlError, ParameterValue

log = logging.getLogger(__name__)


class _Played(NamedTuple):
    """What one episode has brought one behavior."""

    returns: list[float]  # of its agents
    lengths: list[int]
    group_return: float | None  # None: not of a team
    cut: bool


class _Trial:
    """One evaluation of the behavior `name`: who plays, and which of its episodes count."""

    def __init__(self, name: str, options: EvaluationSettings) -> None:
        self.name, self.options = name, options
        self.share = FairShare[Episode](options.episodes)
        self.played: dict[Episode, _Played] = {}  # that are done
        self.message = 0  # number of the newest one
        self.idle = 0  # messages in which no chosen episode went on
        self.seen = False  # an agent of the behavior
        self._begun: dict[Episode, int] = {}  # number of the message with which an episode began
        self.begin_anew()

    def begin_anew(self) -> None:
        """The environment was reset: nobody lives."""
        self.tracker = EpisodeTracker(self.options.seed, observes=False)
        self.share.begin_anew()
        self._begun.clear()
        self.idle = 0

    def limited(self, message: EnvMessage, limits: Mapping[str, int | None]) -> EnvMessage:
        """The message in which agents have been interrupted that ask after so many decisions, by behavior."""
        steps = dict(message.steps)
        for behavior_id, part in message.steps.items():
            most = limits.get(behavior_id.partition("?")[0])
            if most is not None:
                source = Source(message.worker, behavior_id, message.incarnation)
                ended = set(part.ended.agent_id.tolist())
                ids = enumerate(part.deciding.agent_id.tolist())
                known = [(i, self.tracker.record(source, agent)) for i, agent in ids if agent not in ended]
                late = [i for i, record in known if record is not None and record.decisions >= most]
                steps[behavior_id] = interrupting(part, late) if late else part
        return message._replace(steps=steps)

    def observe(self, message: EnvMessage) -> None:
        """Book one message of the environment."""
        self.message += 1
        noticed = self.tracker.observe(message)
        for episode in sorted(noticed.over, key=partial(_end_in, _places(message, "ended"))):
            self._done(episode, cut=False)
            self.share.end(episode)
        for episode, agent in noticed.newcomers:
            if agent.behavior == self.name and episode not in self._begun:
                self.seen, self._begun[episode] = True, self.message
                kind, name = agent.behavior_id, agent.agent_id
                if episode.group_id != NO_GROUP:  # a team, which may have members of several behaviors
                    kind, name = kind.partition("?")[2], episode.group_id
                self.share.begin(episode, (kind, name), kind)
        for episode in self.share.running:
            if self.message - self._begun[episode] >= self.options.max_length:
                self._done(episode, cut=True, asking=_places(message, "deciding"))
                self.share.finish(episode)
        self.idle = 0 if self.share.running else self.idle + 1

    def lost(self, episodes: Sequence[Episode]) -> None:
        """These broke off with their process, or with their copy of the environment."""
        for episode in episodes:
            if episode in self.played:
                self.share.end(episode)
            elif episode in self._begun:
                self.share.lose(episode)

    @property
    def stuck(self) -> bool:
        """Whether nothing that counts will begin, or has for long, although something is missing."""
        patience = self.options.max_length if self.share.has_empty or not self.seen else 1
        return self.idle >= patience

    def _done(self, episode: Episode, *, cut: bool, asking: Collection[tuple[str, int]] = ()) -> None:
        """Note what an episode has brought until now, once. asking: agents whose newest decision is not made yet."""
        if episode in self.played or episode not in self._begun:
            return
        agents = [agent for agent in episode.agents if agent.behavior == self.name]

        def length(agent: AgentRecord) -> int:
            return agent.decisions - 1 - ((agent.behavior_id, agent.agent_id) in asking and not agent.is_done)

        acted = [agent for agent in agents if length(agent) >= 0]
        self.played[episode] = _Played(
            returns=[agent.own_return for agent in acted],
            lengths=[length(agent) for agent in acted],
            group_return=None if episode.group_id == NO_GROUP else episode.group_return,
            cut=cut,
        )

    @property
    def counted(self) -> list[_Played]:
        """What the episodes have brought that count."""
        return [self.played[episode] for episode in self.share.chosen if episode in self.played]

    def summary(self) -> dict[str, Summary]:
        """Means by tag over the agents and teams of the episodes that count; and how many were cut."""
        own, group, length = EVALUATED
        collected = StatsAggregator()
        for one in self.counted:
            collected.extend(own, one.returns)
            collected.extend(group, () if one.group_return is None else (one.group_return,))
            collected.extend(length, one.lengths)
        if self.counted:
            collected.add(CUT, sum(one.cut for one in self.counted))
        return collected.take()


class Evaluation:
    """Environment and policies of the evaluation episodes of all behaviors, which have the `names` of the run."""

    def __init__(self, settings: RunSettings, interrupt: Interrupt, names: BehaviorNames | None = None) -> None:
        self._settings = settings
        self._names = names
        self._interrupt = interrupt
        self._policies: dict[str, Frozen] = {}
        self._pool: EnvPool | None = None
        self._missing: MissingAgents | None = None  # of the episodes that are played now
        self._absent: set[str] = set()  # behaviors that it does not have: policies that only a mapping hands out
        self._warned: set[str] = set()  # behaviors of which it was said that episodes are missing

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
        trial, resets, before = _Trial(name, options), 0, None
        while not trial.share.complete and trial.share.chosen != before:  # a reset that brings nothing is the last one
            before = trial.share.chosen
            pool = self._begun(options, resets, parameters)
            trial.begin_anew()
            resets += 1
            while not trial.share.complete and not trial.stuck:
                self._step(pool, trial, behaviors)
        self._notice(trial)
        return trial.summary()

    def close(self) -> None:
        """End the environment, if there is one."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _begun(self, options: EvaluationSettings, resets: int, parameters: Mapping[str, ParameterValue]) -> EnvPool:
        """The environment at the beginning of its episodes: the same ones in each evaluation, where it takes a seed.

        resets: in this evaluation so far, after which others begin.
        """
        if self._pool is None:
            self._pool = evaluation_pool(self._settings, options.seed, self._names)
            with self._interrupt.waiting():
                self._pool.ready()
        kind, _ = parse_address(self._settings.env_settings.env_path)
        seeds = [(options.seed + resets) % 2**31] if simulator(kind).reseeds else None
        self._pool.reset(parameters, seeds)
        self._missing = missing_agents(self._settings.env_settings)
        for policy in self._policies.values():
            policy.actor.begin_anew()
        return self._pool

    def _step(self, pool: EnvPool, trial: _Trial, behaviors: Mapping[str, Behavior]) -> None:
        """Take one message and answer it."""
        with self._interrupt.waiting():
            (result,) = pool.recv()
        for loss in pool.losses():
            for policy in self._policies.values():
                policy.actor.lose(loss)
            trial.lost(trial.tracker.lost(loss, None))
            if self._missing is not None:
                self._missing.forget(loss)
        asked = result.steps
        result = result if self._missing is None else self._missing.complete(result)
        limits = {name: behavior.settings.max_episode_length for name, behavior in behaviors.items()}
        result = trial.limited(result, limits)
        trial.observe(result)
        shares, chosen = whole([result]), {result.worker: {}}
        decide(shares, {name: self._policy(name, behaviors) for name in shares}, chosen)
        pool.send(0, {name: chosen[result.worker][name] for name in asked})

    def _notice(self, trial: _Trial) -> None:
        """Say once of a behavior that it has no agents, or that some of its episodes did not begin."""
        name, options = trial.name, trial.options
        if not trial.seen:
            self._absent.add(name)
            log.warning("%s: not evaluated, no agent of this name has come in %d decisions.", name, trial.message)
            return
        played = len(trial.share.chosen)
        if played < options.episodes and name not in self._warned:
            self._warned.add(name)
            log.warning(
                "%s: %d of %d evaluation episodes were played, the next one did not begin within %d steps of the "
                "environment (evaluation.max_length), nor after a reset.",
                name, played, options.episodes, options.max_length,
            )  # fmt: skip

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


def _places(message: EnvMessage, part: Literal["ended", "deciding"]) -> dict[tuple[str, int], int]:
    """Where each agent stands in this part of its behavior's message, by behavior id and id."""
    agents = {name: getattr(steps, part).agent_id.tolist() for name, steps in message.steps.items()}
    return {(name, agent): place for name, ids in agents.items() for place, agent in enumerate(ids)}


def _end_in(ended: Mapping[tuple[str, int], int], episode: Episode) -> int:
    """Where an episode ends in the message: as scenes list areas, so that what begins there is found again."""
    return min(ended.get((agent.behavior_id, agent.agent_id), 0) for agent in episode.agents)
