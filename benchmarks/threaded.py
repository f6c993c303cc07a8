"""Collection beside the update (`threaded: true`) against collection between updates, both in turn in one run.

    python -m benchmarks.threaded                 # Dungeon Escape, 1 worker: rates and their ratio
    python -m benchmarks.threaded --workers 2 --pairs 9
    python -m benchmarks.threaded --learn         # both train Basic to its optimum: the same result

Both loops have players of their own and run in short windows one after the other, each window as long as some updates,
so that another load of the machine hits both. On a machine whose cores the update fills, collection can only have what
the update leaves; the gain is largest where environments are slow or cores are many (`--delay-ms` makes each message of
a player that much slower, as a game's physics would).
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.host_loop import settings_for
from jaxrl.cli.device import choose_device
from jaxrl.compilation import enable_compilation_cache
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.settings import RunSettings, load_run_settings

LEARN_STEPS = 30_000
"""Agent steps of each run with --learn; the optimum of Basic is 0.93."""


class Delayed:
    """An environment each of whose steps takes `seconds` longer, without using the processor."""

    def __init__(self, factory: Any, seconds: float, worker: int) -> None:
        self._env, self._seconds = factory(worker), seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, actions: Any) -> Any:
        time.sleep(self._seconds)
        return self._env.step(actions)


class Loop:
    """A host loop that is advanced by hand."""

    def __init__(self, stack: ExitStack, settings: RunSettings, delay: float) -> None:
        from rich.console import Console

        from jaxrl.artifacts.metrics.progress import ProgressBar
        from jaxrl.artifacts.run_folder import RunFolder
        from jaxrl.training.host.launch import make_factory
        from jaxrl.training.host.loop import HostLoop
        from jaxrl.training.host.recorder import HostRecorder
        from jaxrl.training.interrupt import Interrupt

        options = settings.checkpoint_settings
        folder = RunFolder(options.results_dir, options.run_id)
        folder.prepare()
        recorder = stack.enter_context(HostRecorder(settings, folder, ProgressBar(Console(file=io.StringIO()))))
        factory: Any = make_factory(settings, f"{options.results_dir}/logs")
        if delay:
            factory = partial(Delayed, factory, delay)
        count = settings.env_settings.num_envs
        pool = stack.enter_context(EnvPool(factory, count, timeout=120.0, startup_timeout=180.0))
        self._loop = HostLoop(settings, recorder, Interrupt(), pool)
        stack.callback(self._loop.updates.join)
        pool.reset()
        self._results = self._loop.receive(count)

    def run(self, updates: int) -> tuple[float, float]:
        """Go on for so many updates; environment steps and updates per second."""
        before, begun, steps = self.updates, time.perf_counter(), 0
        while self.updates < before + updates:
            steps += len(self._results)
            self._loop.advance(self._results)
            self._results = self._loop.receive(self._loop.pool.num_envs)
        seconds = time.perf_counter() - begun
        return steps / seconds, updates / seconds

    @property
    def updates(self) -> int:
        """Updates so far."""
        return sum(behavior.updates for behavior in self._loop.behaviors.values())


def with_threads(settings: RunSettings, threaded: bool) -> RunSettings:
    """The same settings, with or without `threaded`."""
    behaviors = {name: b.model_copy(update={"threaded": threaded}) for name, b in settings.behaviors.items()}
    return settings.model_copy(update={"behaviors": behaviors})


def measure(workers: int, pairs: int, updates: int, delay: float, base_port: int) -> dict[str, Any]:
    """Medians over pairs of windows, after both have compiled."""
    with ExitStack() as stack:
        results = stack.enter_context(tempfile.TemporaryDirectory())
        usual = Loop(stack, with_threads(settings_for(workers, base_port, results), False), delay)
        threaded = Loop(stack, with_threads(settings_for(workers, base_port + workers, results), True), delay)
        usual.run(2), threaded.run(2)
        windows = [(usual.run(updates)[0], threaded.run(updates)[0]) for _ in range(pairs)]
    return {
        "workers": workers,
        "delay_ms": 1000 * delay,
        "alternating": statistics.median(rate for rate, _ in windows),
        "threaded": statistics.median(rate for _, rate in windows),
        "ratio": statistics.median(threaded / usual for usual, threaded in windows),
    }


def learn(base_port: int) -> dict[str, float]:
    """Mean return of Basic in the last summary, trained with and without threads."""
    from pathlib import Path

    from jaxrl.algorithms import HYPERPARAMETER_TYPES
    from jaxrl.training.host.run import train

    path = Path(__file__).resolve().parents[1] / "configs" / "ppo" / "basic.yaml"
    found = {}
    with tempfile.TemporaryDirectory() as results:
        for i, threaded in enumerate((False, True)):
            name = "threaded" if threaded else "alternating"
            overrides = {
                "env_settings": {"env_path": "player:basic", "base_port": base_port + i, "seed": 1},
                "behaviors": {
                    "Basic": {
                        "max_steps": LEARN_STEPS,
                        "checkpoint_interval": LEARN_STEPS,
                        "hyperparameters": {"learning_rate": 0.003},
                    }
                },
                "checkpoint_settings": {"run_id": name, "results_dir": results},
            }
            train(with_threads(load_run_settings(str(path), overrides, HYPERPARAMETER_TYPES), threaded))
            timers = json.loads((Path(results) / name / "run_logs" / "timers.json").read_text())
            found[name] = timers["gauges"]["Basic.Environment.CumulativeReward.mean"]["value"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=5, help="windows of each kind")
    parser.add_argument("--updates", type=int, default=3, help="updates in a window")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="added to each step of an environment")
    parser.add_argument("--base-port", type=int, default=5505)
    parser.add_argument("--learn", action="store_true", help="train a small task both ways instead")
    parser.add_argument("--json", help="append the numbers to this file")
    options = parser.parse_args()
    choose_device(None)
    enable_compilation_cache()
    if options.learn:
        found: dict[str, Any] = learn(options.base_port)
    else:
        found = measure(options.workers, options.pairs, options.updates, options.delay_ms / 1000, options.base_port)
    print(", ".join(f"{name} {value:.2f}" for name, value in found.items()))
    if options.json:
        with open(options.json, "a") as file:
            file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
