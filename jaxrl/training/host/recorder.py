"""The recorder of the host loop: behaviors that appear one by one, episodes and updates as they come."""

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
"""A buffer is large above so many agent steps, or so many times buffer_size (R4)."""
IDLE_MESSAGES = 100
"""Messages in a row without a decision after which that is said (R54)."""
PHASES = {"environment": nodes.ENV_STEP, "act": nodes.EVALUATE, "update": nodes.UPDATE_POLICY}


class HostRecorder(Recorder):
    """Files and console of one run of the host loop."""

    def __init__(
        self, settings: RunSettings, folder: RunFolder, progress: ProgressBar, on_saved: OnSaved | None = None
    ) -> None:
        super().__init__(settings, folder, progress, PHASES, on_saved)
        self.exact = settings.checkpoint_settings.exact and not settings.checkpoint_settings.inference
        self.due = False  # with `exact`: a checkpoint is to be made after the next update
        resumes = self.exact and settings.checkpoint_settings.resume
        self.moment = moment_of_run(folder) if resumes else None  # that an exact run goes on from
        self.times = StepTimes(self.timers)
        self.lessons = self._lessons()
        self.resumed: dict[str, Path] = {}  # by behavior, the checkpoint that it goes on from
        self.amend: Callable[[Behavior, Snapshot], Snapshot] = lambda _, snapshot: snapshot
        """What else a checkpoint holds; whoever knows of it sets this."""
        self._names = BehaviorNames()
        self._statistics: dict[str, EpisodeStatistics] = {}
        self._loaded: list[str] = []
        self._opened: dict[str, Behavior] = {}
        self._teams = SharedLearners()
        self._shown: dict[int, dict[str, None]] = {}  # names of behaviors without a team, by worker
        self._warned: set[str] = set()  # behaviors that credit no teams, and were paid as such
        self._undecided: set[str] = set()  # behaviors that were paid for no decision, of which it was said

    def _lessons(self) -> Lessons:
        """Of the run: a resumed one goes on where it was."""
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
        """A behavior appeared: the weights that it starts from, if asked. Comes before `open` of any that came with it.

        Raises CheckpointError, or RunFolderError where its files would be those of another. Nothing is written, and of
        an earlier run nothing is removed.
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
            for of in (behavior, *behavior.exploiters):
                like = of.state, of.spec, of.settings
                state = saver.initialized(self.settings, self.folder, behavior.name, *like)
                if state is not None:
                    of.begin_from(state)

    def first_policy(self, name: str, fresh: TrainState, spec: BehaviorSpec, settings: BehaviorSettings) -> PolicyState:
        """What a behavior acts with that learns with others which have not been seen: of `fresh`, or as a run goes on.

        Raises CheckpointError.
        """
        path = self._continued(name) if self.settings.checkpoint_settings.resume else None
        return fresh.policy if path is None else host_saver.first_policy(fresh, path, spec, settings)

    def _continued(self, name: str) -> Path | None:
        """The checkpoint that a behavior goes on from; None: it appeared after the moment that the run goes on from."""
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
        """One message was booked: its finished episodes, then summary and checkpoint if their step is reached.

        A behavior past its max_steps goes on here while others train, as in ML-Agents; it only learns no more.
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
            learns = alone or (bool(behavior.team) and behavior.unfinished())  # with its mates it goes on
            self._summary(behavior, reached.summary, training=behavior.training and learns)
        keeps = behavior.training and behavior.main is None
        if keeps and (reached.checkpoint or self.checkpoints.are_old(behavior.name)):
            self.due = self.exact
            if not self.exact:
                self._save(behavior)

    def followed(self, episodes: Sequence[Episode]) -> None:
        """Episodes that somebody follows are over. They count for every behavior that they had agents of.

        Faulty ones count for none: their returns are only a part.
        """
        for episode in episodes:
            for name in () if episode.faulty else dict.fromkeys(agent.behavior for agent in episode.agents):
                if name in self._statistics:  # not while others of its team have not been seen
                    self._statistics[name].followed(name, episode)

    def save_all(self, behaviors: Sequence[Behavior]) -> None:
        """Checkpoints of one moment; statistics begin anew, as in a run that is resumed from them.

        Those of the moment before are complete when the first of these begins, so that there is always one of all.
        """
        self.due = False
        for behavior in behaviors:
            self.checkpoints.settle(behavior.name)
        for behavior in behaviors:
            self._save(behavior)
            self._statistics[behavior.name].begin_anew()
            if behavior.training and replays(behavior.algorithm) and not behavior.algorithm.storage.saved:
                saver.tell_empty(behavior.name, behavior.settings)  # here as well

    def save(self, behaviors: Sequence[Behavior]) -> None:
        """A checkpoint of every behavior that trains, now, or with `exact` after the next update."""
        self.due = self.exact
        for behavior in behaviors if not self.exact else ():
            if behavior.training:
                self._save(behavior)

    def updated(self, behavior: Behavior, metrics: dict[str, float]) -> None:
        """An update has run; there are no metrics where what was collected was only kept for later."""
        self._statistics[behavior.name].signals(behavior.learner.earned.take())
        if metrics:
            self._statistics[behavior.name].update(metrics)
        if behavior.updates == 1:  # later ones also learn from decisions that were open during an update
            self.check_ratio(behavior.name, metrics.get(LARGEST_LOG_RATIO, 0.0))
            self._notice_lone_members(behavior)

    def with_scene_tags(self, result: EnvMessage) -> EnvMessage:
        """The message whose statistics are apart from the trainer's own."""
        if not any(tags.is_trainers(stat.name) for stat in result.stats):
            return result
        stats = tuple(stat._replace(name=tags.scene_tag(stat.name)) for stat in result.stats)
        self.notice_moved_names(stat.name for stat in stats)
        return result._replace(stats=stats)

    def environment(self, result: EnvMessage) -> None:
        """Statistics that an environment sent belong to every behavior that it has shown so far.

        Also to those that have no agent in this message: ML-Agents gives them to every behavior it knows.
        """
        self.first_look.met(map(behavior_name, result.new_specs))
        for behavior_id in result.new_specs:
            name = behavior_name(behavior_id)
            if name not in self._opened or self._opened[name].settings.self_play is None:
                self._teams.meet(name, [behavior_id])
        shown = self._shown.setdefault(result.worker, {})
        shown |= dict.fromkeys(behavior_name(behavior_id) for behavior_id in (*result.new_specs, *result.steps))
        for name in shown if result.stats else ():
            if name in self._opened:  # not while others of its team have not been seen
                league = (name, *(of.name for of in self._opened[name].exploiters))
                self._statistics[league[result.worker % len(league)]].environment(result.stats, result.worker)

    def reported(self, values: Sequence[tuple[str, float]]) -> None:
        """Statistics that callbacks gave, by tag: they belong to every behavior."""
        for tag, value in values:
            for statistics in self._statistics.values():
                statistics.reported(tag, value)

    def rated(self, name: str, games: Sequence[Rated]) -> None:
        """Note the learner's rating after each of its games against earlier selves, and which were decided."""
        for game in games:
            self._statistics[name].reported(tags.ELO, game.elo)
            self._statistics[name].reported(tags.DECIDED, float(game.decided))
        if games:
            self.lessons.rated(name, games[-1].elo)

    def told(self, name: str, tag: str, value: float) -> None:
        """A statistic of this behavior alone."""
        self._statistics[name].reported(tag, value)

    def lost(self, name: str, loss: Loss, dropped: int) -> None:
        """A worker's process is no more, and `dropped` agents' episodes, with one open decision each (X11).

        Neither a restart nor faulty where it was closed in order.
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
        """The final save of every behavior (none with inference); says how the run ended, where something was `played`.

        `cause` is the error that ended the run. What goes wrong here is then only logged, and a behavior that had not
        finished one decision is not saved: a model of step 0 is nobody's result.
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
        """Those that are somebody's result: all but exploiters."""
        return {name: behavior for name, behavior in self._opened.items() if behavior.main is None}

    def _summary(self, behavior: Behavior, label: int, *, training: bool) -> None:
        statistics = self._statistics[behavior.name]
        if not statistics.updated:  # entropy and value estimates stand in every summary
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
        """Episodes were played beside the training at this step."""
        self.write_evaluation(behavior.name, step, [self._statistics[behavior.name].of_evaluation(found)])
        self.judged(behavior)

    def judged(self, behavior: Behavior) -> None:
        """What was written last has consequences: the best checkpoint so far, or the end of the training.

        Not what exploiters show, who are no results.
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
        """What an exact continuation needs to know of the others at this moment (see exact.py)."""
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
    """What a run says once while it collects: buffers that grow large, environments in which nobody asks.

    Looks at every message, for some 0.5 microseconds.
    """

    def __init__(self) -> None:
        self._large: set[str] = set()  # behaviors of which it was said
        self._idle = 0  # messages in a row
        self._said_idle = False
        self._cancelling = CancellingRewards()

    def messages(self, results: Sequence[EnvMessage]) -> None:
        """What arrived: environments that step on without any agent that asks are named (R54, M15)."""
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
        """What a behavior's buffer holds now: a large one is named (R59, M14). Nothing is dropped."""
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
