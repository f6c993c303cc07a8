"""Host side of the compiled loop: run chunks of iterations; between them check progress and write files."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import jax
import numpy as np

from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.step_clock import due, next_due
from jaxrl.training.compiled.checks import faults
from jaxrl.training.compiled.evaluation import Evaluate
from jaxrl.training.compiled.lessons import go_on
from jaxrl.training.compiled.plan import SceneTrainer
from jaxrl.training.compiled.recorder import JittedRecorder
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.compiled.state import Report, SceneState
from jaxrl.training.interrupt import Interrupt
from jaxrl.training.spread import agreed

log = logging.getLogger(__name__)

CHUNK_SECONDS = 1.0
"""Time between two checks of progress and Ctrl-C: long compared with their cost, short for a waiting user."""


class Part:
    """Behavior of a run, with its own folder of files.

    When it is done while others of the run still learn, it goes on acting, with summaries and checkpoints.
    """

    def __init__(self, recorder: JittedRecorder, trainer: SceneTrainer, report: Report) -> None:
        """Open its files. `report`: its seeds' at the beginning."""
        self.recorder = recorder
        self.name, self.settings = recorder.subject.name, recorder.subject.settings
        self.every = trainer.every[self.name]
        self.largest = trainer.steps * trainer.areas * trainer.agents[self.name]  # agent steps of an iteration, at most
        self.step, self.iteration = report.slowest(), int(report.iteration[0])
        self.over = self.passed
        recorder.begin(self.step, report.frozen.tolist())

    @property
    def passed(self) -> bool:
        """True if it has passed max_steps. It still learns with its team until all its behaviors have."""
        return self.step > self.settings.last_step

    def done(self, report: Report) -> bool:
        """Return whether this behavior, ignoring its team, has finished learning."""
        return self.passed or self.recorder.verdict(self.name) is not None or bool(report.frozen.all())

    def iterations(self) -> int:
        """Compute how many iterations can run until, at the earliest, a summary, evaluation, checkpoint or end is due.

        Decisions since its last rollout count with the next one.
        """
        end = next_due(self.settings, self.step)
        end = end if self.over or self.passed else min(end, self.settings.last_step + 1)
        return (end - self.step) // self.largest - self.every + 1


class Run:
    """Seeds of a program whose files go into one folder: all of them, or those of one point of a sweep."""

    def __init__(self, recorder: JittedRecorder, subjects: Sequence[Subject], first: int = 0) -> None:
        """Make a run of the behaviors `subjects`; `recorder` is the first one's, `first` its first seed's index."""
        self.recorder, self.subjects, self.first = recorder, subjects, first
        self.count = len(subjects[0].seeds)
        self.parts: list[Part] = []  # filled by `begin`
        self.given_up = False  # ended early
        self.closed = False  # its last files are written
        self.clock = ExitStack()  # timer of its learning
        self.files = ExitStack()  # closed when it is over, if that is before the end of all

    def begin(self, trainer: SceneTrainer, reports: Mapping[str, Report]) -> None:
        """Begin to learn; `reports` are of all seeds."""
        mine = self.of(reports)
        for subject in self.subjects:
            recorder = self.recorder.beside(subject) if self.parts else self.recorder
            self.parts.append(Part(recorder, trainer, mine[subject.name]))
        for part in self.parts:
            part.over = all(mate.over for mate in self.mates(part))
        self.clock.enter_context(self.recorder.timers(nodes.LEARNING))

    def mates(self, part: Part) -> list[Part]:
        """Return the behaviors that learn together with one, itself included."""
        team = part.settings.team
        return [part] if team is None else [other for other in self.parts if other.settings.team == team]

    @property
    def learning(self) -> list[Part]:
        """Behaviors that are not done."""
        return [part for part in self.parts if not part.over]

    @property
    def over(self) -> bool:
        """True if all its behaviors are done."""
        return self.given_up or not self.learning

    @property
    def step(self) -> int:
        """Trainer step of its slowest behavior that still learns, or of all if none does."""
        return min(part.step for part in self.learning or self.parts)

    def of(self, numbers: Any) -> Any:
        """Return its seeds' part of arrays of all seeds."""
        return jax.tree.map(lambda x: x[self.first : self.first + self.count], numbers)

    def score(self) -> float | None:
        """Compute the recent mean reward over its behaviors; None before episodes of all have ended."""
        scores = [part.recorder.statistics.mean_reward() for part in self.parts]
        return None if None in scores else float(np.mean(scores))  # pyright: ignore[reportCallIssue, reportArgumentType]


class JittedLoop:
    """Runs chunks of iterations, and writes files between them.

    Checkpoints of all behaviors of a run are written when one of them is due, so that a resumed run finds all at one
    moment.
    """

    def __init__(
        self,
        trainer: SceneTrainer,
        name: str,
        runs: Sequence[Run],
        interrupt: Interrupt,
        evaluate: Mapping[str, Evaluate] | None = None,
    ) -> None:
        """Make the loop. `name`: the environment's, for the log; `evaluate`: by behavior with an `evaluation`."""
        self.trainer, self.name = trainer, name
        self.runs = list(runs)
        self.evaluate = evaluate or {}
        self.interrupt = interrupt

    def run(self, state: SceneState) -> None:
        """Run iterations until all runs, which have begun, are done. Saves at the end, and at Ctrl-C."""
        log.info(
            "%s: %d seed(s) of %d areas, %d decisions an iteration, on %d device(s). Compiling.",
            self.name, self.trainer.seeds, self.trainer.areas, self.trainer.steps,
            self.trainer.devices,
        )  # fmt: skip
        count = 1
        try:
            while self.open and not agreed(self.interrupt.requested):
                begun, now = time.perf_counter(), min(count, self.room())
                state, reports = self.chunk(state, now)
                wanted = next_count(now, time.perf_counter() - begun)
                count = agreed(max(wanted, count if now < count else 1))
                state = self.look(state, reports)
                if self.open:
                    self.close([run for run in self.runs if run.over], state)
        finally:
            for run in self.runs:
                run.clock.close()
        if self.interrupt.requested:
            log.info("Learning was interrupted. Please wait while the policies are saved and exported.")
        self.close(self.runs, state)

    @property
    def open(self) -> list[Run]:
        """Runs that are not done."""
        return [run for run in self.runs if not run.over]

    def chunk(self, state: SceneState, count: int) -> tuple[SceneState, dict[str, Report]]:
        """Run `count` iterations and book their reports; return the new state and the reports.

        A seed of a behavior whose numbers are not finite is frozen. Raises JaxEnvError or DivergedError if a behavior
        has no seed left.
        """
        with ExitStack() as stack:
            for run in self.open:
                stack.enter_context(run.recorder.timers(nodes.ITERATIONS))
            state, logs = self.trainer.run(state, count)
            reports = self.trainer.report(state, logs)
        for run in self.open:
            mine = run.of(reports)
            for part in run.parts:
                report = mine[part.name]
                errors = faults(part.recorder.subject, report.log)
                if errors and reports[part.name].frozen.all():
                    raise next(iter(errors.values()))
                for index, fault in errors.items():
                    part.recorder.freeze(index, int(report.step[index]), fault)
                part.recorder.add(report.log, report.recent, report.values)
            state = go_on(self.trainer, state, run.recorder.lessons, run.first, mine)
        return state, reports

    def look(self, state: SceneState, reports: Mapping[str, Report]) -> SceneState:
        """Book the progress of the open runs, mark those that are done, and return the state to continue from."""
        slowest = min(self.open, key=lambda run: run.step)
        for run in self.open:
            state = self.booked(run, state, run.of(reports))
        recorder = slowest.recorder
        if recorder.progress_due():
            recorder.progress_of({part.name: part.step for part in slowest.parts})
        return state

    def booked(self, run: Run, state: SceneState, reports: Mapping[str, Report]) -> SceneState:
        """Write a run's files that are due by its `reports`, end behaviors that are done, and return the state."""
        due = [self.book(run, part, state, reports[part.name]) for part in run.parts]
        if any(due):
            self.save(run, state)
        done = {part.name: part.over or part.done(reports[part.name]) for part in run.parts}
        now = [part for part in run.learning if all(done[mate.name] for mate in run.mates(part))]
        for part in now:
            part.over = True
        for part in now if run.learning else ():
            state = self.stopped(run, part, state)
        return state

    def book(self, run: Run, part: Part, state: SceneState, report: Report) -> bool:
        """Write summary and evaluation of a behavior if their step is reached; return whether a checkpoint is due."""
        before, part.step, part.iteration = part.step, report.slowest(), int(report.iteration[0])
        recorder, reached = part.recorder, due(part.settings, before, part.step)
        recorder.first_look.acted(part.name, part.step - before, int(np.sum(report.log.episodes.reward.count)))
        recorder.first_look.look()
        if reached.summary is not None:
            mine = self.state_of(state, run)
            shown = self.trainer.here(mine) if part.settings.keep_best is not None else mine
            recorder.summary(reached.summary, shown.of(part.name), training=not part.over)
        if reached.evaluation is not None and part.name in self.evaluate and not part.over:
            mine = self.state_of(state, run)
            with recorder.timers(nodes.EVALUATION):
                evaluated = self.trainer.read(self.evaluate[part.name](mine))
            shown = self.trainer.here(mine) if part.settings.keep_best is not None else mine
            recorder.evaluation(reached.evaluation, shown.of(part.name), evaluated)
        old = agreed(recorder.checkpoints.are_old(part.name))
        return reached.checkpoint or bool(old)

    def save(self, run: Run, state: SceneState, *, final: bool = False) -> None:
        """Save every behavior of a run."""
        mine = self.trainer.here(self.state_of(state, run))
        for part in run.parts:
            save = part.recorder.finish if final else part.recorder.save
            save(mine.of(part.name), part.step, moment=(part.step, part.iteration))  # the step may be as before

    def stopped(self, run: Run, part: Part, state: SceneState) -> SceneState:
        """Return the state in which a behavior of a run learns no more."""
        others = ", ".join(other.name for other in run.learning)
        text = "%s: learns no more after step %d. It acts on while others learn: %s."
        log.info(text, part.name, part.step, others)
        learner = state.parts[part.name]
        never = learner.last_step.at[run.first : run.first + run.count].set(-1)
        return self.trainer.place(state.replace(parts={**state.parts, part.name: learner.replace(last_step=never)}))

    def close(self, runs: Sequence[Run], state: SceneState) -> None:
        """Log why these runs are over and write their last files, unless that was done before.

        Other runs may go on; the seeds of these then still play, and may still learn.
        """
        for run in [run for run in runs if not run.closed]:
            for part in run.parts:
                verdict = part.recorder.verdict(part.name)
                if verdict and not self.interrupt.requested:
                    log.info("%s", verdict)
            self.end(run, state)
            run.closed = True

    def end(self, run: Run, state: SceneState) -> None:
        """Write the last files of a run."""
        run.clock.close()
        self.save(run, state, final=True)

    def state_of(self, state: SceneState, run: Run) -> SceneState:
        """Return the part of the state that belongs to a run's seeds."""
        return state if run.count == self.trainer.seeds else self.trainer.take(state, run.first, run.count)

    def with_state_of(self, state: SceneState, run: Run, mine: SceneState) -> SceneState:
        """Return the state of all seeds with the part of this run replaced by `mine`."""
        whole = run.count == self.trainer.seeds
        return self.trainer.place(mine) if whole else self.trainer.put(state, mine, run.first)

    def room(self) -> int:
        """Compute how many iterations can run until, at the earliest, any behavior has a summary, save or end due.

        So a run's files do not depend on its speed. It is 1 while lessons may advance, see `lessons.py`.
        """
        if any(run.recorder.lessons.open for run in self.open):
            return 1
        return max(min(part.iterations() for run in self.open for part in run.parts), 1)


def next_count(count: int, seconds: float) -> int:
    """Compute the next chunk's length after `count` iterations took `seconds`: CHUNK_SECONDS, at most twice `count`."""
    wanted = CHUNK_SECONDS * count / max(seconds, 1e-6)
    return int(min(max(wanted, 1.0), 2.0 * count))
