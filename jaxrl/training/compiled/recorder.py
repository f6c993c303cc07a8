"""Recorder of the compiled loop: one behavior, all its seeds, sums of whole chunks of iterations.

A run of one seed writes the same files as the host loop. With several seeds `<Behavior>/` has an event folder per seed
(`seed_<number>/`), one checkpoint holds them all, and the ONNX files are those of the seed with the best recent return.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from jaxrl.algorithms.interface import LARGEST_LOG_RATIO
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.metrics.statistics import DECIDED
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.settings import RunSettings
from jaxrl.training import saver
from jaxrl.training.compiled.evaluation import Evaluated
from jaxrl.training.compiled.lessons import SeedLessons
from jaxrl.training.compiled.recent_returns import RecentReturns
from jaxrl.training.compiled.saver import Subject, snapshot, snapshot_of_seed
from jaxrl.training.compiled.state import IterationLog, JittedState
from jaxrl.training.compiled.statistics import SeedStatistics
from jaxrl.training.recorder import Recorder
from jaxrl.training.saver import Snapshot
from jaxrl.training.self_play.undecided import Undecided
from jaxrl.training.trained_policy import EXPORTED_SEED
from jaxrl.types import NOTHING, JaxrlError

log = logging.getLogger(__name__)

FROZEN_SEEDS = "frozen_seeds"
"""Entry of a behavior in training_status.json: by the number of a frozen seed, its step and fault."""
PHASES = {"iterations": nodes.ITERATIONS, "checkpoints": nodes.CHECKPOINT}


class JittedRecorder(Recorder):
    """Files and console of one compiled run."""

    def __init__(
        self,
        settings: RunSettings,
        folder: RunFolder,
        subject: Subject,
        progress: ProgressBar,
        *,
        alone: bool = True,
        behaviors: Sequence[Subject] = (),
        writes: bool = True,
    ) -> None:
        """Make the recorder, without opening files.

        Args:
          alone: whether the program has no other run, so that console lines need no run id.
          behaviors: all behaviors of the run, of which `subject` is the first, if it has several.
          writes: False on a host that leaves writing to another.
        """
        super().__init__(settings, folder, progress, PHASES)
        self.writes = self.writes and writes
        self._prefix = "" if alone else f"{folder.run_id}: "
        self._tells = True
        self._all_new = False  # all decisions that are learned from are the newest policy's
        self.lessons = SeedLessons(settings.environment_parameters, behaviors or [subject], self._prefix)
        self.first_look.met(of.name for of in behaviors or [subject])
        self._record(subject)

    def beside(self, subject: Subject) -> Self:
        """Return a recorder for another behavior of the run, after `begin`; it shares the files, `self` closes them."""
        other = copy.copy(self)  # shares status, timers, tracks, writer thread and lessons
        other._tells = False
        other._record(subject)
        return other

    def _record(self, subject: Subject) -> None:
        self.subject = subject
        self._title = f"{self._prefix}{subject.name}"
        self.statistics = SeedStatistics(subject, self.lessons)
        game = subject.settings.self_play
        self._undecided = None if game is None else Undecided(self._title, game)

    def begin(self, step: int, frozen: Sequence[bool] = ()) -> None:
        """Begin training: remove an overwritten run, open event files, write the configuration.

        `frozen`: by seed, whether a resumed run has frozen it.
        """
        name, seeds = self.subject.name, self.subject.seeds
        self._all_new = step == 0
        for index in np.flatnonzero(frozen).tolist():
            self.statistics.frozen[index] = True
            log.warning(
                "%s: seed %d stays frozen: its numbers were not finite, see above in its log.", name, seeds[index]
            )
        behavior = self.folder.behavior(name)
        self.open_track(
            name,
            self.statistics,
            self.subject.settings,
            self.subject.described(),
            step=step,
            events=[behavior] if len(seeds) == 1 else [behavior / name for name in self._folders()],
            title=self._title if len(seeds) == 1 else f"{self._title} ({len(seeds)} seeds)",
        )
        for index in np.flatnonzero(self.subject.exploits).tolist():
            self.leave_out(name, index)
        if self._tells:
            self.lessons.tell()
        for index in np.flatnonzero(frozen).tolist():
            self.leave_out(name, index)
        best = self.status.get(name, EXPORTED_SEED, seeds[0])
        if best not in seeds:
            text = "%s: %s %d is none of the run's, %d to %d; the first is taken."
            log.warning(text, self.status.path, EXPORTED_SEED, best, seeds[0], seeds[-1])
            self.status.set(name, EXPORTED_SEED, seeds[0])

    def _folders(self) -> list[str]:
        """Return the names of the event folders, one per seed."""
        both = zip(self.subject.seeds, self.subject.exploits, strict=True)
        return [f"exploiter_{number}" if exploits else f"seed_{number}" for number, exploits in both]

    def add(self, chunk: IterationLog, recent: RecentReturns, values: Mapping[str, Any] = NOTHING) -> None:
        """Add a chunk of iterations, in which seeds differed in `values`; `recent`: recent returns after it."""
        self.statistics.add(chunk, recent, values)
        decided = chunk.episodes.stats.get(DECIDED)
        if self._undecided is not None and decided is not None:
            self._undecided.add(float(np.sum(decided.count)), float(np.sum(decided.total)))
        self.notice_moved_names(chunk.episodes.stats)
        if self._all_new and chunk.updates.any():  # later ones may learn from decisions that were pending meanwhile
            self._all_new = False
            largest = chunk.metrics.get(LARGEST_LOG_RATIO, np.zeros(1))
            self.check_ratio(self.subject.name, float(np.nanmax(largest, initial=0.0)))

    def freeze(self, index: int, step: int, fault: JaxrlError) -> None:
        """Freeze a seed at trainer step `step`, where its numbers were last good, and log the fault."""
        self.statistics.frozen[index] = True
        self.leave_out(self.subject.name, index)
        number = self.subject.seeds[index]
        text = "%s%s Seed %d is frozen as it was at step %d; the other seeds go on."
        log.error(text, self._prefix, fault, number, step)
        known = self.status.get(self.subject.name, FROZEN_SEEDS, {})
        entry = {str(self.subject.seeds[index]): {"steps": step, "fault": str(fault)}}
        self.status.set(self.subject.name, FROZEN_SEEDS, {**known, **entry})

    def summary(self, step: int, state: JittedState, *, training: bool = True) -> None:
        """Write the summary since the last one, labelled with `step`: each seed's events, one console line.

        `training`: whether the behavior still learns.
        """
        self.write_summary(self.subject.name, step, training=training)
        self._keep_best(state)

    def evaluation(self, step: int, state: JittedState, evaluated: Evaluated) -> None:
        """Write the results of evaluation episodes, leading axis S, labelled with `step`."""
        self.write_evaluation(self.subject.name, step, self.statistics.of_evaluation(evaluated))
        self._keep_best(state)

    def save(self, state: JittedState, step: int, *, final: bool = False, moment: Hashable = None) -> None:
        """Save a checkpoint of all seeds and the ONNX file of the best, unless this moment is saved already.

        `moment`: distinguishes this state from another of the same step; None: the step.

        Raises DivergedError, ArtifactError or ExportError, as `Checkpoints.save`.
        """
        if not self.writes:
            return
        name, rewards = self.subject.name, self.statistics.recent_reward()
        resumed = np.isnan(rewards).all()  # and no episode has ended since
        seeds = self.subject.seeds
        best = seeds.index(self.status.get(name, EXPORTED_SEED, seeds[0])) if resumed else self._best(rewards)
        frozen = self.statistics.frozen
        best = int(np.argmin(frozen | self.subject.exploits)) if frozen[best] else best
        reward = float(rewards[best]) if np.isfinite(rewards[best]) else None
        moment = step if moment is None else moment
        self.checkpoints.save(name, moment, partial(self._snapshot, state, step, best), reward, final=final)

    def _best(self, rewards: np.ndarray) -> int:
        """Return the index of the seed with the highest reward, among the seeds that are furthest in their lessons."""
        reached = np.where(np.isnan(rewards), -1, self.lessons.reached())
        return int(np.nanargmax(np.where(reached == reached.max(), rewards, np.nan)))

    def finish(self, state: JittedState, step: int, *, moment: Hashable = None) -> None:
        """Save for the last time, copy the policy to the run's folder, and log the run's result."""
        if not self.writes:
            return
        if self._tells:
            self.say_results([self.subject.name], self._prefix)
        self.save(state, step, final=True, moment=moment)
        highest = np.nanmax(self.statistics.recent_reward(), initial=-np.inf)
        reward = float(highest) if np.isfinite(highest) else None
        saver.publish(self.subject.name, step, self.folder, self.status, reward)

    def _keep_best(self, state: JittedState) -> None:
        def of_seed(index: int) -> Snapshot:
            return self._with_lessons(snapshot_of_seed(self.subject, state, index), index)

        self.keep_best(self.subject.name, of_seed, self.subject.seeds)

    def _snapshot(self, state: JittedState, step: int, best: int) -> Snapshot:
        if len(self.subject.seeds) > 1:
            log.info("%s: seed %d does best lately.", self._title, self.subject.seeds[best])
        content = snapshot(self.subject, state, step, best)
        return self._with_lessons(self.with_shown(content._replace(lessons=self.lessons.entries())))

    def _with_lessons(self, found: Snapshot, index: int | None = None) -> Snapshot:
        return found._replace(described={**found.described, **self.lessons.state(index)})
