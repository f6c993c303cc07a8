"""A long run whose environment processes are killed again and again: nothing grows, and no decision is unaccounted for.

    python benchmarks/soak_restarts.py                                           # 2 M agent steps, 100 deaths
    python benchmarks/soak_restarts.py --steps 200000 --env player:basic --json FILE

One host loop (PPO, a summary every 10,000 agent steps, a checkpoint with its ONNX file every 50,000) in this process;
whenever the trainer step crosses a multiple of --restarts-every, a random worker (or player) gets SIGKILL. Passes (exit
code 0) when the trainer's memory in the last quarter is at most 5 % above the second quarter's (medians), its files and
children are as many as before the first death, no child and no shared memory is left behind, there were as many
restarts as deaths, and decisions that were asked for = trained + left in the buffer + dropped + still open.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

SAMPLES = 400
MOST_GROWTH = 0.05
FAMILY = ("spawn_main", "served.serve")  # words in the command lines of workers and players
_SHARED = Path("/dev/shm")


class Sample(NamedTuple):
    """The trainer at one moment."""

    step: int
    mib: float  # resident
    files: int
    children: int


class Outcome(NamedTuple):
    """What came of a run."""

    samples: list[Sample]
    counts: Mapping[str, int]  # see `Counts`
    kills: int
    seconds: float
    step: int


def family() -> list[psutil.Process]:
    """Living workers and players of this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and any(word in line for word in FAMILY):
                found.append(process)
    return found


def configuration(folder: Path, options: argparse.Namespace) -> Path:
    """PPO for all behaviors, with restarts without limit."""
    behavior = {
        "trainer_type": "ppo",
        "hyperparameters": {
            "batch_size": 256, "buffer_size": 2048, "learning_rate": 0.001, "learning_rate_schedule": "constant",
        },
        "network_settings": {"hidden_units": 64},
        "max_steps": options.steps, "summary_freq": 10_000, "checkpoint_interval": 50_000, "time_horizon": 128,
    }  # fmt: skip
    env_settings = {
        "env_path": options.env, "num_envs": options.workers, "num_areas": options.areas, "mode": "async", "seed": 1,
        "base_port": options.base_port, "max_lifetime_restarts": -1, "restarts_rate_limit_n": -1,
    }  # fmt: skip
    path = folder / "soak.yaml"
    path.write_text(yaml.safe_dump({"default_settings": behavior, "behaviors": {}, "env_settings": env_settings}))
    return path


def soak(options: argparse.Namespace, folder: Path) -> Outcome:
    """The whole run."""
    from benchmarks.counted_loop import (
        counted_loop,
    )  # JAX, which a spawned worker that imports this file again needs not

    rng, trainer, samples = random.Random(options.seed), psutil.Process(), list[Sample]()
    kills = killed_at = sampled_at = step = 0
    begin = time.monotonic()
    with counted_loop(configuration(folder, options), folder) as loop:
        for _ in loop.iterate():
            step = sum(behavior.step for behavior in loop.behaviors.values())
            if step // (options.steps // SAMPLES) > sampled_at:
                sampled_at = step // (options.steps // SAMPLES)
                mib = trainer.memory_info().rss / 2**20
                samples.append(Sample(step, mib, trainer.num_fds(), len(family())))
            if killed_at < step // options.restarts_every < options.steps // options.restarts_every:
                killed_at = step // options.restarts_every
                kills += kill_one(rng)
                tell(step, options.steps, time.monotonic() - begin, samples)
        counts = loop.close_books().as_dict()
    return Outcome(samples, counts, kills, time.monotonic() - begin, step)


def kill_one(rng: random.Random) -> int:
    """SIGKILL for a random worker or player: 1 if there was one."""
    found = family()
    if found:
        rng.choice(found).kill()
    return int(bool(found))


def tell(step: int, steps: int, seconds: float, samples: Sequence[Sample]) -> None:
    """A line of progress."""
    last = samples[-1]
    line = f"{step:>9} of {steps}, {seconds:.0f} s: {last.mib:.0f} MiB, {last.files} files, {last.children} children"
    print(line, file=sys.stderr, flush=True)


def figures_of(outcome: Outcome) -> dict[str, float]:
    """The numbers that are judged."""
    samples, quarter = outcome.samples, len(outcome.samples) // 4
    second, last = (statistics.median(s.mib for s in samples[part]) for part in (
        slice(quarter, 2 * quarter), slice(-quarter, None)
    ))  # fmt: skip
    return {
        "agent steps": outcome.step, "seconds": outcome.seconds, "deaths": outcome.kills,
        "MiB, second quarter": second, "MiB, last quarter": last, "growth": last / second - 1.0,
        "files, first": samples[0].files, "files, last": samples[-1].files,
        "children, first": samples[0].children, "children, last": samples[-1].children,
        **outcome.counts,
    }  # fmt: skip


def problems_of(figures: dict[str, float]) -> list[str]:
    """What is not as it should be after the run."""
    checks = {
        "memory grows": figures["growth"] > MOST_GROWTH,
        "files are left open": figures["files, last"] > figures["files, first"],
        "children are left": figures["children, last"] != figures["children, first"],
        "restarts are not as many as deaths": figures["restarts"] != figures["deaths"] or not figures["deaths"],
        "decisions are unaccounted for": figures["unaccounted"] != 0,
    }
    return [text for text, wrong in checks.items() if wrong]


def shared_memory() -> set[str]:
    """Names in the shared memory of this machine that are not of other programs."""
    return {path.name for path in _SHARED.glob("*jaxrl*")} if _SHARED.is_dir() else set()


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--restarts-every", type=int, default=20_000, help="agent steps between two deaths")
    parser.add_argument("--steps", type=int, default=2_000_000, help="agent steps of the whole run")
    parser.add_argument("--env", default="gymnasium:CartPole-v1", help="env_settings.env_path")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--areas", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0, help="of who is killed")
    parser.add_argument("--base-port", type=int, default=5505)
    parser.add_argument("--json", help="append the numbers to this file")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    options = parser.parse_args(arguments)
    shared = shared_memory()
    with tempfile.TemporaryDirectory(prefix="jaxrl-soak-") as name:
        outcome = soak(options, Path(name))
    figures: dict[str, Any] = figures_of(outcome)
    problems = problems_of(figures)
    _, left = psutil.wait_procs(family(), timeout=10.0)
    problems += [f"left: {left}"] * bool(left)
    problems += [f"shared memory: {shared_memory() - shared}"] * bool(shared_memory() - shared)
    for title, value in figures.items():
        print(f"{title:<24}{value:>14.3f}" if isinstance(value, float) else f"{title:<24}{value:>14}")
    for problem in problems:
        print(f"FAILED: {problem}")
    if options.json:
        with Path(options.json).open("a") as file:
            file.write(json.dumps({"benchmark": "soak_restarts", **figures, "samples": outcome.samples}) + "\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
