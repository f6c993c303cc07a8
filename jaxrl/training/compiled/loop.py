"""The host's side of the compiled loop: chunks of iterations, and what is looked at and written between them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import jax
import numpy as np

from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.step_clock import crossed_multiple
from jaxrl.training.compiled.checks import faults
from jaxrl.training.compiled.evaluation import Evaluate
from jaxrl.training.compiled.iteration import JittedState, JittedTrainer, step_of
from jaxrl.training.compiled.lessons import go_on
from jaxrl.training.compiled.recorder import CompiledRecorder
from jaxrl.training.interrupt import Interrupt

log = logging.getLogger(__name__)

CHUNK_SECONDS = 1.0
"""Time between two looks at progress and Ctrl-C: long against what they cost, short for who waits."""


class Part:
    """Some of a program's seeds, whose files go into one folder: all of them, or those of one point of a sweep."""

    def __init__(self, recorder: CompiledRecorder, first: int = 0) -> None:
        self.recorder = recorder
        self.settings = recorder.subject.settings
        self.first = first
        self.count = len(recorder.subject.seeds)
        self.step = 0  # of its slowest seed
        self.over = False
        self.pruned = False  # over before its time
        self.closed = False  # its last files are written
        self.clock = ExitStack()  # of the time that it learns
        self.files = ExitStack()  # what is closed when it is over, where that is before the end of all

    def begin(self, state: JittedState) -> None:
        """It learns from this state of all on."""
        self.step = self.step_of(state)
        self.over = self.step > self.settings.last_step
        self.clock.enter_context(self.recorder.timers(nodes.LEARNING))

    def of(self, numbers: Any) -> Any:
        """Its own among those of all seeds."""
        return jax.tree.map(lambda x: x[self.first : self.first + self.count], numbers)

    def step_of(self, state: JittedState) -> int:
        """The step of its slowest seed in the state of all."""
        return step_of(state, slice(self.first, self.first + self.count))

    def room(self) -> int:
        """Agent steps to its next summary, checkpoint or end."""
        evaluation = self.settings.evaluation
        intervals = [self.settings.summary_freq, self.settings.checkpoint_interval]
        intervals += [] if evaluation is None else [evaluation.interval]
        ends = [self.step + interval - self.step % interval for interval in intervals]
        ends += [] if self.over else [self.settings.last_step + 1]
        return min(ends) - self.step


class JittedLoop:
    """Chunks of iterations, and what is written between them."""

    def __init__(
        self,
        trainer: JittedTrainer,
        parts: Sequence[Part],
        interrupt: Interrupt,
        evaluate: Evaluate | None = None,
    ) -> None:
        self.trainer = trainer
        self.parts = list(parts)
        self.evaluate = evaluate  # with the settings' `evaluation`
        self.interrupt = interrupt
        self.largest = trainer.steps * trainer.areas * trainer.agents  # agent steps of an iteration, at most

    @property
    def name(self) -> str:
        """Of what is played, in the log."""
        return self.parts[0].recorder.subject.name

    def run(self, state: JittedState) -> None:
        """Until every part, which has begun, is done: each of its seeds. Saves at the end, and at Ctrl-C."""
        log.info(
            "%s: %d seed(s) of %d areas, %d decisions an iteration, on %d device(s). Compiling.",
            self.name, self.trainer.seeds, self.trainer.areas, self.trainer.steps,
            self.trainer.devices,
        )  # fmt: skip
        count = 1
        try:
            while self.open and not self.interrupt.requested:
                begun, now = time.perf_counter(), min(count, self.room())
                state = self.chunk(state, now)
                count = max(next_count(now, time.perf_counter() - begun), count if now < count else 1)
                state = self.look(state)
                if self.open:
                    self.close_done(state)
        finally:
            for part in self.parts:
                part.clock.close()
        if self.interrupt.requested:
            log.info("Learning was interrupted. Please wait while the policies are saved and exported.")
        for part in [part for part in self.parts if not part.closed]:
            self.close(part, state)

    @property
    def open(self) -> list[Part]:
        """The parts that are not done."""
        return [part for part in self.parts if not part.over]

    def chunk(self, state: JittedState, count: int) -> JittedState:
        """Run `count` iterations and look at what came out: the new state.

        A seed whose numbers are not finite is left behind. Raises JaxEnvError or DivergedError if no seed is left.
        """
        with ExitStack() as stack:
            for part in self.open:
                stack.enter_context(part.recorder.timers(nodes.ITERATIONS))
            state, numbers = self.trainer.run(state, count)
            numbers, recent = jax.device_get((numbers, state.recent))
        gone = np.asarray(state.frozen).all()
        for part in self.open:
            mine = part.of(numbers)
            found = faults(part.recorder.subject, mine)
            if found and gone:
                raise next(iter(found.values()))
            for index, fault in found.items():
                part.recorder.freeze(index, int(state.train.step[part.first + index]), fault)
            part.recorder.add(mine, part.of(recent))
            state = go_on(self.trainer, state, part.recorder.lessons, part.first, mine)
        return state

    def look(self, state: JittedState) -> JittedState:
        """Book what the open parts have reached, and see which are done: the state to go on from."""
        slowest = min(self.open, key=lambda part: part.step)
        frozen = np.asarray(state.frozen)
        for part in self.open:
            before, part.step = part.step, part.step_of(state)
            self.book(part, state, before)
            part.over |= part.step > part.settings.last_step or bool(frozen[part.first :][: part.count].all())
        slowest.recorder.show_progress(slowest.step)
        return state

    def close_done(self, state: JittedState) -> None:
        """The last files of parts that are done while others go on, with whom their seeds play and may learn on."""
        for part in [part for part in self.parts if part.over and not part.closed]:
            self.close(part, state)

    def close(self, part: Part, state: JittedState) -> None:
        """Say why a part is over, and write its last files."""
        if part.recorder.stops() and not self.interrupt.requested:
            log.info("%s", part.recorder.stops())
        self.end(part, state)
        part.closed = True

    def end(self, part: Part, state: JittedState) -> None:
        """The last files of a part."""
        part.clock.close()
        part.recorder.finish(self.state_of(state, part), part.step)

    def book(self, part: Part, state: JittedState, before: int) -> bool:
        """Summary, evaluation and checkpoint if their step is reached; whether there was a summary."""
        recorder, passed = part.recorder, part.step - before
        label = crossed_multiple(before, passed, part.settings.summary_freq)
        if label is not None:
            recorder.summary(label, self.state_of(state, part))
        evaluation = part.settings.evaluation
        due = None if evaluation is None else crossed_multiple(before, passed, evaluation.interval)
        if due is not None and self.evaluate is not None:
            mine = self.state_of(state, part)
            with recorder.timers(nodes.EVALUATION):
                figures = self.evaluate(mine)
            recorder.evaluation(due, mine, figures)
        if crossed_multiple(before, passed, part.settings.checkpoint_interval) or recorder.save_due():
            recorder.save(self.state_of(state, part), part.step)
        part.over |= recorder.stops() is not None
        return label is not None

    def state_of(self, state: JittedState, part: Part) -> JittedState:
        """A part's own state."""
        return state if part.count == self.trainer.seeds else self.trainer.take(state, part.first, part.count)

    def with_state_of(self, state: JittedState, part: Part, mine: JittedState) -> JittedState:
        """The state of all with another one of this part."""
        whole = part.count == self.trainer.seeds
        return self.trainer.place(mine) if whole else self.trainer.put(state, mine, part.first)

    def room(self) -> int:
        """Iterations that cannot pass a summary, a checkpoint or the end except with their last one.

        So what a run writes does not depend on how fast it was. One, while lessons may go on: see `lessons.py`.
        """
        if any(part.recorder.lessons.open for part in self.open):
            return 1
        return max(min(part.room() for part in self.open) // self.largest, 1)


def next_count(count: int, seconds: float) -> int:
    """Length of the next chunk when `count` iterations took `seconds`: about CHUNK_SECONDS, growing at most twofold."""
    wanted = CHUNK_SECONDS * count / max(seconds, 1e-6)
    return int(min(max(wanted, 1.0), 2.0 * count))
