"""Play evaluation episodes with the deterministic policies during a training, in a separate environment.

It is started for the first evaluation and stays open; the training's environments wait meanwhile. An episode belongs
to a team, or to an agent without one; every slot in the environment plays its share of them (`FairShare`).
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
    """Result of one episode for one behavior."""

    returns: list[float]  # one per agent
    lengths: list[int]
    group_return: float | None  # None: no team
    cut: bool


class _Trial:
    """Running evaluation of the behavior `name`: its running episodes, and those that count."""

    def __init__(self, name: str, options: EvaluationSettings) -> None:
        self.name, self.options = name, options
        self.share = FairShare[Episode](options.episodes)
        self.played: dict[Episode, _Played] = {}  # finished episodes
        self.message = 0  # number of the newest message
        self.idle = 0  # messages since a chosen episode was running
        self.seen = False  # whether an agent of the behavior has come
        self._begun: dict[Episode, int] = {}  # number of the message with which an episode began
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all running episodes, after a reset of the environment."""
        self.tracker = EpisodeTracker(self.options.seed, observes=False)
        self.share.begin_anew()
        self._begun.clear()
        self.idle = 0

    def limited(self, message: EnvMessage, limits: Mapping[str, int | None]) -> EnvMessage:
        """Return the message with agents interrupted that ask beyond their behavior's limit of decisions."""
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
        """Drop episodes that broke off with a lost worker, or with a lost copy of the environment."""
        for episode in episodes:
            if episode in self.played:
                self.share.end(episode)
            elif episode in self._begun:
                self.share.lose(episode)

    @property
    def stuck(self) -> bool:
        """True if no further episode that counts is expected to begin, although some are missing."""
        patience = self.options.max_length if self.share.has_empty or not self.seen else 1
        return self.idle >= patience

    def _done(self, episode: Episode, *, cut: bool, asking: Collection[tuple[str, int]] = ()) -> None:
        """Store an episode's result so far, once. `asking`: agents whose newest decision is not made yet."""
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
        """Results of the episodes that count."""
        return [self.played[episode] for episode in self.share.chosen if episode in self.played]

    def summary(self) -> dict[str, Summary]:
        """Compute means by tag over agents and teams of the episodes that count, and the number of cut episodes."""
        return_tag, group_tag, length_tag = EVALUATED
        statistics = StatsAggregator()
        for episode in self.counted:
            statistics.extend(return_tag, episode.returns)
            statistics.extend(group_tag, () if episode.group_return is None else (episode.group_return,))
            statistics.extend(length_tag, episode.lengths)
        if self.counted:
            statistics.add(CUT, sum(episode.cut for episode in self.counted))
        return statistics.take()


class Evaluation:
    """Environment and policies of the evaluation episodes of all behaviors, which have the `names` of the run."""

    def __init__(self, settings: RunSettings, interrupt: Interrupt, names: BehaviorNames | None = None) -> None:
        self._settings = settings
        self._names = names
        self._interrupt = interrupt
        self._policies: dict[str, Frozen] = {}
        self._pool: EnvPool | None = None
        self._missing: MissingAgents | None = None  # tracks silent agents of the episodes that are played now
        self._absent: set[str] = set()  # behaviors without agents in it: policies that only a mapping hands out
        self._warned: set[str] = set()  # behaviors with a warning that episodes are missing

    def due(self, behavior: Behavior, before: int) -> int | None:
        """Return the step of the evaluation that is due since the trainer step was `before`, or None.

        An evaluation that is due with the very steps that end the training is played, as a summary is written.
        """
        learned = before <= behavior.settings.last_step and not behavior.stopped
        if not behavior.training or not (learned or behavior.unfinished()) or behavior.name in self._absent:
            return None
        return due(behavior.settings, before, behavior.step).evaluation

    def play(
        self, name: str, behaviors: Mapping[str, Behavior], parameters: Mapping[str, ParameterValue]
    ) -> dict[str, Summary]:
        """Play as many episodes of a behavior as its settings ask for, and return their statistics by tag.

        Every behavior acts with its present policy; samplers of `parameters` begin with their first draw.
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
        """Close the environment, if there is one."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _begun(self, options: EvaluationSettings, resets: int, parameters: Mapping[str, ParameterValue]) -> EnvPool:
        """Reset the environment, with equal seeds in each evaluation if it takes one, and return its pool.

        `resets`: number of resets in this evaluation so far; it changes the seed.
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
        """Receive one message and answer it."""
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
        """Warn once if a behavior has no agents, or if some of its episodes did not begin."""
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
            parts = behavior.spec, behavior.settings, algorithm, programs, behavior.state.policy
            noise = jax.random.key(0)  # never drawn from: the policy is deterministic
            self._policies[name] = frozen(name, *parts, noise, behavior.actor.environment)
        self._policies[name].actor.policy = behavior.state.policy
        return self._policies[name]


def _places(message: EnvMessage, part: Literal["ended", "deciding"]) -> dict[tuple[str, int], int]:
    """Return the index of each agent in this part of its behavior's message, by behavior id and agent id."""
    agents = {name: getattr(steps, part).agent_id.tolist() for name, steps in message.steps.items()}
    return {(name, agent): place for name, ids in agents.items() for place, agent in enumerate(ids)}


def _end_in(ended: Mapping[tuple[str, int], int], episode: Episode) -> int:
    """Return the index in the message at which an episode ends; sorting by it keeps the scene's order of areas."""
    return min(ended.get((agent.behavior_id, agent.agent_id), 0) for agent in episode.agents)
