"""What an environment step costs, phase by phase and worker by worker: means and smoothed means in milliseconds.

Phases are timers of the main thread, so that nothing is measured twice; workers tell with each result what they took.
A turn of the loop costs about 2 microseconds here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.timers import TimerNode, Timers
from jaxrl.types import EnvMessage, StepTiming

PHASES = {
    "env wait": nodes.ENV_STEP,
    "act": nodes.EVALUATE,  # books rows, decides and appends: one program
    "send": nodes.TAKE_STEP,
    "process": nodes.PROCESS,
    "learn": nodes.UPDATE_POLICY,  # of a threaded behavior: what the loop waits for it
}
"""Timers of the loop, by the word for them."""

WORKER_PHASES = ("step", "exchange", "decode", "overhead")
BLOCK = 16
"""Turns of the loop between two looks at the timers: smoothed means are taken over blocks of so many."""
NEWEST = 0.25
"""Weight of the newest block in smoothed means: they look back some 60 turns."""


class PhaseTime(NamedTuple):
    """Milliseconds per environment step."""

    mean: float
    smoothed: float


class _Smoothed:
    """The smoothed mean of a timer that runs on, in seconds."""

    __slots__ = ("_before", "_begun", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._before = 0.0
        self._begun = False

    def fold(self, total: float, steps: int) -> None:
        """The timer stands at `total`, after so many further steps (at least 1)."""
        each = (total - self._before) / steps
        self.value = (1.0 - NEWEST) * self.value + NEWEST * each if self._begun else each
        self._before, self._begun = total, True


class _Worker:
    """The timers of one worker, and their smoothed means."""

    def __init__(self, parent: TimerNode, worker: int) -> None:
        self.parent = parent
        self.root = parent.child(f"worker_{worker}", is_parallel=True)
        step = self.root.child(nodes.UNITY_STEP)
        self.nodes = (step, step.child(nodes.EXCHANGE), step.child(nodes.DECODE), self.root.child(nodes.WORKER_OWN))
        self.smoothed = [_Smoothed() for _ in self.nodes]
        self.folded = 0  # results

    def add(self, seconds: float, timing: StepTiming) -> None:
        root, (step, exchange, decode, own) = self.root, self.nodes
        step.total += seconds
        exchange.total += timing.exchange
        decode.total += timing.decode
        own.total += timing.own
        root.total += seconds + timing.own
        root.count += 1

    def fold(self) -> None:
        for node, smoothed in zip(self.nodes, self.smoothed, strict=True):
            node.count = self.root.count
            if self.root.count > self.folded:
                smoothed.fold(node.total, self.root.count - self.folded)
        self.folded = self.root.count


class StepTimes:
    """Means over the run and smoothed means, per environment step; 0 where nothing was measured yet (X16)."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._workers: dict[int, _Worker] = {}
        self._phases = {phase: _Smoothed() for phase in PHASES}
        self._parent = timers.root  # the timer that the phases are below
        self._turns = 0  # of this block
        self._steps = 0
        self._folded = 0  # of these steps

    def worker(self, result: EnvMessage) -> None:
        """What one worker has measured beside its result: parallel children of the timer that runs now."""
        found = self._workers.get(result.worker)
        if found is None:
            parent = self._timers.current.child(nodes.WORKERS, is_parallel=True)
            found = self._workers[result.worker] = _Worker(parent, result.worker)
        found.add(result.seconds, result.timing)
        found.parent.total += result.seconds
        found.parent.count += 1

    def tick(self, env_steps: int) -> None:
        """One turn of the loop with so many environment steps is over. The phases are below the timer that runs now."""
        self._parent = self._timers.current
        self._steps += env_steps
        self._turns += 1
        if self._turns >= BLOCK:
            self.fold()

    def fold(self) -> None:
        """Bring the smoothed means and the workers' timers up to date."""
        self._turns = 0
        for worker in self._workers.values():
            worker.fold()
        if self._steps == self._folded:
            return
        for phase, name in PHASES.items():
            seconds = self._parent.seconds_of(name)
            if seconds:
                self._phases[phase].fold(seconds, self._steps - self._folded)
        self._folded = self._steps

    def phases(self) -> dict[str, PhaseTime]:
        """Of the loop, by the words of PHASES."""
        self.fold()
        found = {}
        for phase, name in PHASES.items():
            mean = 1000.0 * self._parent.seconds_of(name) / self._steps if self._steps else 0.0
            found[phase] = PhaseTime(mean, 1000.0 * self._phases[phase].value)
        return found

    def workers(self) -> dict[int, dict[str, PhaseTime]]:
        """Of each worker, by the words of WORKER_PHASES, per result."""
        self.fold()
        return {
            number: {
                phase: PhaseTime(node.mean_ms, 1000.0 * smoothed.value)
                for phase, node, smoothed in zip(WORKER_PHASES, found.nodes, found.smoothed, strict=True)
            }
            for number, found in sorted(self._workers.items())
        }

    def by_name(self) -> Mapping[str, PhaseTime]:
        """Everything, as statistics and gauges name it: "Env Wait", "Worker 0 Decode"."""
        named = {phase.title(): time for phase, time in self.phases().items()}
        for number, phases in self.workers().items():
            named |= {f"Worker {number} {phase.title()}": time for phase, time in phases.items()}
        return named

    def table(self) -> str:
        """A line for each, for the log."""
        lines = [f"{name:24}{time.mean:10.3f}{time.smoothed:12.3f}" for name, time in self.by_name().items()]
        return "\n".join(["ms per environment step    mean    smoothed", *lines])
