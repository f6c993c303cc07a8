"""The host's side of the compiled loop: chunks of iterations, and what is looked at and written between them."""

from __future__ import annotations

import logging
import time

import jax
import numpy as np

from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.step_clock import crossed_multiple
from jaxrl.training.compiled.checks import faults
from jaxrl.training.compiled.iteration import JittedState, JittedTrainer, step_of
from jaxrl.training.compiled.recorder import CompiledRecorder
from jaxrl.training.interrupt import Interrupt

log = logging.getLogger(__name__)

CHUNK_SECONDS = 1.0
"""Time between two looks at progress and Ctrl-C: long against what they cost, short for who waits."""


class JittedLoop:
    """Chunks of iterations, and what is written between them."""

    def __init__(self, trainer: JittedTrainer, recorder: CompiledRecorder, interrupt: Interrupt) -> None:
        self.trainer = trainer
        self.recorder = recorder
        self.interrupt = interrupt
        self.settings = recorder.subject.settings
        self.largest = trainer.steps * trainer.areas * trainer.agents  # agent steps of an iteration, at most

    def run(self, state: JittedState) -> None:
        """Until every seed is done; saves at the end, and at Ctrl-C."""
        step, count = step_of(state), 1
        log.info(
            "%s: %d seeds of %d areas, %d decisions an iteration, on %d device(s). Compiling.",
            self.recorder.subject.name, self.trainer.seeds, self.trainer.areas, self.trainer.steps,
            self.trainer.devices,
        )  # fmt: skip
        with self.recorder.timers(nodes.LEARNING):
            while step <= self.settings.last_step and not self.interrupt.requested:
                begun, now = time.perf_counter(), min(count, self.room(step))
                before = step
                state, step = self.chunk(state, now)
                count = max(next_count(now, time.perf_counter() - begun), count if now < count else 1)
                self.book(state, before, step)
        if self.interrupt.requested:
            log.info("Learning was interrupted. Please wait while the policies are saved and exported.")
        self.recorder.finish(state, step)

    def chunk(self, state: JittedState, count: int) -> tuple[JittedState, int]:
        """Run `count` iterations and look at what came out: the new state, and its step.

        A seed whose numbers are not finite is left behind. Raises JaxEnvError or DivergedError if no seed is left.
        """
        with self.recorder.timers(nodes.ITERATIONS):
            state, chunk = self.trainer.run(state, count)
            chunk = jax.device_get(chunk)
        found = faults(self.recorder.subject, chunk)
        if found and np.asarray(state.frozen).all():
            raise next(iter(found.values()))
        for index, fault in found.items():
            self.recorder.freeze(index, int(state.train.step[index]), fault)
        self.recorder.add(chunk)
        return state, step_of(state)

    def book(self, state: JittedState, before: int, step: int) -> None:
        """Summary and checkpoint if their step is reached, then the progress bar."""
        label = crossed_multiple(before, step - before, self.settings.summary_freq)
        if label is not None:
            self.recorder.summary(label)
        if crossed_multiple(before, step - before, self.settings.checkpoint_interval) or self.recorder.save_due():
            self.recorder.save(state, step)
        self.recorder.show_progress(step)

    def room(self, step: int) -> int:
        """Iterations that cannot pass a summary, a checkpoint or the end except with their last one.

        So what a run writes does not depend on how fast it was.
        """
        intervals = (self.settings.summary_freq, self.settings.checkpoint_interval)
        ends = [step + interval - step % interval for interval in intervals]
        return max((min(*ends, self.settings.last_step + 1) - step) // self.largest, 1)


def next_count(count: int, seconds: float) -> int:
    """Length of the next chunk when `count` iterations took `seconds`: about CHUNK_SECONDS, growing at most twofold."""
    wanted = CHUNK_SECONDS * count / max(seconds, 1e-6)
    return int(min(max(wanted, 1.0), 2.0 * count))
