"""What an environment step costs, phase by phase and worker by worker: means and smoothed means in milliseconds.

Phases are timers of the main thread, so that nothing is measured twice; workers tell with each result what they took.
`tick` is called once per turn of the loop and takes about 2 microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.timers import TimerNode, Timers
from jaxrl.types import EnvMessage

PHASES = {
    "env wait": nodes.ENV_STEP,
    "act": nodes.EVALUATE,  # books rows, decides and appends: one program
    "send": nodes.TAKE_STEP,
    "process": nodes.PROCESS,
    "learn": nodes.UPDATE_POLICY,  # of a threaded behavior: what the loop waits for it
}
"""Timers of the loop, by the word for them."""

WORKER_PHASES = ("step", "exchange", "decode", "overhead")
NEWEST = 0.02
"""Weight of the newest turn in smoothed means: they look back some 50 turns."""


class PhaseTime(NamedTuple):
    """Milliseconds per environment step."""

    mean: float
    smoothed: float


class _Worker:
    """The timers of one worker, and its smoothed means."""

    def __init__(self, parent: TimerNode, worker: int) -> None:
        self.parent = parent
        self.root = parent.child(f"worker_{worker}", is_parallel=True)
        step = self.root.child(nodes.UNITY_STEP)
        self.nodes = (step, step.child(nodes.EXCHANGE), step.child(nodes.DECODE), self.root.child(nodes.WORKER_OWN))
        self.smoothed = [0.0] * len(self.nodes)

    def add(self, seconds: tuple[float, ...]) -> None:
        first = not self.root.count
        for i, (node, value) in enumerate(zip(self.nodes, seconds, strict=True)):
            node.total += value
            node.count += 1
            self.smoothed[i] = value if first else (1.0 - NEWEST) * self.smoothed[i] + NEWEST * value
        self.root.total += seconds[0] + seconds[-1]
        self.root.count += 1
        self.parent.total += seconds[0]
        self.parent.count += 1


class StepTimes:
    """Means over the run and smoothed means, per environment step; 0 where nothing was measured yet (X16)."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._workers: dict[int, _Worker] = {}
        self._steps = 0
        self._before = dict.fromkeys(PHASES, 0.0)
        self._totals = dict.fromkeys(PHASES, 0.0)
        self._smoothed = dict.fromkeys(PHASES, 0.0)

    def worker(self, result: EnvMessage) -> None:
        """What one worker has measured beside its result: parallel children of the timer that runs now."""
        found = self._workers.get(result.worker)
        if found is None:
            parent = self._timers.current.child(nodes.WORKERS, is_parallel=True)
            found = self._workers[result.worker] = _Worker(parent, result.worker)
        timing = result.timing
        found.add((result.seconds, timing.exchange, timing.decode, timing.own))

    def tick(self, env_steps: int) -> None:
        """One turn of the loop with so many environment steps is over. The phases are below the timer that runs now."""
        if not env_steps:
            return
        first, children = not self._steps, self._timers.current.children
        for phase, name in PHASES.items():
            node = children.get(name)
            if node is None:
                continue
            spent = node.total - self._before[phase]
            self._before[phase] = node.total
            self._totals[phase] += spent
            each = spent / env_steps
            self._smoothed[phase] = each if first else (1.0 - NEWEST) * self._smoothed[phase] + NEWEST * each
        self._steps += env_steps

    def phases(self) -> dict[str, PhaseTime]:
        """Of the loop, by the words of PHASES."""
        steps = self._steps
        return {
            phase: PhaseTime(1000.0 * total / steps if steps else 0.0, 1000.0 * self._smoothed[phase])
            for phase, total in self._totals.items()
        }

    def workers(self) -> dict[int, dict[str, PhaseTime]]:
        """Of each worker, by the words of WORKER_PHASES, per result."""
        return {
            number: {
                phase: PhaseTime(node.mean_ms, 1000.0 * smoothed)
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
