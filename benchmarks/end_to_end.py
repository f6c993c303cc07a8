"""A whole `jaxrl train` process, from start to exit: 60,000 agent steps of MA-POCA on 16 areas of 3 agents, one worker.

    python benchmarks/end_to_end.py                       # first with an empty cache of compiled programs, then warm
    python benchmarks/end_to_end.py --warm 5 --json FILE
    python benchmarks/end_to_end.py --timeline            # also: what happens when, in one warm and one cold run

Batch 256, buffer 4096, 4 epochs, 64 x 2 units, on the bundled player. ML-Agents 1.1.0 takes 118 s for the same as it
installs on Python 3.11, and 81 s with a fast protobuf (one quiet machine with two cores, its own environment of the
same size). `CPU` is user + system time of trainer, worker and player together: on a busy machine look at that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CONFIG = """
behaviors:
  DungeonEscape:
    trainer_type: poca
    hyperparameters: {batch_size: 256, buffer_size: 4096, num_epoch: 4, learning_rate: 0.001}
    network_settings: {hidden_units: 64, num_layers: 2}
    max_steps: 60000
    time_horizon: 100
    summary_freq: 20000
env_settings: {env_path: "player:dungeon_escape", num_areas: 16}
"""
PHASES = {  # of timers.json; the rest of the wall time is before and after
    "setup": ("run_training.setup",),
    "environment": ("TrainerController.start_learning", "TrainerController.advance", "env_step"),
    "policy": ("TrainerController.start_learning", "TrainerController.advance", "TorchPolicy.evaluate"),
    "update": ("TrainerController.start_learning", "TrainerController.advance", "trainer_advance", "_update_policy"),
}


class Run(NamedTuple):
    """One process."""

    wall: float  # seconds
    cpu: float  # seconds, with children
    phases: dict[str, float]  # seconds of wall time


def phase_seconds(tree: dict[str, Any], path: tuple[str, ...]) -> float:
    """Total of the timer at `path`, 0 if it never ran."""
    for name in path:
        if name not in tree.get("children", {}):
            return 0.0
        tree = tree["children"][name]
    return tree["total"]


def train(folder: Path, cache: Path, base_port: int, program: list[str]) -> Run:
    """Run `program` as the trainer; raises SystemExit with its output when it fails."""
    config, run_id = folder / "config.yaml", f"run-{time.time_ns()}"
    config.write_text(CONFIG)
    command = [sys.executable, *program, "train", str(config), f"--run-id={run_id}", "--seed=1"]
    command += [f"--results-dir={folder}", f"--base-port={base_port}"]
    log = folder / f"{run_id}.log"
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"JAXRL_CACHE_DIR": str(cache), "PYTHONPATH": paths}
    with log.open("wb") as output:
        begun = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begun
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{log.read_text()[-3000:]}")
    timers = json.loads((folder / run_id / "run_logs" / "timers.json").read_text())
    if program[0] != "-m":
        print(log.read_text().partition("timeline\n")[2])
    phases = {name: phase_seconds(timers, path) for name, path in PHASES.items()}
    return Run(wall, usage.ru_utime + usage.ru_stime, phases | {"rest": wall - sum(phases.values())})


def inside(arguments: list[str]) -> int:
    """The trainer's process with a stop watch: first calls of what takes time, and all that is compiled or loaded."""
    begun, lines = time.perf_counter(), []

    def note(what: str, seconds: float) -> None:
        if seconds > 0.03:
            now = time.perf_counter() - begun
            clocks = f"{now - seconds:7.2f} to {now:6.2f} s  {seconds:6.2f} s  CPU so far {time.process_time():5.1f}"
            lines.append(f"{clocks}  {what}")

    def watch(owner: Any, name: str, times: int = 1) -> None:
        function, count = getattr(owner, name), 0

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            entered = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                if count <= times:
                    note(f"{getattr(owner, '__name__', owner)}.{name}", time.perf_counter() - entered)

        setattr(owner, name, call)

    import jaxrl.cli.train
    from jaxrl.envs.workers.pool import EnvPool

    note("import jaxrl.cli", time.perf_counter() - begun)
    for name in ("__init__", "ready", "recv", "close"):
        watch(EnvPool, name)
    choose_device = jaxrl.cli.train.choose_device

    def then_watch(device: str | None) -> None:
        choose_device(device)
        entered = time.perf_counter()
        import jax.monitoring

        from jaxrl.training.host.behavior import Behavior
        from jaxrl.training.host.loop import HostLoop
        from jaxrl.training.host.recorder import HostRecorder

        note("import jaxrl.training.host.run", time.perf_counter() - entered)
        jax.monitoring.register_event_duration_secs_listener(
            lambda event, seconds, **more: (
                note(f"  {event.rpartition('/')[2]} {more.get('fun_name', '')}", seconds)
                if "/core/compile/" in event
                else None
            )
        )
        watch(HostLoop, "meet")
        watch(Behavior, "act", 2)
        watch(Behavior, "learn", 2)
        watch(HostRecorder, "finish")

    jaxrl.cli.train.choose_device = then_watch
    watch(jaxrl.cli.train, "choose_device")
    code = jaxrl.cli.main(arguments)
    print("timeline", *lines, f"{time.perf_counter() - begun:7.2f} s: end of main", sep="\n")
    return code


def show(what: str, run: Run) -> None:
    """One row of the table."""
    phases = " ".join(f"{seconds:11.1f}" for seconds in run.phases.values())
    print(f"{what:12} {run.wall:7.1f} {run.cpu:7.1f}   {phases}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm", type=int, default=3, help="runs after the first")
    parser.add_argument("--base-port", type=int, default=5455)
    parser.add_argument("--timeline", action="store_true", help="two more runs, which tell what happens when")
    parser.add_argument("--json", help="append the numbers to this file")
    options = parser.parse_args()
    command = ["-m", "jaxrl.cli"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("run           wall s   CPU s   " + " ".join(f"{phase:>11}" for phase in [*PHASES, "rest"]))
        first = train(folder, folder / "cache", options.base_port, command)
        show("empty cache", first)
        warm = []
        for _ in range(options.warm):
            warm.append(train(folder, folder / "cache", options.base_port, command))
            show("warm", warm[-1])
        if options.timeline:
            for cache in ("cache", "other cache"):
                show(cache, train(folder, folder / cache, options.base_port, [__file__, "--inside"]))
    medians = {"wall": statistics.median(run.wall for run in warm), "cpu": statistics.median(run.cpu for run in warm)}
    print(f"median of the warm runs: {medians['wall']:.1f} s, CPU {medians['cpu']:.1f} s")
    if options.json:
        with open(options.json, "a") as file:
            file.write(json.dumps({"first": first._asdict(), "warm": [run._asdict() for run in warm]}) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        sys.exit(inside(sys.argv[2:]))
    main()
