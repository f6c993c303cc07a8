"""Write all output of a run: summaries, checkpoints, status, configuration, timers, console and progress bar.

Both loops use this recorder. They hand in their differences: a `Statistics` per behavior has the summaries of its event
files (one file in the host loop, one per seed in the compiled one), a `Snapshot` the contents of a checkpoint. A
behavior's `Judge` decides when its training ends; `StatisticsFiles` and `Checkpoints` do the writing.

An evaluation (--inference --resume) leaves the run's folder unchanged, bit for bit: summaries only go to the console.
Files of an earlier run are changed only when training really begins, that is when the first behavior is opened.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import jax

from jaxrl import trust
from jaxrl.artifacts import run_manifest
from jaxrl.artifacts.files import ArtifactError, write_text
from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.artifacts.metrics.console import ConsoleWriter, lesson_texts
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.metrics.statistics import Summary, over_seeds
from jaxrl.artifacts.metrics.step_clock import never_due
from jaxrl.artifacts.metrics.timers import Timers
from jaxrl.artifacts.onnx.export import ExportError
from jaxrl.artifacts.run_folder import RunFolder, only_evaluates
from jaxrl.artifacts.status import GROUP_REWARDS, STOP, TrainingStatus
from jaxrl.settings import BehaviorSettings, RunSettings, to_yaml
from jaxrl.settings.records import CUT
from jaxrl.training.checkpoints import Checkpoints, OnSaved
from jaxrl.training.errors import DivergedError, LostWrites
from jaxrl.training.first_look import FirstLook
from jaxrl.training.judging import Highest, Judge
from jaxrl.training.saver import Best, Snapshot
from jaxrl.training.statistics_files import StatisticsFiles
from jaxrl.types import JaxrlError

log = logging.getLogger(__name__)


LARGE_LOG_RATIO = 0.1
"""Half of the usual clip range; rounding gives 1e-6, on accelerators that multiply in 19 bits 1e-2."""


class Statistics(Protocol):
    """Statistics of one behavior since its last summary, and recent returns."""

    group_rewards: bool
    """True if any group reward was seen; if not, the agents' individual returns are shown and judged."""

    def take(self) -> list[dict[str, Summary]]:
        """Return the summary of each tag for each event file, and empty the statistics."""
        ...

    def mean_reward(self) -> float | None:
        """Compute the mean return of about the last 100 episodes, of teams with group rewards; None before any."""
        ...

    def result_line(self, name: str) -> str | None:
        """Return a sentence with the result of the run, or None."""
        ...


@dataclass
class _Track:
    """State of a behavior of the run."""

    title: str  # on the console
    statistics: Statistics
    settings: BehaviorSettings
    judge: Judge
    highest: Highest | None = None  # highest value of the statistic keep_best in the newest summary or evaluation
    described: Mapping[str, Any] = field(default_factory=dict)  # its settings; empty once `memory_remark` was logged
    summed_up: tuple[int, float] = (0, 0.0)  # trainer step of the last summary and its time, in monotonic seconds

    def with_pace(self, step: int, taken: Sequence[Mapping[str, Summary]]) -> list[Mapping[str, Summary]]:
        """Add the number of episodes that ended since the last summaries, and the pace, to each seed's summaries."""
        now = time.monotonic()
        steps, seconds = step - self.summed_up[0], now - self.summed_up[1]
        self.summed_up = step, now
        pace = {tags.STEPS_PER_SECOND: Summary.of(steps / seconds)} if steps > 0 and seconds > 0 else {}
        return [summaries and {**summaries, **_finished(summaries), **pace} for summaries in taken]


class Recorder:
    """Files and console of one run. A context manager: its end writes pending output and closes the files.

    Args:
      phases: timers whose shares the progress bar shows, by the word it shows them with.
      on_saved: as for `Checkpoints`.
    """

    def __init__(
        self,
        settings: RunSettings,
        folder: RunFolder,
        progress: ProgressBar,
        phases: Mapping[str, str],
        on_saved: OnSaved | None = None,
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.timers = Timers()
        self.status = TrainingStatus(folder.status)
        self.first_look = FirstLook(settings)
        self.begun = False
        self.writes = not only_evaluates(settings.checkpoint_settings)
        self._progress = progress
        self._phases = phases
        self._console = ConsoleWriter()
        self._tracks: dict[str, _Track] = {}
        self._unlike: set[str] = set()  # behaviors that `check_ratio` has warned of
        self._cut: set[str] = set()  # behaviors with a warning that evaluation episodes are cut
        self._moved_names: set[str] = set()  # environment statistics with a warning that they are renamed
        lost, minutes = LostWrites(), settings.checkpoint_settings.checkpoint_minutes
        self.files = StatisticsFiles(settings, folder, self.status, lost)
        self.checkpoints = Checkpoints(folder, self.status, self.timers, lost, minutes, on_saved)

    def open_track(
        self,
        name: str,
        statistics: Statistics,
        settings: BehaviorSettings,
        described: Mapping[str, Any],
        *,
        step: int,
        events: Sequence[Path],
        title: str | None = None,
    ) -> None:
        """Open the event files of a behavior that has its initial weights, and print its settings.

        Args:
          described: its settings, and notes about them, as plain values.
          step: trainer step that it starts at; a resumed run's points after it are dropped.
          events: folders of its event files.
        """
        if not self.begun:
            self._begin()
        judge = Judge(name, settings, len(events))
        judge.restore(self.status.get(name, STOP, {}))
        statistics.group_rewards |= self.status.get(name, GROUP_REWARDS, False)
        begun = step, time.monotonic()
        self._tracks[name] = _Track(title or name, statistics, settings, judge, described=described, summed_up=begun)
        self.checkpoints.meet(name)
        self.files.open(name, events if self.writes else (), described, step)
        self._console.hyperparameters(name, described)
        for text in never_due(settings) if self.writes else ():
            log.info("%s: %s.", title or name, text)

    def check_ratio(self, name: str, largest: float) -> None:
        """Warn once if a policy gives its own decisions other probabilities than when it made them.

        largest: metric `LARGEST_LOG_RATIO` of an update that learned only from the newest policy's decisions.
        """
        if not largest > LARGE_LOG_RATIO or name in self._unlike:
            return
        self._unlike.add(name)
        log.warning(
            "%s: before anything was learned from them, decisions of this very policy are %.3g times as likely as when "
            "it made them, or as unlikely (Policy/Largest Log Ratio: %.3g, expected about 0): what is learned from is "
            "not what was seen or done. Look at networks, connectors, postprocess and algorithms of your own; without "
            "any, this is a fault of jaxrl.",
            name, math.exp(min(largest, 80.0)), largest,
        )  # fmt: skip

    def notice_moved_names(self, sent: Iterable[str]) -> None:
        """Warn once for each statistic of the environment, by tag, that is written under another name."""
        for name in tags.moved_names(sent):
            if name not in self._moved_names:
                self._moved_names.add(name)
                log.warning(
                    "The environment sends a statistic named %r, which is the trainer's own: it is written as %r. Give "
                    "it another name in the scene (StatsRecorder).",
                    name, tags.scene_tag(name),
                )  # fmt: skip

    def write_summary(self, name: str, step: int, *, training: bool) -> None:
        """Write the summary since the last one, labelled with `step`: events, gauges, a console line.

        An event file that cannot be written loses it, with a message. Raises the error of a checkpoint thread.
        """
        self.checkpoints.writer.raise_errors()
        track = self._tracks[name]
        summaries = track.statistics.take()
        self.files.summaries(name, step, track.with_pace(step, summaries))
        if self.writes and not self.folder.configuration.exists():  # the run's folder was deleted
            with suppress(ArtifactError):
                self._describe(resume=True)
        if training:
            track.highest = track.judge.see(step, summaries)
        added = {tags.IS_TRAINING: Summary.of(float(training)), tags.STEP: Summary.of(float(step))}
        # A new mapping: writers in threads may still read the summaries.
        together = (summaries[0] if len(summaries) == 1 else over_seeds(track.judge.counting(summaries))) | added
        self.timers.gauge_summaries(name, together)
        if not track.statistics.group_rewards:
            together.pop(tags.GROUP_CUMULATIVE_REWARD, None)
        lessons = lesson_texts(self.settings.environment_parameters, summaries)
        self._console.summaries(track.title, step, together, lessons)
        short = memory_remark(track.described, together)
        if short is not None:
            log.info("%s: %s.", track.title, short)
            track.described = {}

    def write_evaluation(self, name: str, step: int, found: Sequence[dict[str, Summary]]) -> None:
        """Write the statistics of evaluation episodes at this step, one mapping per event file."""
        track = self._tracks[name]
        self.files.summaries(name, step, found)
        track.highest = track.judge.see(step, found)
        together = over_seeds(track.judge.counting(found))
        text = ", ".join(f"{tag} {_in_words(summary)}" for tag, summary in together.items() if tag != CUT)
        log.info("%s. Step: %d. %s.", track.title, step, text or "No evaluation episode was over in time")
        cut = together[CUT].mean if CUT in together else 0.0
        if cut and name not in self._cut and track.settings.evaluation is not None:
            self._cut.add(name)
            log.warning(
                "%s: of %d evaluation episodes %g were not over after %d steps (evaluation.max_length): they count "
                "with what they had earned by then, and %s tells how many there are. Raise max_length, or let the "
                "environment end its episodes.",
                track.title, track.settings.evaluation.episodes, cut, track.settings.evaluation.max_length, CUT,
            )  # fmt: skip

    def verdict(self, name: str) -> str | None:
        """Return why a `stop` rule ends this behavior's training before its max_steps; None: it goes on."""
        return self._tracks[name].judge.verdict

    def with_shown(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with notes about the statistics so far, from which a resumed run continues."""
        track = self._tracks[snapshot.name]
        shown = {GROUP_REWARDS: True} if track.statistics.group_rewards else {}
        counted = {STOP: track.judge.state()} if track.settings.stop else {}
        return snapshot._replace(notes={**snapshot.notes, **shown, **counted})

    def leave_out(self, name: str, index: int) -> None:
        """Leave a seed out of the judge's decisions."""
        self._tracks[name].judge.leave_out(index)

    def keep_best(self, name: str, snapshot: Callable[[int], Snapshot], seeds: Sequence[int] = ()) -> None:
        """Save a separate checkpoint if the newest value of the statistic `keep_best` is the highest so far.

        Args:
          snapshot: index of a seed → its snapshot; called at once.
          seeds: numbers of the seeds, if there are several.
        """
        track = self._tracks[name]
        highest, statistic = track.highest, track.settings.keep_best
        track.highest = None
        if highest is None or statistic is None or not self.writes:
            return
        best = Best(statistic, highest.value, seeds[highest.index] if len(seeds) > 1 else None)
        self.checkpoints.keep_best(name, best, partial(snapshot, highest.index), track.statistics.mean_reward())

    def say_results(self, names: Iterable[str], place: str = "") -> None:
        """Print the results of these behaviors on the console, each after the text `place`."""
        for name in names:
            line = self._tracks[name].statistics.result_line(name)
            if line is not None:
                log.info("%s%s", place, line)

    def progress_of(self, steps: Mapping[str, int]) -> None:
        """Show the trainer step of each behavior; call it after `progress_due`."""
        seconds = {word: self.timers.root.seconds_of(node) for word, node in self._phases.items()}
        for name, step in steps.items():
            track = self._tracks[name]
            last = None if self.settings.checkpoint_settings.inference else track.settings.max_steps
            self._progress.show(track.title, step, last, track.statistics.mean_reward(), seconds)

    def progress_due(self) -> bool:
        """Return whether the progress bar would show a new state now."""
        return self._progress.due()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, value: BaseException | None, *_: object) -> None:
        """Close event files; write configuration, timers and status unless training never began."""
        steps = [*self.checkpoints.last_steps(), *self.files.last_steps()]
        if self.begun and self.writes:
            steps.append(self._describe_end)
        take_all(steps, value)

    def _begin(self) -> None:
        resume = self.settings.checkpoint_settings.resume
        self.begun = True
        if not self.writes:
            if only_evaluates(self.settings.checkpoint_settings):
                log.info("Nothing is written to %s: this run only evaluates it.", self.folder.path)
            return
        self.folder.begin(resume)
        if resume:
            self.status.resume()
        self._describe(resume)
        trust.remember(self.folder.path, self.settings.model_dump(mode="json"))

    def _describe(self, resume: bool) -> None:
        devices = [f"{device.platform}: {device.device_kind}" for device in jax.devices()]
        run_manifest.write(self.folder.logs, devices, resume=resume)
        self._write_configuration()

    def _describe_end(self) -> None:
        """Write configuration, timers and status, unless the folder belongs to another run now."""
        self.folder.keep()
        take_all([self._write_configuration, partial(self.timers.write, self.folder.timers), self.status.write], None)

    def _write_configuration(self) -> None:
        write_text(self.folder.configuration, to_yaml(self.settings))


def _finished(summaries: Mapping[str, Summary]) -> dict[str, Summary]:
    returns = summaries.get(tags.CUMULATIVE_REWARD)
    return {tags.FINISHED_EPISODES: Summary.of(float(returns.count if returns else 0))}


def _in_words(summary: Summary) -> str:
    between = "" if summary.between is None else f" (std between seeds {summary.between:.3f})"
    return f"{summary.value:.3f}{between}"


def memory_remark(described: Mapping[str, Any], summaries: Mapping[str, Summary]) -> str | None:
    """Return a remark if episodes last longer than the sequences that a memory learns from, else None.

    Observations before the beginning of a sequence get no gradient, so remembering them is not learned (truncated
    backpropagation). In the probe whose cue must be remembered for k decisions, the best return, 1, is reached with
    sequence_length k + 1, and chance with less. ML-Agents' episode length leaves the last decision out, so one is
    added.

    Args:
      described: settings of the behavior as plain values.
    """
    memory = (described.get("network_settings") or {}).get("memory")
    length = summaries.get(tags.EPISODE_LENGTH)
    if memory is None or length is None or not length.count or length.mean + 1 <= memory["sequence_length"]:
        return None
    return (
        f"episodes last {length.mean + 1:.0f} decisions, network_settings.memory.sequence_length is "
        f"{memory['sequence_length']}: to remember something for longer than that is not learned; raise it (at most "
        "batch_size) if the task needs it"
    )


def take_all(steps: Sequence[Callable[[], object]], cause: BaseException | None) -> None:
    """Run every step, even if others fail, and raise the first error if there is no earlier `cause`.

    Other errors are logged, unless they follow from the cause: a full disk is reported once.
    """
    first = None
    for step in steps:
        try:
            step()
        except JaxrlError as error:
            if cause is None:
                cause = first = error
            elif not _follows(error, cause):
                log.error("%s", error)
    if first is not None:
        raise first


def _follows(error: JaxrlError, cause: BaseException) -> bool:
    kinds = (ArtifactError, ExportError, DivergedError)
    return any(isinstance(error, kind) and isinstance(cause, kind) for kind in kinds)
