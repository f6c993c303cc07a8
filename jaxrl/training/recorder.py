"""Everything that a run writes: summaries, checkpoints, status, configuration, timers, console and progress bar.

Both loops use this one recorder. What differs is handed in: a `Statistics` per behavior says what its event files
get (one file in the host loop, one per seed in the compiled one), a `Snapshot` what a checkpoint holds.

An evaluation (--inference --resume) leaves the run's folder as it is, bit for bit: summaries go to the console alone.
Files of an earlier run are touched only when training really begins, that is when the first behavior is opened.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from jaxrl.artifacts.checkpoint.errors import CheckpointError
from jaxrl.artifacts.files import ArtifactError, write_text
from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.console import ConsoleWriter
from jaxrl.artifacts.metrics.episode_figures import CUSTOM
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.metrics.statistics import Summary, over_seeds
from jaxrl.artifacts.metrics.timers import Timers
from jaxrl.artifacts.metrics.writers import OfRun, Place, StatisticsWriter, asked_for, hang_up, open_writers
from jaxrl.artifacts.onnx.export import ExportError
from jaxrl.artifacts.run_folder import RunFolder, only_evaluates
from jaxrl.artifacts.status import BEST_CHECKPOINT, RECORDS, TrainingStatus
from jaxrl.settings import BehaviorSettings, RunSettings, to_yaml
from jaxrl.training import memory_reach, saver
from jaxrl.training.checkpoint_writer import CheckpointWriter
from jaxrl.training.errors import DivergedError
from jaxrl.training.judging import Highest, Judge
from jaxrl.training.lost_writes import LostWrites
from jaxrl.training.saver import Best, Snapshot
from jaxrl.types import JaxrlError

log = logging.getLogger(__name__)


class Statistics(Protocol):
    """What one behavior has shown since its last summary, and of late."""

    def take(self) -> list[dict[str, Summary]]:
        """By event file, the summary of each tag; afterwards everything is empty."""
        ...

    def mean_reward(self) -> float | None:
        """Mean return of about the last 100 episodes, of teams if they earn; None before any."""
        ...

    def result_line(self, name: str) -> str | None:
        """How the run ended, in words; None: nothing to tell."""
        ...


@dataclass
class _Track:
    """One behavior of the run."""

    title: str  # on the console
    statistics: Statistics
    settings: BehaviorSettings
    judge: Judge
    writers: list[list[StatisticsWriter]] = field(default_factory=list)  # by event file; none in an evaluation
    highest: Highest | None = None  # of the statistic keep_best, in what was written last
    saved: Hashable = None  # the moment of the last checkpoint
    saved_at: float = field(default_factory=time.monotonic)  # seconds
    described: Mapping[str, Any] = field(default_factory=dict)  # its settings; empty once all is said about them


class Recorder:
    """Files and console of one run. A context manager: its end closes the files and writes what stands to be written.

    Args:
      phases: timers whose shares the progress bar shows, by the word it shows them with.
    """

    def __init__(
        self, settings: RunSettings, folder: RunFolder, progress: ProgressBar, phases: Mapping[str, str]
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.timers = Timers()
        self.status = TrainingStatus(folder.status)
        self.begun = False
        self.writes = not only_evaluates(settings.checkpoint_settings)
        self._progress = progress
        self._phases = phases
        self._console = ConsoleWriter()
        self._lost = LostWrites()
        self._checkpoints = CheckpointWriter(self._lost)
        minutes = settings.checkpoint_settings.checkpoint_minutes
        self._checkpoint_seconds = None if minutes is None else 60.0 * minutes
        self._tracks: dict[str, _Track] = {}
        self._told: set[str] = set()  # services that statistics could not be sent to
        self._of_run = OfRun(settings, {})
        self.on_saved: Callable[[str, int], None] | None = None  # told of each checkpoint: behavior, trainer step
        self._written: deque[tuple[str, int]] = deque()  # by the thread that writes

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
        """A behavior appeared and has the weights it starts from: open its event files, list its settings.

        Args:
          described: its settings as plain values, and what belongs to them.
          step: trainer step that it starts at; a resumed run's older points at or after it are dropped.
          events: folders of its event files.
        """
        resume = self.settings.checkpoint_settings.resume
        if not self.begun:
            self._begin(resume)
        judge = Judge(name, settings, len(events))
        track = self._tracks[name] = _Track(title or name, statistics, settings, judge, described=described)
        for folder in events if self.writes else ():
            place = self._place(name, folder, step if resume else None)
            track.writers.append(open_writers(self.settings.record_settings, place))
        every = [writer for writers in track.writers for writer in writers]
        self._write_events([partial(writer.hyperparameters, described, step) for writer in every])
        self._console.hyperparameters(name, described)

    def write_summary(self, name: str, step: int, *, training: bool) -> None:
        """Write what was collected since the last summary, labelled with `step`: events, gauges, a console line.

        Event files that cannot be written lose it, with a message. Raises what has gone wrong in a save meanwhile.
        """
        self._checkpoints.raise_errors()
        track = self._tracks[name]
        taken = track.statistics.take()
        self._write_statistics(track, step, taken, judged=training)
        together = taken[0] if len(taken) == 1 else over_seeds(taken)
        together |= {tags.IS_TRAINING: _constant(float(training)), tags.STEP: _constant(float(step))}
        self.timers.gauge_summaries(name, together)
        self._console.summaries(track.title, step, together)
        short = memory_reach.remark(track.described, together)
        if short is not None:
            log.info("%s: %s.", track.title, short)
            track.described = {}

    def write_evaluation(self, name: str, step: int, found: Sequence[dict[str, Summary]]) -> None:
        """By event file, the statistics of episodes that were played beside the training at this step."""
        track = self._tracks[name]
        self._write_statistics(track, step, found, judged=True)
        together = over_seeds(found)
        told = ", ".join(f"{tag} {summary.value:.3f}" for tag, summary in together.items())
        log.info("%s. Step: %d. %s.", track.title, step, told or "No evaluation episode was over in time")

    def verdict(self, name: str) -> str | None:
        """Why the training of this behavior ends before its max_steps, as its `stop` asks; None: it does not."""
        return self._tracks[name].judge.verdict

    def leave_out(self, name: str, index: int) -> None:
        """A seed is left behind: what the others show decides."""
        self._tracks[name].judge.leave_out(index)

    def keep_best(self, name: str, snapshot: Callable[[int], Snapshot], seeds: Sequence[int] = ()) -> None:
        """A checkpoint apart if what was written last is the best so far, by the statistic that the behavior names.

        It is written beside the training, as others are, and lost where a disk is full.

        Args:
          snapshot: of the seed at an index; called at once.
          seeds: their numbers, where there are several.
        """
        track = self._tracks[name]
        found, statistic = track.highest, track.settings.keep_best
        track.highest = None
        if found is None or statistic is None or not self.writes:
            return
        under_way = _best_of(name)
        with self.timers(nodes.CHECKPOINT):
            self._settle(under_way)
            before = self.status.get(name, BEST_CHECKPOINT)
            if before is not None and before["statistic"] == statistic and before["value"] >= found.value:
                return
            frozen = saver.copied(snapshot(found.index))
            best = Best(statistic, found.value, seeds[found.index] if len(seeds) > 1 else None)
            write = partial(saver.save_best, frozen, self.folder, self.status, track.statistics.mean_reward(), best)
            self._checkpoints.begin(under_way, write)

    def write_images(self, name: str, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Pictures uint8 [H, W, 3] under `Custom/<name>`, in every event file of the behavior."""
        pictures = {CUSTOM.format(name=image): pixels for image, pixels in images.items()}
        every = [writer for writers in self._tracks[name].writers for writer in writers]
        self._write_events([partial(writer.images, step, pictures) for writer in every])

    def tell_saved(self) -> None:
        """Tell `on_saved` of the checkpoints that have been written since the last call."""
        while self.on_saved is not None and self._written:
            self.on_saved(*self._written.popleft())

    def checkpoint_is_old(self, name: str) -> bool:
        """Whether checkpoint_minutes have passed since the last checkpoint."""
        seconds = self._checkpoint_seconds
        return seconds is not None and time.monotonic() - self._tracks[name].saved_at >= seconds

    def checkpoint(
        self,
        name: str,
        moment: Hashable,
        snapshot: Callable[[], Snapshot],
        reward: float | None,
        *,
        final: bool = False,
    ) -> None:
        """A checkpoint and its ONNX file, unless the last one shows this very moment.

        They are written beside the training. One that cannot be written is told in the log, and the run goes on; the
        `final` one is waited for.

        Raises:
          DivergedError: what was learned is not finite.
          ExportError: of this save if it is final, or of the one before.
          CheckpointError: the final one cannot be written; or the disk does not answer.
        """
        track = self._tracks[name]
        with self.timers(nodes.CHECKPOINT):
            self._settle(name)
            if track.saved != moment:
                frozen = saver.copied(snapshot())
                self._checkpoints.begin(name, partial(self._write_checkpoint, frozen, reward), final=final)
                track.saved, track.saved_at = moment, time.monotonic()
            error = self._settle(name) if final else None
        if error is not None:
            raise CheckpointError(f"{error} Then continue with --resume.") from error

    def publish(self, name: str, step: int, reward: float | None) -> None:
        """The policy of the checkpoint of this step where Unity's user looks for it. Raises ArtifactError."""
        saver.publish(name, step, self.folder, self.status, reward)

    def say_results(self, place: str = "") -> None:
        """How the run ended for each behavior, on the console, behind `place`."""
        for name, track in self._tracks.items():
            line = track.statistics.result_line(name)
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
        """Whether the progress bar would show a new state now."""
        return self._progress.due()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close event files and write configuration, timers and status. Nothing if training never began."""
        under_way = [name for track in self._tracks for name in (track, _best_of(track))]
        steps: list[Callable[[], object]] = [partial(self._settle, name) for name in under_way]
        every = [writer for track in self._tracks.values() for writers in track.writers for writer in writers]
        steps += [partial(hang_up, every), *(writer.close for writer in every)]
        if self.begun and self.writes:
            steps += [self._write_configuration, partial(self.timers.write, self.folder.timers), self.status.write]
        take_all(steps, value)

    def _write_checkpoint(self, snapshot: Snapshot, reward: float | None) -> None:
        saver.save_checkpoint(snapshot, self.folder, self.status, reward)
        if self.on_saved is not None:
            self._written.append((snapshot.name, snapshot.step))

    def _settle(self, name: str) -> ArtifactError | None:
        """Wait for the checkpoint under way; why it could not be written, if so."""
        seconds, error = self._checkpoints.settle(name)
        if seconds:
            self.timers.add(nodes.WRITE, seconds, is_parallel=True)
        if error is not None and name in self._tracks:
            self._tracks[name].saved = None
        return error

    def _write_statistics(self, track: _Track, step: int, taken: Sequence[dict[str, Summary]], *, judged: bool) -> None:
        """By event file, what was measured up to this step; and what follows from it, where somebody is trained."""
        self._write_events(
            [  # no writers in an evaluation
                partial(writer.summaries, step, summaries)
                for writers, summaries in zip(track.writers, taken, strict=False)
                for writer in writers
            ]
        )
        if judged:
            track.highest = track.judge.see(step, taken)

    def _place(self, name: str, folder: Path, resume_step: int | None) -> Place:
        """What writers are told of one event file."""
        seed = "" if folder == self.folder.behavior(name) else folder.name
        return Place(
            run_id=self.folder.run_id,
            behavior=name,
            seed=seed,
            folder=folder,
            logs=self.folder.logs,
            resume_step=resume_step,
            identity=self._identity(name, seed) if asked_for(self.settings.record_settings) else "",
            configuration=self.settings.model_dump(mode="json", exclude={"default_settings", "behaviors"}),
            told=self._told,
            run=self._of_run,
        )

    def _identity(self, name: str, seed: str) -> str:
        known = self.status.get(name, RECORDS, {})
        if seed not in known:
            known = {**known, seed: uuid.uuid4().hex[:16]}
            self.status.set(name, RECORDS, known)
        return known[seed]

    def _write_events(self, writes: Sequence[Callable[[], None]]) -> None:
        """One summary into each event file of a behavior; a file that cannot be written goes without it."""
        errors = []
        for write in writes:
            try:
                write()
            except ArtifactError as error:
                errors.append(error)
        if errors:
            self._lost.failed("summary", errors[0])
        else:
            self._lost.worked("summary")

    def _begin(self, resume: bool) -> None:
        self.begun = True
        if not self.writes:
            log.info("Nothing is written to %s: this run only evaluates it.", self.folder.path)
            return
        self.folder.begin(resume)
        if resume:
            self.status = TrainingStatus.load(self.folder.status)
        self._write_configuration()

    def _write_configuration(self) -> None:
        write_text(self.folder.configuration, to_yaml(self.settings))


def take_all(steps: Sequence[Callable[[], object]], cause: BaseException | None) -> None:
    """Take every step, whatever becomes of the others, and raise the first error if nothing was wrong before.

    Otherwise what is wrong now is logged, unless it follows from the cause: a full disk is reported once.
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


def _best_of(name: str) -> str:
    """What a best checkpoint is called while it is written."""
    return f"{name} (best)"


def _constant(value: float) -> Summary:
    return Summary(value=value, mean=value, std=0.0, sum=value, count=1, histogram=None)
