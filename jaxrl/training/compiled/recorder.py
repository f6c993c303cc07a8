"""The recorder of the compiled loop: one behavior, all of its seeds, sums of whole chunks of iterations.

A run of one seed leaves the same files as the host loop. With several seeds `<Behavior>/` has a folder of events per
seed (`seed_<number>/`), one checkpoint holds them all, and the ONNX files are those of the seed that does best lately.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import numpy as np

from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.settings import RunSettings
from jaxrl.training.compiled.iteration import IterationLog, JittedState
from jaxrl.training.compiled.saver import Subject, snapshot
from jaxrl.training.compiled.statistics import SeedStatistics
from jaxrl.training.recorder import Recorder
from jaxrl.training.saver import Snapshot
from jaxrl.training.trained_policy import BEST_SEED
from jaxrl.types import JaxrlError

log = logging.getLogger(__name__)

FROZEN_SEEDS = "frozen_seeds"
"""Entry of a behavior in training_status.json: by the number of a seed, at which step it was left behind and why."""
PHASES = {"iterations": nodes.ITERATIONS, "checkpoints": nodes.CHECKPOINT}


class CompiledRecorder(Recorder):
    """Files and console of one compiled run."""

    def __init__(self, settings: RunSettings, folder: RunFolder, subject: Subject, progress: ProgressBar) -> None:
        super().__init__(settings, folder, progress, PHASES)
        self.subject = subject
        self._statistics = SeedStatistics(subject)

    def begin(self, step: int, frozen: Sequence[bool] = ()) -> None:
        """Training begins: remove an overwritten run, open event files, write the configuration.

        `frozen`: by seed, those that a resumed run has left behind.
        """
        name, seeds = self.subject.name, self.subject.seeds
        for index in np.flatnonzero(frozen).tolist():
            self._statistics.freeze(index)
            log.warning(
                "%s: seed %d stays frozen: its numbers were not finite, see above in its log.", name, seeds[index]
            )
        behavior = self.folder.behavior(name)
        self.open_track(
            name,
            self._statistics,
            self.subject.described(),
            max_steps=self.subject.settings.max_steps,
            step=step,
            events=[behavior] if len(seeds) == 1 else [behavior / f"seed_{number}" for number in seeds],
            title=name if len(seeds) == 1 else f"{name} ({len(seeds)} seeds)",
        )
        best = self.status.get(name, BEST_SEED, 0)
        if best >= len(seeds):
            log.warning("%s: %s is %d of %d seeds; the first is taken.", self.status.path, BEST_SEED, best, len(seeds))
            self.status.set(name, BEST_SEED, 0)

    def add(self, chunk: IterationLog) -> None:
        """Some iterations have run."""
        self._statistics.add(chunk)

    def freeze(self, index: int, step: int, fault: JaxrlError) -> None:
        """A seed is left behind at trainer step `step`, where its numbers were last good."""
        self._statistics.freeze(index)
        log.error(
            "%s Seed %d is frozen as it was at step %d; the other seeds go on.", fault, self.subject.seeds[index], step
        )
        known = self.status.get(self.subject.name, FROZEN_SEEDS, {})
        told = {str(self.subject.seeds[index]): {"steps": step, "fault": str(fault)}}
        self.status.set(self.subject.name, FROZEN_SEEDS, {**known, **told})

    def summary(self, step: int) -> None:
        """Write what was collected since the last summary, labelled with `step`: each seed's events, one line."""
        self.write_summary(self.subject.name, step, training=True)

    def show_progress(self, step: int) -> None:
        """Refresh the progress bar if it is due: the step of the slowest seed, the mean reward over seeds."""
        if self.progress_due():
            self.progress_of({self.subject.name: step})

    def save(self, state: JittedState, step: int, *, final: bool = False) -> None:
        """A checkpoint of all seeds and the ONNX file of the best, unless this step is saved already.

        Raises DivergedError, ArtifactError or ExportError, as `Recorder.checkpoint`.
        """
        name, rewards = self.subject.name, self._statistics.recent_reward()
        resumed = np.isnan(rewards).all()  # and no episode has ended since
        best = int(self.status.get(name, BEST_SEED, 0)) if resumed else int(np.nanargmax(rewards))
        frozen = self._statistics.frozen
        best = int(np.argmin(frozen)) if frozen[best] else best
        reward = float(rewards[best]) if np.isfinite(rewards[best]) else None
        self.checkpoint(name, step, partial(self._snapshot, state, step, best), reward, final=final)

    def save_due(self) -> bool:
        """Whether the last checkpoint is older than checkpoint_minutes."""
        return self.checkpoint_is_old(self.subject.name)

    def finish(self, state: JittedState, step: int) -> None:
        """The last save, and the policy where Unity's user looks for it; says how the run ended."""
        self.say_results()
        self.save(state, step, final=True)
        highest = np.nanmax(self._statistics.recent_reward(), initial=-np.inf)
        self.publish(self.subject.name, step, float(highest) if np.isfinite(highest) else None)

    def _snapshot(self, state: JittedState, step: int, best: int) -> Snapshot:
        if len(self.subject.seeds) > 1:
            log.info("%s: seed %d does best lately.", self.subject.name, self.subject.seeds[best])
        return snapshot(self.subject, state, step, best)
