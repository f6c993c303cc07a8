"""Everything a run writes: summaries, checkpoints, timers, status and configuration. The host loop calls it in between.

Files of an earlier run are touched only when training really begins, that is when the first behavior appears.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType

from jaxrl.artifacts.files import ArtifactError, write_text
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.console import ConsoleWriter
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.metrics.reporter import Reporter
from jaxrl.artifacts.metrics.step_clock import crossed_multiple
from jaxrl.artifacts.metrics.timers import Timers
from jaxrl.artifacts.onnx.export import ExportError
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import TrainingStatus
from jaxrl.rollout.episodes import EpisodeRecords
from jaxrl.settings import RunSettings, to_yaml
from jaxrl.training import saver
from jaxrl.training.errors import DivergedError
from jaxrl.training.host import saver as host_saver
from jaxrl.training.host.behavior import Behavior
from jaxrl.types import JaxrlError, StepResult

log = logging.getLogger(__name__)


class Bookkeeping:
    """Files and console of one run."""

    def __init__(self, settings: RunSettings, folder: RunFolder, progress: ProgressBar) -> None:
        self.settings = settings
        self.folder = folder
        self.timers = Timers()
        self.begun = False
        self._progress = progress
        self._console = ConsoleWriter()
        self._status = TrainingStatus(folder.status)
        self._reporters: dict[str, Reporter] = {}
        self._group_rewards: set[str] = set()
        self._saved: dict[str, tuple[int, int, int]] = {}  # by behavior, the moment of its last checkpoint

    def open(self, behavior: Behavior) -> None:
        """A behavior appeared: load its weights if asked, then open its event file.

        Raises CheckpointError before anything of an earlier run is removed.
        """
        options = self.settings.checkpoint_settings
        if options.resume:
            host_saver.resume(behavior, self.folder)
        else:
            source = self.folder.initial_checkpoint(behavior.name, options.initialize_from, behavior.settings.init_path)
            if source is not None:
                host_saver.initialize(behavior, source)
        if not self.begun:
            self._begin(options.resume)
        reporter = Reporter(behavior.name, self.folder.behavior(behavior.name), self._console, self.timers)
        reporter.begin(saver.settings_of(behavior.settings), behavior.step if options.resume else None)
        self._reporters[behavior.name] = reporter
        if behavior.algorithm.team_rows:
            self._group_rewards.add(behavior.name)

    def acted(self, behavior: Behavior, before: int, episodes: Sequence[EpisodeRecords]) -> None:
        """One message was booked: summary and checkpoint if their step is reached, then the finished episodes."""
        reporter, settings = self._reporters[behavior.name], behavior.settings
        label = crossed_multiple(before, behavior.step - before, settings.summary_freq)
        if label is not None:
            reporter.summary(label, training=behavior.training)
        if behavior.training and crossed_multiple(before, behavior.step - before, settings.checkpoint_interval):
            self._save(behavior)
        self._notice_group_rewards(behavior, episodes)
        reporter.episodes(episodes, group_rewards=behavior.name in self._group_rewards)

    def updated(self, behavior: Behavior, metrics: dict[str, float]) -> None:
        """An update has run."""
        self._reporters[behavior.name].update(metrics)

    def environment(self, result: StepResult, names: Sequence[str]) -> None:
        """Statistics that an environment sent belong to every behavior it showed."""
        for name in names:
            self._reporters[name].environment(result.stats, result.worker)

    def show_progress(self, behaviors: Sequence[Behavior]) -> None:
        """Refresh the progress bar if it is due."""
        if not self._progress.due():
            return
        root = nodes.LEARNING
        seconds = {
            "environment": self.timers.seconds(root, nodes.ENV_STEP),
            "act": self.timers.seconds(root, nodes.EVALUATE),
            "update": self.timers.seconds(root, nodes.UPDATE_POLICY),
        }
        for behavior in behaviors:
            reward = self._reporters[behavior.name].mean_reward()
            self._progress.show(behavior.name, behavior.step, behavior.settings.max_steps, reward, seconds)

    def finish(self, behaviors: Sequence[Behavior], cause: Exception | None) -> None:
        """The final save of every behavior (none with inference); says how the run ended.

        `cause` is the error that ended the run. What goes wrong here is then only logged.
        """
        for behavior in behaviors:
            log.info("%s", self._reporters[behavior.name].result_line())
        _take_all([partial(self._save_final, behavior) for behavior in behaviors if behavior.training], cause)

    def __enter__(self) -> Bookkeeping:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close event files and write configuration, timers and status. Nothing if training never began."""
        steps: list[Callable[[], None]] = [reporter.close for reporter in self._reporters.values()]
        if self.begun:
            steps += [self._write_configuration, partial(self.timers.write, self.folder.timers), self._status.write]
        _take_all(steps, value)

    def _save(self, behavior: Behavior) -> None:
        """A checkpoint, unless the last one shows this very moment."""
        if self._saved.get(behavior.name) == behavior.moment:
            return
        with self.timers(nodes.CHECKPOINT):
            reward = self._reporters[behavior.name].checkpoint_reward()
            saver.save_checkpoint(host_saver.snapshot_of(behavior), self.folder, self._status, reward)
        self._saved[behavior.name] = behavior.moment

    def _save_final(self, behavior: Behavior) -> None:
        self._save(behavior)
        reward = self._reporters[behavior.name].checkpoint_reward()
        saver.publish(behavior.name, behavior.step, self.folder, self._status, reward)

    def _begin(self, resume: bool) -> None:
        self.folder.begin(resume)
        if resume:
            self._status = TrainingStatus.load(self.folder.status)
        self.begun = True
        self._write_configuration()

    def _write_configuration(self) -> None:
        write_text(self.folder.configuration, to_yaml(self.settings))

    def _notice_group_rewards(self, behavior: Behavior, episodes: Sequence[EpisodeRecords]) -> None:
        if behavior.name in self._group_rewards or not any(any(e.group_returns) for e in episodes):
            return
        self._group_rewards.add(behavior.name)
        log.warning(
            "%s: the environment sends group rewards, but trainer_type %s credits an agent only for what it lives to "
            "see. They are added to its own reward; trainer_type poca is made for them.",
            behavior.name, behavior.settings.trainer_type,
        )  # fmt: skip


def _take_all(steps: Sequence[Callable[[], None]], cause: BaseException | None) -> None:
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
