"""Recorder of the host loop: writes behaviors, episodes and updates as they appear."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.algorithms import TRAINER_TYPES
from jaxrl.algorithms.interface import LARGEST_LOG_RATIO, PolicyState, TrainState, replays
from jaxrl.artifacts.checkpoint import earlier
from jaxrl.artifacts.checkpoint.document import read_info
from jaxrl.artifacts.checkpoint.loop import LESSONS, MOMENT, SELF_PLAY
from jaxrl.artifacts.checkpoint.store import require_latest
from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.metrics.statistics import Summary
from jaxrl.artifacts.metrics.step_clock import due
from jaxrl.artifacts.metrics.step_times import StepTimes
from jaxrl.artifacts.names import check_together
from jaxrl.artifacts.run_folder import RunFolder, behavior_name
from jaxrl.artifacts.status import IDENTITY, identities
from jaxrl.envs.behavior_names import BehaviorNames
from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.following.followed import Episode
from jaxrl.settings import BehaviorSettings, RunSettings
from jaxrl.training import saver
from jaxrl.training.checkpoints import OnSaved
from jaxrl.training.host import saver as host_saver
from jaxrl.training.host.acting_policy import ActingPolicy
from jaxrl.training.host.behavior import Behavior
from jaxrl.training.host.exact import moment_of_run
from jaxrl.training.host.statistics import EpisodeStatistics
from jaxrl.training.lessons import Lessons, entries_of, read_lessons
from jaxrl.training.recorder import Recorder, take_all
from jaxrl.training.saver import Snapshot
from jaxrl.training.self_play.game import Rated
from jaxrl.training.teams import CancellingRewards, SharedLearners
from jaxrl.types import BehaviorSpec, EnvMessage

log = logging.getLogger(__name__)

LEAST_LARGE, TIMES_LARGE = 1000, 10
"""A buffer is large above `LEAST_LARGE` agent steps, or above `TIMES_LARGE` times buffer_size."""
IDLE_MESSAGES = 100
"""Consecutive messages without a decision after which a warning is logged."""
PHASES = {"environment": nodes.ENV_STEP, "act": nodes.EVALUATE, "update": nodes.UPDATE_POLICY}


class HostRecorder(Recorder):
    """Files and console of one run of the host loop."""

    def __init__(
        self, settings: RunSettings, folder: RunFolder, progress: ProgressBar, on_saved: OnSaved | None = None
    ) -> None:
        super().__init__(settings, folder, progress, PHASES, on_saved)
        self.exact = settings.checkpoint_settings.exact and not settings.checkpoint_settings.inference
        self.due = False  # with `exact`: whether to write a checkpoint after the next update
        resumes = self.exact and settings.checkpoint_settings.resume
        self.moment = moment_of_run(folder) if resumes else None  # moment that an exact run resumes from
        self.times = StepTimes(self.timers)
        self.lessons = self._lessons()
        self.resumed: dict[str, Path] = {}  # checkpoint that a behavior resumes from, by behavior
        self.amend: Callable[[Behavior, Snapshot], Snapshot] = lambda _, snapshot: snapshot
        """Adds the self-play state to a checkpoint; set by `Opponents`."""
        self._names = BehaviorNames()
        self._statistics: dict[str, EpisodeStatistics] = {}
        self._loaded: list[str] = []
        self._opened: dict[str, Behavior] = {}
        self._teams = SharedLearners()
        self._shown: dict[int, dict[str, None]] = {}  # names of behaviors without a team, by worker
        self._warned: set[str] = set()  # behaviors with a warning about group rewards
        self._undecided: set[str] = set()  # behaviors with a warning about rewards for no decision

    def _lessons(self) -> Lessons:
        """Make the run's lessons; a resumed run continues at its saved ones."""
        lessons = Lessons(self.settings.environment_parameters, self.settings.env_settings.seed)
        if self.settings.checkpoint_settings.resume:
            noted = None if self.moment is None else self.moment.lessons
            lessons.restore(read_lessons(self.folder.status) if noted is None else noted)
        return lessons

    def share_names(self, names: BehaviorNames) -> None:
        """Keep what behaviors are called in checkpoints, and remember what the run was called that this one follows."""
        options, self._names = self.settings.checkpoint_settings, names
        if options.resume:
            names.remember(identities(self.folder.status))
        elif options.initialize_from:
            names.remember(identities(RunFolder(options.results_dir, options.initialize_from).status))

    def load(self, behavior: Behavior) -> None:
        """Load the weights that a new behavior starts from, if any. Call it before `open` of behaviors of one message.

        Raises CheckpointError, or RunFolderError if its files would be another behavior's. Writes nothing, and removes
        nothing of an earlier run.
        """
        self._loaded.append(behavior.name)
        check_together(self._loaded)
        if self.settings.checkpoint_settings.resume:
            path = self._continued(behavior.name)
            if path is not None:
                host_saver.resume(behavior, path)
                if behavior.training and SELF_PLAY in (noted := read_info(path).settings):
                    earlier.check(self.folder.behavior(behavior.name), noted[SELF_PLAY], behavior.state.policy)
                self.resumed[behavior.name] = path
        else:
            for member in (behavior, *behavior.exploiters):
                like = member.state, member.spec, member.settings
                state = saver.initialized(self.settings, self.folder, behavior.name, *like)
                if state is not None:
                    member.begin_from(state)

    def first_policy(self, name: str, fresh: TrainState, spec: BehaviorSpec, settings: BehaviorSettings) -> PolicyState:
        """Return the policy of a behavior whose team is not complete: `fresh`'s, or the checkpoint's in a resumed run.

        Raises CheckpointError.
        """
        path = self._continued(name) if self.settings.checkpoint_settings.resume else None
        return fresh.policy if path is None else host_saver.first_policy(fresh, path, spec, settings)

    def _continued(self, name: str) -> Path | None:
        """Return the checkpoint that a behavior resumes from; None if it first appeared after the resumed moment."""
        if self.moment is None or not self.moment.paths:
            return require_latest(self.folder.behavior(name))
        return self.moment.paths.get(name)

    def open(self, behavior: Behavior) -> None:
        """Open the event file of a behavior that has its weights."""
        statistics = EpisodeStatistics(behavior.settings, teams=behavior.algorithm.team_rows)
        folder = self.folder.behavior(behavior.main or behavior.name)
        self.open_track(
            behavior.name,
            statistics,
            behavior.settings,
            saver.settings_of(behavior.settings),
            step=behavior.step,
            events=[folder if behavior.main is None else self.folder.path / behavior.name],
        )
        self._statistics[behavior.name], self._opened[behavior.name] = statistics, behavior

    def acted(self, behavior: Behavior, before: int, episodes: Sequence[EpisodeRecords]) -> None:
        """Record a booked message's finished episodes; write summary and checkpoint if their step is reached.

        A behavior past its max_steps is still recorded while others train, as in ML-Agents.
        """
        with self.timers(nodes.PROCESS):
            self._statistics[behavior.name].episodes(episodes)
            self._notice_group_rewards(behavior)
            self._notice_undecided_rewards(behavior)
        ended = sum(len(records.returns) for records in episodes)
        self.first_look.acted(behavior.name, behavior.step - before, ended)
        reached = due(behavior.settings, before, behavior.step)
        if reached.summary is not None:
            alone = before <= behavior.settings.max_steps and not behavior.stopped
            learns = alone or (bool(behavior.team) and behavior.unfinished())  # its team has steps left
            self._summary(behavior, reached.summary, training=behavior.training and learns)
        keeps = behavior.training and behavior.main is None
        if keeps and (reached.checkpoint or self.checkpoints.are_old(behavior.name)):
            self.due = self.exact
            if not self.exact:
                self._save(behavior)

    def followed(self, episodes: Sequence[Episode]) -> None:
        """Record followed episodes that are over, for every behavior that had agents in them.

        Faulty ones are left out: their returns are incomplete.
        """
        for episode in episodes:
            for name in () if episode.faulty else dict.fromkeys(agent.behavior for agent in episode.agents):
                if name in self._statistics:  # not while its team is not complete
                    self._statistics[name].followed(name, episode)

    def save_all(self, behaviors: Sequence[Behavior]) -> None:
        """Save all behaviors at one moment; statistics begin anew, as in a run that is resumed from there.

        The checkpoints of the moment before are complete when the first new one begins, so that one complete moment
        always exists.
        """
        self.due = False
        for behavior in behaviors:
            self.checkpoints.settle(behavior.name)
        for behavior in behaviors:
            self._save(behavior)
            self._statistics[behavior.name].begin_anew()
            if behavior.training and replays(behavior.algorithm) and not behavior.algorithm.storage.saved:
                saver.tell_empty(behavior.name, behavior.settings)  # empty as after a resume

    def save(self, behaviors: Sequence[Behavior]) -> None:
        """Save every behavior that trains, now, or with `exact` after the next update."""
        self.due = self.exact
        for behavior in behaviors if not self.exact else ():
            if behavior.training:
                self._save(behavior)

    def updated(self, behavior: Behavior, metrics: dict[str, float]) -> None:
        """Record an update; `metrics` is empty if the collected data was only stored."""
        self._statistics[behavior.name].signals(behavior.learner.earned.take())
        if metrics:
            self._statistics[behavior.name].update(metrics)
        if behavior.updates == 1:  # later updates also learn from decisions that were pending during an update
            self.check_ratio(behavior.name, metrics.get(LARGEST_LOG_RATIO, 0.0))
            self._notice_lone_members(behavior)

    def with_scene_tags(self, result: EnvMessage) -> EnvMessage:
        """Return the message with its statistics renamed where they would have tags of the trainer's."""
        if not any(tags.is_trainers(stat.name) for stat in result.stats):
            return result
        stats = tuple(stat._replace(name=tags.scene_tag(stat.name)) for stat in result.stats)
        self.notice_moved_names(stat.name for stat in stats)
        return result._replace(stats=stats)

    def environment(self, result: EnvMessage) -> None:
        """Record an environment's statistics for every behavior that it has shown so far.

        This includes behaviors without an agent in this message: ML-Agents gives them to every behavior it knows.
        """
        self.first_look.met(map(behavior_name, result.new_specs))
        for behavior_id in result.new_specs:
            name = behavior_name(behavior_id)
            if name not in self._opened or self._opened[name].settings.self_play is None:
                self._teams.meet(name, [behavior_id])
        shown = self._shown.setdefault(result.worker, {})
        shown |= dict.fromkeys(behavior_name(behavior_id) for behavior_id in (*result.new_specs, *result.steps))
        for name in shown if result.stats else ():
            if name in self._opened:  # not while its team is not complete
                league = (name, *(exploiter.name for exploiter in self._opened[name].exploiters))
                self._statistics[league[result.worker % len(league)]].environment(result.stats, result.worker)

    def reported(self, values: Sequence[tuple[str, float]]) -> None:
        """Record statistics from callbacks, by tag, for every behavior."""
        for tag, value in values:
            for statistics in self._statistics.values():
                statistics.reported(tag, value)

    def rated(self, name: str, games: Sequence[Rated]) -> None:
        """Record the learner's rating after each of its games against snapshots, and which were decided."""
        for game in games:
            self._statistics[name].reported(tags.ELO, game.elo)
            self._statistics[name].reported(tags.DECIDED, float(game.decided))
        if games:
            self.lessons.rated(name, games[-1].elo)

    def told(self, name: str, tag: str, value: float) -> None:
        """Record one statistic for this behavior alone."""
        self._statistics[name].reported(tag, value)

    def lost(self, name: str, loss: Loss, dropped: int) -> None:
        """Record a lost worker and the episodes of `dropped` agents, with one pending decision each.

        A worker that was closed in order counts neither as a restart nor its episodes as faulty.
        """
        if not loss.in_order:
            self._statistics[name].lost(dropped)
        why = loss.why.partition("\n")[0]
        log.warning(
            "%s: %d %sepisodes of worker %d end here and their %d open decisions are dropped: it %s",
            name, dropped, "" if loss.in_order else "faulty ", loss.worker, dropped, why,
        )  # fmt: skip

    def pause(self, behaviors: Sequence[Behavior]) -> None:
        """Save every behavior as at the end of a run, because this may be one."""
        for behavior in behaviors:
            if behavior.training:
                self._save_final(behavior)

    def show_progress(self, behaviors: Sequence[Behavior]) -> None:
        """Refresh the progress bar if it is due."""
        self.checkpoints.tell_saved()
        if self.progress_due():
            self.progress_of({behavior.name: behavior.step for behavior in behaviors})

    def finish(self, behaviors: Sequence[Behavior], cause: Exception | None, *, played: bool = True) -> None:
        """Save every behavior for the last time (none with inference), and print the run's result if `played`.

        `cause` is the error that ended the run. With it, errors while saving are only logged, and behaviors without a
        finished decision are not saved.
        """
        if played:
            self.say_results(self._saved)
        for name, spent in self.times.by_name().items():
            self.timers.gauge(f"Time.{name.replace(' ', '')}.mean_ms", spent.mean)
            self.timers.gauge(f"Time.{name.replace(' ', '')}.smoothed_ms", spent.smoothed)
        log.debug("%s", self.times.table())
        trained = [behavior for behavior in behaviors if behavior.training and (cause is None or behavior.step > 0)]
        take_all([*(partial(self._save_final, behavior) for behavior in trained), self.checkpoints.tell_saved], cause)

    @property
    def _saved(self) -> dict[str, Behavior]:
        """Behaviors with checkpoints of their own: all but exploiters."""
        return {name: behavior for name, behavior in self._opened.items() if behavior.main is None}

    def _summary(self, behavior: Behavior, label: int, *, training: bool) -> None:
        statistics = self._statistics[behavior.name]
        if not statistics.updated:  # every summary holds entropy and value estimates
            statistics.estimates(behavior.estimates())
        statistics.lessons(self.lessons.numbers)
        if self.settings.env_settings.time_statistics:
            statistics.times({name: spent.smoothed for name, spent in self.times.by_name().items()})
        self.write_summary(behavior.name, label, training=training)
        media = statistics.media()
        if media:
            self.files.images(behavior.name, label, media)
        if training:
            self.judged(behavior)

    def evaluated(self, behavior: Behavior, step: int, found: dict[str, Summary]) -> None:
        """Record the statistics of the evaluation at this step."""
        self.write_evaluation(behavior.name, step, [self._statistics[behavior.name].of_evaluation(found)])
        self.judged(behavior)

    def judged(self, behavior: Behavior) -> None:
        """Save the best checkpoint, and stop the training if a rule says so, by the newest summary or evaluation.

        Exploiters are left out: they are not results of the run.
        """
        if behavior.main is not None:
            return
        self.keep_best(behavior.name, lambda _: host_saver.snapshot_of(behavior))
        verdict = self.verdict(behavior.name)
        if verdict is not None and behavior.unfinished():
            log.info("%s", verdict)
            behavior.stop()

    def _save(self, behavior: Behavior, *, final: bool = False) -> None:
        reward = self._statistics[behavior.name].checkpoint_reward()
        self.checkpoints.save(behavior.name, behavior.moment, partial(self._snapshot, behavior), reward, final=final)

    def _snapshot(self, behavior: Behavior) -> Snapshot:
        snapshot = host_saver.snapshot_of(behavior)._replace(lessons=entries_of(self.lessons))
        identity = self._names.identity_of(behavior.name)
        if identity is not None:
            snapshot = snapshot._replace(notes={**snapshot.notes, IDENTITY: identity._asdict()})
        snapshot = self.amend(behavior, self.with_shown(snapshot))
        return snapshot._replace(described={**snapshot.described, **self._noted()}) if self.exact else snapshot

    def _noted(self) -> dict[str, Any]:
        """Return the moment of all behaviors and the lessons, which an exact resume needs (see exact.py)."""
        moment = {name: [behavior.step, behavior.decisions] for name, behavior in self._saved.items()}
        return {MOMENT: moment, LESSONS: [self.lessons.state()]}

    def _save_final(self, behavior: Behavior) -> None:
        self._save(behavior, final=True)
        reward = self._statistics[behavior.name].checkpoint_reward()
        saver.publish(behavior.name, behavior.step, self.folder, self.status, reward)

    def _notice_lone_members(self, behavior: Behavior) -> None:
        places = behavior.algorithm.places
        if places is None or not isinstance(behavior.actor, ActingPolicy):
            return
        if behavior.actor.paged is None or behavior.actor.paged.slots.members > 1:
            return
        log.warning(
            "%s: hyperparameters.share_policy is false, but no team has had a second member so far: all agents follow "
            "the policy of the first of %d places. Let the agents of a team register in one group (in Unity "
            "SimpleMultiAgentGroup).",
            behavior.name, places,
        )  # fmt: skip

    def _notice_group_rewards(self, behavior: Behavior) -> None:
        alone = not behavior.algorithm.team_rows and behavior.name not in self._warned
        if not alone or not self._statistics[behavior.name].group_rewards:
            return
        self._warned.add(behavior.name)
        log.warning(
            "%s: the environment sends group rewards, but trainer_type %s credits an agent only for what it lives to "
            "see. They are added to its own reward; trainer_type poca is made for them.",
            behavior.name, behavior.settings.trainer_type,
        )  # fmt: skip

    def _notice_undecided_rewards(self, behavior: Behavior) -> None:
        if behavior.name in self._undecided or not self._statistics[behavior.name].undecided:
            return
        self._undecided.add(behavior.name)
        log.warning(
            "%s: rewards arrive for which no decision was made: with an agent's first request, or with the end of an "
            "agent that never asked. Nobody learns from them, and Environment/Cumulative Reward leaves them out, as in "
            "ML-Agents; %s tells them. In Unity, call AddReward before EndEpisode.",
            behavior.name, tags.UNDECIDED_REWARD,
        )  # fmt: skip


class Notices:
    """Warns once while a run collects: of buffers that grow large, and environments whose agents never ask.

    Checks every message, in about 0.5 microseconds.
    """

    def __init__(self) -> None:
        self._large: set[str] = set()  # behaviors with a warning
        self._idle = 0  # consecutive messages without a decision
        self._said_idle = False
        self._cancelling = CancellingRewards()

    def messages(self, results: Sequence[EnvMessage]) -> None:
        """Warn once if environments have stepped for long without any agent that asks for a decision."""
        for result in results:
            if any(len(steps.deciding.agent_id) for steps in result.steps.values()):
                self._idle = 0
                continue
            self._idle += 1
            if self._idle >= IDLE_MESSAGES and not self._said_idle:
                self._said_idle = True
                log.warning(
                    "Environments have sent %d messages in a row in which no agent asks for a decision (worker "
                    "%d sent the last): nothing is collected, and steps of the environment alone do not count. Check "
                    "that episodes begin again and that agents have a Decision Requester.",
                    self._idle, result.worker,
                )  # fmt: skip

    def team_rewards(self, results: Sequence[EnvMessage], behaviors: Mapping[str, Behavior]) -> None:
        """Rewards of what arrived: teams that learn from a sum that is always 0 are named."""
        for result in results:
            for behavior_id, steps in result.steps.items():
                name = behavior_name(behavior_id)
                trainer_type = behaviors[name].settings.trainer_type if name in behaviors else ""
                if trainer_type and TRAINER_TYPES[trainer_type].cooperative:
                    both = zip(*((of.group_id, of.reward) for of in (steps.ended, steps.deciding)), strict=True)
                    text = self._cancelling.see(name, trainer_type, *map(np.concatenate, both))
                    if text:
                        log.warning("%s", text)

    def collected(self, behavior: Behavior) -> None:
        """Warn once if a behavior's buffer holds very many decisions; nothing is dropped."""
        size = behavior.learner.algorithm.collect_size
        held = behavior.collector.held
        if held <= max(LEAST_LARGE, TIMES_LARGE * size) or behavior.name in self._large or not behavior.training:
            return
        self._large.add(behavior.name)
        log.warning(
            "%s: %d agent steps wait for an update, which asks for %d %s. Every agent's steps count. %s",
            behavior.name, held, size, behavior.settings.count_by.replace("_", " "),
            "An update takes episodes that have ended alone: they may be endless, then let the environment end them or "
            "set max_episode_length." if behavior.settings.batch_mode == "complete_episodes"
            else "Where many agents share an environment, lower buffer_size or write count_by: agent_steps.",
        )  # fmt: skip
