"""Speed of the whole loop against its ceiling: environment steps and agent steps per second, and where the time goes.

    python benchmarks/host_loop.py                       # 1 and 2 workers, the shipped configuration
    python benchmarks/host_loop.py --workers 1 --pairs 9 --json FILE
    python benchmarks/host_loop.py --workers 1 --sensors memory nature_cnn entities   # PPO over what sensors.py lists

The ceiling is the same player behind the same pool, its allowed actions drawn from a table, nothing learned. Both run
in turn, in short windows, so that another load of the machine hits both; each pair of windows gives one ratio and the
table shows medians. The learning rate is 1e-9, so that the policy stays as random as the ceiling's actions and the
dungeons hold as many agents. `without update` leaves the time of updates out of the training windows. An environment
step is one message of one worker, an agent step one decision. Needs psutil (extra dev) and Linux for the CPU times,
which are those of a training window per environment step.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import psutil
from sensors import SENSORS, sensors_settings

from jaxrl.artifacts.files import carried
from jaxrl.cli.device import choose_device
from jaxrl.compilation import enable_compilation_cache
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.settings import RunSettings, load_run_settings
from jaxrl.types import Action, ActionSpec, BehaviorSpec, DecisionSteps, EnvMessage

CONFIG = carried("configs") / "poca" / "dungeon_escape.yaml"
TABLE = 64  # prepared draws for the ceiling
PHASES = ("environment", "policy", "update", "rest")


class Window(NamedTuple):
    """What happened in one window. Times in seconds."""

    seconds: float
    env_steps: int
    agent_steps: int
    phases: dict[str, float]
    cpu: dict[str, float]


class Ceiling:
    """Random allowed actions for whatever asks."""

    def __init__(self, pool: EnvPool) -> None:
        self._pool = pool
        self._luck = np.random.default_rng(0).random((TABLE, 512, 16), np.float32)
        self._count = 0
        self._specs: dict[str, BehaviorSpec] = {}
        pool.reset()
        self._results = pool.recv(pool.num_envs)

    def run(self, seconds: float) -> Window:
        """Step for `seconds`; always all workers, in their order, as lockstep training does."""
        begun, env_steps, agent_steps = time.perf_counter(), 0, 0
        while time.perf_counter() - begun < seconds:
            for result in self._results:
                env_steps += 1
                agent_steps += sum(len(steps.deciding.agent_id) for steps in result.steps.values())
                self._pool.send(result.worker, self._act(result))
            self._results = self._pool.recv(self._pool.num_envs)
        return Window(time.perf_counter() - begun, env_steps, agent_steps, {}, {})

    def _act(self, result: EnvMessage) -> dict[str, Action]:
        self._count = (self._count + 1) % TABLE
        self._specs |= result.new_specs
        return {name: self._draw(steps.deciding, self._specs[name].action) for name, steps in result.steps.items()}

    def _draw(self, deciding: DecisionSteps, action: ActionSpec) -> Action:
        agents, actions = deciding.action_mask.shape
        luck = self._luck[self._count, :agents, :actions] * deciding.action_mask
        branches = np.split(luck, np.cumsum(action.discrete_branches)[:-1], axis=1)
        best = np.stack([np.argmax(branch, axis=1) for branch in branches], axis=1)
        return Action(continuous=np.zeros((agents, 0), np.float32), discrete=best.astype(np.int32))


class Training:
    """The real host loop, advanced by hand."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        loop.pool.reset()
        self._results = loop.receive(loop.pool.num_envs)

    def run(self, seconds: float) -> Window:
        """Train for `seconds`, updates included."""
        before, cpu_before, steps_before = self._phases(), cpu_seconds(), self.steps
        begun, env_steps = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            env_steps += len(self._results)
            self._loop.advance(self._results)
            self._results = self._loop.receive(self._loop.pool.num_envs)
        elapsed = time.perf_counter() - begun
        phases = {name: value - before[name] for name, value in self._phases().items()}
        phases["rest"] = elapsed - sum(phases.values())
        cpu = {role: value - cpu_before[role] for role, value in cpu_seconds().items()}
        return Window(elapsed, env_steps, self.steps - steps_before, phases, cpu)

    @property
    def steps(self) -> int:
        """Trainer steps so far."""
        return sum(behavior.step for behavior in self._loop.behaviors.values())

    @property
    def updates(self) -> int:
        """Updates so far."""
        return sum(behavior.updates for behavior in self._loop.behaviors.values())

    def _phases(self) -> dict[str, float]:
        from jaxrl.artifacts.metrics import timers as nodes

        timers = self._loop.recorder.timers.root
        names = {"environment": nodes.ENV_STEP, "policy": nodes.EVALUATE, "update": nodes.UPDATE_POLICY}
        return {phase: timers.seconds_of(name) for phase, name in names.items()}


def cpu_seconds() -> dict[str, float]:
    """User and system time so far of this process, its workers and their players."""
    trainer = psutil.Process()
    found = {"trainer": trainer, "workers": None, "players": None}
    seconds = dict.fromkeys(found, 0.0)
    seconds["trainer"] = sum(trainer.cpu_times()[:2])
    for child in trainer.children(recursive=True):
        role = "players" if "--mlagents-port" in child.cmdline() else "workers"
        seconds[role] += sum(child.cpu_times()[:2])
    return seconds


def settings_for(workers: int, base_port: int, results: str, sensors: str | None = None) -> RunSettings:
    """The shipped configuration for `workers`, in a folder of its own; it never ends and never learns much."""
    from jaxrl.algorithms import HYPERPARAMETER_TYPES

    if sensors:
        return sensors_settings(workers, base_port, results, sensors)
    overrides = {
        "env_settings": {"num_envs": workers, "base_port": base_port, "seed": 1},
        "checkpoint_settings": {"run_id": f"port-{base_port}", "results_dir": results},
        "behaviors": {
            "DungeonEscape": {
                "max_steps": 10**9,
                "checkpoint_interval": 10**9,
                "hyperparameters": {"learning_rate": 1e-9},
            }
        },
    }
    return load_run_settings(str(CONFIG), overrides, HYPERPARAMETER_TYPES)


@contextmanager
def pool_of(settings: RunSettings) -> Iterator[EnvPool]:
    """Started workers and players."""
    from jaxrl.training.host.launch import make_factory

    factory = make_factory(settings, f"{settings.checkpoint_settings.results_dir}/logs")
    with EnvPool(factory, settings.env_settings.num_envs, timeout=120.0, startup_timeout=180.0) as pool:
        yield pool


@contextmanager
def both(workers: int, base_port: int, sensors: str | None) -> Iterator[tuple[Ceiling, Training]]:
    """A ceiling and a training loop, each with its own players."""
    from rich.console import Console

    from jaxrl.artifacts.metrics.progress import ProgressBar
    from jaxrl.artifacts.run_folder import RunFolder
    from jaxrl.training.host.loop import HostLoop
    from jaxrl.training.host.recorder import HostRecorder
    from jaxrl.training.interrupt import Interrupt

    with ExitStack() as stack:
        results = stack.enter_context(tempfile.TemporaryDirectory())
        free = settings_for(workers, base_port + workers, results, sensors)
        ceiling = Ceiling(stack.enter_context(pool_of(free)))
        settings = settings_for(workers, base_port, results, sensors)
        folder = RunFolder(results, settings.checkpoint_settings.run_id)
        folder.prepare()
        recorder = stack.enter_context(HostRecorder(settings, folder, ProgressBar(Console(file=io.StringIO()))))
        pool = stack.enter_context(pool_of(settings))
        yield ceiling, Training(HostLoop(settings, recorder, Interrupt(), pool))


def measure(workers: int, pairs: int, seconds: float, base_port: int, sensors: str | None = None) -> dict[str, Any]:
    """Medians over `pairs` of windows, after the programs are compiled."""
    windows = []
    with both(workers, base_port, sensors) as (ceiling, training):
        while training.updates < 2:
            training.run(0.5)
        ceiling.run(0.5)
        windows = [(ceiling.run(seconds), training.run(seconds)) for _ in range(pairs)]

    def median(values: Iterator[float]) -> float:
        return statistics.median(values)

    steps = sum(trained.env_steps for _, trained in windows)
    rates = [(free.env_steps / free.seconds, trained.env_steps / trained.seconds) for free, trained in windows]
    without = [trained.env_steps / (trained.seconds - trained.phases["update"]) for _, trained in windows]
    return {
        "what": f"{sensors}, PPO" if sensors else "Dungeon Escape",
        "workers": workers,
        "ceiling_env_steps": median(free for free, _ in rates),
        "ceiling_agent_steps": median(free.agent_steps / free.seconds for free, _ in windows),
        "env_steps": median(trained for _, trained in rates),
        "agent_steps": median(trained.agent_steps / trained.seconds for _, trained in windows),
        "share": median(trained / free for free, trained in rates),
        "share_without_update": median(rate / free for rate, (free, _) in zip(without, rates, strict=True)),
        "us": {name: 1e6 * sum(trained.phases[name] for _, trained in windows) / steps for name in PHASES},
        "cpu_us": {role: 1e6 * sum(t.cpu[role] for _, t in windows) / steps for role in windows[0][1].cpu},
    }


def report(found: dict[str, Any]) -> None:
    """One block of the table."""
    print(f"{found['workers']} worker(s), {found['what']}, 16 areas: medians")
    for name, prefix in (("ceiling", "ceiling_"), ("training", "")):
        env_steps, agent_steps = found[f"{prefix}env_steps"], found[f"{prefix}agent_steps"]
        print(f"  {name:10} {env_steps:7.0f} env steps/s  {agent_steps:8.0f} agent steps/s")
    print(f"  of ceiling {found['share']:7.0%}, without update {found['share_without_update']:.0%}")
    for clock, values in (("wall", found["us"]), ("CPU", found["cpu_us"])):
        print(f"  us of {clock} time per env step: " + ", ".join(f"{name} {us:.0f}" for name, us in values.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pairs", type=int, default=7, help="windows of each kind")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a window")
    parser.add_argument("--base-port", type=int, default=5405)
    parser.add_argument("--sensors", nargs="+", choices=SENSORS, default=[None], help="PPO over these instead")
    parser.add_argument("--quick", action="store_true", help="1 worker and one pair of windows of 1 second alone")
    parser.add_argument("--json", help="append the numbers to this file")
    options = parser.parse_args()
    if options.quick:
        options.workers, options.pairs, options.seconds = [1], 1, 1.0
    choose_device(None)
    enable_compilation_cache()
    for sensors in options.sensors:
        for workers in options.workers:
            found = measure(workers, options.pairs, options.seconds, options.base_port, sensors)
            report(found)
            if options.json:
                with open(options.json, "a") as file:
                    file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
