"""Costs of an environment step, phase by phase and worker by worker: means and smoothed means in milliseconds.

Phases are timers of the main thread, so that nothing is measured twice; workers send their own times with each result.
A loop step costs about 2 microseconds here.
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
"""Timers of the loop, by the name of their phase."""

WORKER_PHASES = ("step", "exchange", "decode", "overhead")
BLOCK = 16
"""Loop steps between two looks at the timers: smoothed means are taken over blocks of so many."""
NEWEST = 0.25
"""Weight of the newest block in smoothed means: they look back some 60 loop steps."""


class PhaseTime(NamedTuple):
    """Time of a phase, milliseconds per environment step."""

    mean: float
    smoothed: float


class _Smoothed:
    """Smoothed mean of a running timer, in seconds."""

    __slots__ = ("_before", "_begun", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._before = 0.0
        self._begun = False

    def fold(self, total: float, steps: int) -> None:
        """Fold in the timer's new `total`, after so many further steps (at least 1)."""
        seconds_per_step = (total - self._before) / steps
        self.value = (1.0 - NEWEST) * self.value + NEWEST * seconds_per_step if self._begun else seconds_per_step
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
        root, (step, exchange, decode, overhead) = self.root, self.nodes
        step.total += seconds
        exchange.total += timing.exchange
        decode.total += timing.decode
        overhead.total += timing.own
        root.total += seconds + timing.own
        root.count += 1

    def fold(self) -> None:
        for node, smoothed in zip(self.nodes, self.smoothed, strict=True):
            node.count = self.root.count
            if self.root.count > self.folded:
                smoothed.fold(node.total, self.root.count - self.folded)
        self.folded = self.root.count


class StepTimes:
    """Means over the run and smoothed means, per environment step; 0 where nothing was measured yet."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._workers: dict[int, _Worker] = {}
        self._phases = {phase: _Smoothed() for phase in PHASES}
        self._parent = timers.root  # the timer that the phases are below
        self._turns = 0  # loop steps of this block
        self._steps = 0
        self._folded = 0  # environment steps in the smoothed means

    def worker(self, result: EnvMessage) -> None:
        """Add the times of one worker's result: parallel children of the timer that runs now."""
        worker = self._workers.get(result.worker)
        if worker is None:
            parent = self._timers.current.child(nodes.WORKERS, is_parallel=True)
            worker = self._workers[result.worker] = _Worker(parent, result.worker)
        worker.add(result.seconds, result.timing)
        worker.parent.total += result.seconds
        worker.parent.count += 1

    def tick(self, env_steps: int) -> None:
        """End one loop step with so many environment steps. The phases are below the timer that runs now."""
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
        """Return the loop's times by the names of PHASES."""
        self.fold()
        times = {}
        for phase, name in PHASES.items():
            mean = 1000.0 * self._parent.seconds_of(name) / self._steps if self._steps else 0.0
            times[phase] = PhaseTime(mean, 1000.0 * self._phases[phase].value)
        return times

    def workers(self) -> dict[int, dict[str, PhaseTime]]:
        """Return the times of each worker per result, by the names of WORKER_PHASES."""
        self.fold()
        return {
            number: {
                phase: PhaseTime(node.mean_ms, 1000.0 * smoothed.value)
                for phase, node, smoothed in zip(WORKER_PHASES, worker.nodes, worker.smoothed, strict=True)
            }
            for number, worker in sorted(self._workers.items())
        }

    def by_name(self) -> Mapping[str, PhaseTime]:
        """Return all times by the names of statistics and gauges: "Env Wait", "Worker 0 Decode"."""
        named = {phase.title(): time for phase, time in self.phases().items()}
        for number, phases in self.workers().items():
            named |= {f"Worker {number} {phase.title()}": time for phase, time in phases.items()}
        return named

    def table(self) -> str:
        """Write one line for each time, for the log."""
        lines = [f"{name:24}{time.mean:10.3f}{time.smoothed:12.3f}" for name, time in self.by_name().items()]
        return "\n".join(["ms per environment step    mean    smoothed", *lines])
