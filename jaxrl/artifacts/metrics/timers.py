"""Timers of a run, as a tree, and gauges.

    timers = Timers()
    with timers("env_step"):
        ...

Written to `timers.json` in ML-Agents' format, with ML-Agents' node names where the meaning is the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl.artifacts import files
from jaxrl.artifacts.metrics.statistics import Summary
from jaxrl.artifacts.versions import COMMUNICATOR_API, versions

FORMAT = "0.1.0"

SETUP = "run_training.setup"
LEARNING = "TrainerController.start_learning"
RESET = "TrainerController._reset_env"
ADVANCE = "TrainerController.advance"
ENV_STEP = "env_step"
TAKE_STEP = "SubprocessEnvManager._take_step"
EVALUATE = "TorchPolicy.evaluate"
WORKERS = "workers"
UNITY_STEP = "UnityEnvironment.step"
TRAINER_ADVANCE = "trainer_advance"
EXCHANGE = "communicator.exchange"
DECODE = "decode"
WORKER_OWN = "worker_overhead"
PROCESS = "process_trajectory"
UPDATE_POLICY = "_update_policy"
CHECKPOINT = "RLTrainer._checkpoint"
WRITE = "write_checkpoint"
"""Node below CHECKPOINT that runs beside it: the work of a thread while the training goes on."""
THREADS = "trainer_threads"
ITERATIONS = "compiled_iterations"
EVALUATION = "evaluation_episodes"


class TimerNode:
    """Timer below its parent; usable as a context manager (about 1 microsecond per use)."""

    __slots__ = ("_owner", "_parent", "_started", "children", "count", "is_parallel", "name", "total")

    def __init__(self, owner: Timers, name: str, parent: TimerNode | None, is_parallel: bool = False) -> None:
        self.name = name
        self.total = 0.0  # seconds
        self.count = 0
        self.is_parallel = is_parallel
        self.children: dict[str, TimerNode] = {}
        self._owner = owner
        self._parent = parent
        self._started = 0.0

    def __enter__(self) -> TimerNode:
        self._owner.current = self
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.total += time.perf_counter() - self._started
        self.count += 1
        self._owner.current = self._parent or self

    @property
    def mean_ms(self) -> float:
        """Mean milliseconds per use, 0.0 when never used."""
        return 1000.0 * self.total / self.count if self.count else 0.0

    def seconds_of(self, name: str) -> float:
        """Sum the seconds of the timers called `name` below this one, at any depth; parallel ones do not count."""
        total = 0.0
        for child in self.children.values():
            if not child.is_parallel:
                total += child.total if child.name == name else child.seconds_of(name)
        return total

    def child(self, name: str, is_parallel: bool = False) -> TimerNode:
        """Return the child called `name`, made when it does not exist."""
        node = self.children.get(name)
        if node is None:
            node = self.children[name] = TimerNode(self._owner, name, self, is_parallel)
        return node

    def to_json(self) -> dict[str, Any]:
        """Return the tree below this node; `self` excludes children, except parallel ones, which run beside it."""
        serial = sum(child.total for child in self.children.values() if not child.is_parallel)
        tree: dict[str, Any] = {
            "name": self.name,
            "total": self.total,
            "count": self.count,
            "self": max(0.0, self.total - serial),
        }
        if self.is_parallel:
            tree["is_parallel"] = True
        if self.children:
            tree["children"] = {name: child.to_json() for name, child in self.children.items()}
        return tree


class Timers:
    """A tree of timers for one thread, starting with a running root, plus gauges."""

    def __init__(self) -> None:
        self._begun = time.time()
        self._clock = time.perf_counter()
        self.root = TimerNode(self, "root", None)
        self.current = self.root
        self._gauges: dict[str, dict[str, float]] = {}

    def __call__(self, name: str) -> TimerNode:
        """Return the timer `name` below the one that runs now: `with timers("env_step"): ...`."""
        current = self.current
        return current.children.get(name) or current.child(name)

    def add(self, name: str, seconds: float, count: int = 1, is_parallel: bool = False) -> None:
        """Add time measured elsewhere to the timer `name` below the one that runs now."""
        node = self.current.child(name, is_parallel)
        node.total += seconds
        node.count += count

    def gauge(self, name: str, value: float) -> None:
        """Record a gauge: the latest value, smallest, largest, and how often it was set."""
        old = self._gauges.get(name, {"min": value, "max": value, "count": 0})
        self._gauges[name] = {
            "value": value,
            "min": min(old["min"], value),
            "max": max(old["max"], value),
            "count": old["count"] + 1,
        }

    def gauge_summaries(self, behavior: str, summaries: Mapping[str, Summary]) -> None:
        """Record gauges `<Behavior>.<Stat>.mean` and `.sum` of each statistic; "/" becomes "." and blanks vanish."""
        for tag, summary in summaries.items():
            stem = f"{behavior}.{tag}".replace("/", ".").replace(" ", "")
            self.gauge(f"{stem}.mean", summary.mean)
            self.gauge(f"{stem}.sum", summary.sum)

    def to_json(self) -> dict[str, Any]:
        """Return the whole tree with gauges and metadata; the root runs until now. NaN gauges become null."""
        self.root.total = time.perf_counter() - self._clock
        self.root.count = 1
        tree = self.root.to_json()
        gauges = {name: {key: _finite(value) for key, value in gauge.items()} for name, gauge in self._gauges.items()}
        return tree | {"gauges": gauges, "metadata": self._metadata()}

    def write(self, path: Path) -> None:
        """Write `timers.json`. Raises ArtifactError when it cannot be written."""
        files.write_json(path, self.to_json())

    def _metadata(self) -> dict[str, Any]:
        return {
            "timer_format_version": FORMAT,
            "start_time_seconds": str(int(self._begun)),
            "end_time_seconds": str(int(time.time())),
            "command_line_arguments": " ".join(sys.argv),
            "communication_protocol_version": COMMUNICATOR_API,
            **versions(),
        }


def _finite(value: float) -> float | None:
    return value if value - value == 0 else None
