"""The host's side of the compiled loop of several behaviors: what is looked at and written between chunks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.step_clock import crossed_multiple
from jaxrl.training.compiled.checks import faults
from jaxrl.training.compiled.iteration import IterationLog, step_of
from jaxrl.training.compiled.loop import JittedLoop, Part
from jaxrl.training.compiled.recorder import CompiledRecorder
from jaxrl.training.compiled.scene.iteration import SceneState
from jaxrl.training.compiled.scene.lessons import SceneLessons, go_on
from jaxrl.training.compiled.scene.trainer import EvaluateScene, SceneTrainer
from jaxrl.training.interrupt import Interrupt

log = logging.getLogger(__name__)


class ScenePart(Part):
    """One behavior of the program, whose files go into a folder of its own. All its seeds are in it.

    Once it is over it acts on while others learn; summaries and checkpoints of it go on as well.
    """

    def __init__(self, recorder: CompiledRecorder, trainer: SceneTrainer) -> None:
        super().__init__(recorder)
        self.name = recorder.subject.name
        self.every = trainer.every[self.name]
        self.largest = trainer.steps * trainer.areas * trainer.agents[self.name]  # agent steps of an iteration, at most

    def begin(self, state: SceneState) -> None:
        """It learns from this state on."""
        self.step = self.step_of(state)
        self.over = self.step > self.settings.last_step

    def of(self, numbers: Mapping[str, IterationLog]) -> IterationLog:
        """Its own among those of all behaviors."""
        return numbers[self.name]

    def step_of(self, state: SceneState) -> int:
        """The step of its slowest seed."""
        return step_of(state.parts[self.name])

    def iterations(self) -> int:
        """Those that cannot pass a summary, a checkpoint or its end except with the last one.

        What it has met since its last rollout counts with the next.
        """
        return self.room() // self.largest - self.every + 1


class SceneLoop(JittedLoop):
    """Chunks of iterations of all behaviors, and what is written between them.

    Checkpoints of all are written when one of them is due, so that a resumed run finds all at one moment.
    """

    def __init__(
        self,
        trainer: SceneTrainer,
        name: str,
        parts: Sequence[ScenePart],
        interrupt: Interrupt,
        evaluate: Mapping[str, EvaluateScene],
        lessons: SceneLessons,
    ) -> None:
        self.trainer = trainer
        self._scene = name
        self.parts: list[Any] = list(parts)
        self.lessons = lessons
        self.evaluate = evaluate  # by behavior that has an `evaluation`
        self.interrupt = interrupt

    @property
    def name(self) -> str:
        """Of the scene."""
        return self._scene

    def run(self, state: Any) -> None:
        """Until every behavior is done."""
        with self.parts[0].recorder.timers(nodes.LEARNING):
            super().run(state)

    def chunk(self, state: SceneState, count: int) -> SceneState:
        """Run `count` iterations and look at what came out: the new state.

        A seed of a behavior whose numbers are not finite is left behind. Raises JaxEnvError or DivergedError if a
        behavior has no seed left.
        """
        with self.parts[0].recorder.timers(nodes.ITERATIONS):
            state, numbers = self.trainer.run(state, count)
            numbers = jax.device_get(numbers)
        for part in self.parts:
            mine, own = part.of(numbers), state.parts[part.name]
            found = faults(part.recorder.subject, mine)
            if found and np.asarray(own.frozen).all():
                raise next(iter(found.values()))
            for index, fault in found.items():
                part.recorder.freeze(index, int(own.train.step[index]), fault)
            part.recorder.add(mine, jax.device_get(own.recent))
        return go_on(self.trainer, state, self.lessons, numbers)

    @property
    def learning(self) -> list[ScenePart]:
        """The behaviors that are not done."""
        return [part for part in self.parts if not part.over]

    def look(self, state: SceneState) -> SceneState:
        """Book what the behaviors have reached, and see which are done: the state to go on from."""
        due = [self.book(part, state, part.step) for part in self.parts]
        if any(due):
            for part in self.parts:
                part.recorder.save(state.of(part.name), part.step, moment=_moment(part, state))
        for part in self.learning:
            part.over = part.step > part.settings.last_step or part.recorder.stops() is not None
            if part.over:
                state = self.stopped(part, state)
        recorder = self.parts[0].recorder
        if recorder.progress_due():
            recorder.progress_of({part.name: part.step for part in self.parts})
        return state

    def book(self, part: ScenePart, state: SceneState, before: int) -> bool:
        """Summary and evaluation if their step is reached; whether a checkpoint is due."""
        part.step = part.step_of(state)
        recorder, settings, passed = part.recorder, part.settings, part.step - before
        label = crossed_multiple(before, passed, settings.summary_freq)
        if label is not None:
            recorder.summary(label, state.of(part.name), training=not part.over)
        evaluation = settings.evaluation
        due = None if evaluation is None else crossed_multiple(before, passed, evaluation.interval)
        if due is not None:
            with recorder.timers(nodes.EVALUATION):
                figures = self.evaluate[part.name](state)
            recorder.evaluation(due, state.of(part.name), figures)
        return bool(crossed_multiple(before, passed, settings.checkpoint_interval)) or recorder.save_due()

    def stopped(self, part: ScenePart, state: SceneState) -> SceneState:
        """The state in which a behavior learns no more."""
        if self.learning:
            others = ", ".join(other.name for other in self.learning)
            text = "%s: learns no more after step %d. It acts on while others learn: %s."
            log.info(text, part.name, part.step, others)
        never = jnp.full_like(state.last_step[part.name], -1)
        return self.trainer.place(state.replace(last_step={**state.last_step, part.name: never}))

    def close_done(self, state: SceneState) -> None:
        """Nothing: behaviors that are done act on, and tell of it until all are."""

    def end(self, part: ScenePart, state: SceneState) -> None:
        """The last files of a behavior."""
        part.recorder.finish(state.of(part.name), part.step, moment=_moment(part, state))

    def room(self) -> int:
        """Iterations that cannot pass a summary, a checkpoint or an end of any behavior except with their last one.

        One, while lessons may go on.
        """
        if self.lessons.open:
            return 1
        return max(min(part.iterations() for part in self.parts), 1)


def _moment(part: ScenePart, state: SceneState) -> tuple[int, int]:
    """Tells apart two states of a behavior, which may have met nobody in between."""
    return part.step, int(np.asarray(state.parts[part.name].iteration)[0])
