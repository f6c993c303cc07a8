"""A sweep of four learning rates with four seeds each, beside sixteen runs of one seed: whole commands, start to end.

    python benchmarks/sweep.py                       # about 6 minutes on two quiet cores
    python benchmarks/sweep.py --steps 20000 --single 4   # four of the sixteen, times four

Both use programs that are compiled and kept on disk before anything is timed, unless `--cold`. Single runs go one after
another, each with all cores, as a user would start them in a loop of the shell.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "poca" / "dungeon_escape.yaml"
RATES, SEEDS = (1e-3, 7e-4, 5e-4, 3e-4), 4


def timed(folder: Path, words: Sequence[str]) -> tuple[float, float, str]:
    """Seconds by the clock and of all cores, and what was said."""
    place = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAXRL_CACHE_DIR": str(folder / "cache")}
    begun, before = time.perf_counter(), os.times()
    ended = subprocess.run(
        [sys.executable, "-m", "jaxrl.cli", *words],
        cwd=folder,
        env={**os.environ, **place},
        capture_output=True,
        text=True,
    )
    after = os.times()
    if ended.returncode:
        raise SystemExit(f"jaxrl {' '.join(words)}: {ended.stderr}")
    cores = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - begun, cores, ended.stdout


def common(steps: int, run_id: str) -> list[str]:
    return [str(CONFIG), "--env", "jax:dungeon_escape", "--num-areas", "16", "--run-id", run_id, "--force",
            "--set", f"max_steps={steps}"]  # fmt: skip


def single(folder: Path, rate: float, seed: int, steps: int) -> tuple[float, float]:
    words = ["train", *common(steps, "single"), "--set", f"hyperparameters.learning_rate={rate}", "--seed", str(seed)]
    return timed(folder, words)[:2]


def sweep(folder: Path, steps: int) -> tuple[float, float, int]:
    rates = ",".join(map(str, RATES))
    words = ["sweep", *common(steps, "sweep"), "--set", f"hyperparameters.learning_rate={rates}"]
    clock, cores, said = timed(folder, [*words, "--seeds", str(SEEDS), "--seed", "0"])
    return clock, cores, len(re.findall("Compiling", said))


def main() -> None:
    """Print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60_000, help="of each seed (default: 60000)")
    parser.add_argument("--single", type=int, default=16, help="how many of the 16 runs are made (default: all)")
    parser.add_argument("--cold", action="store_true", help="nothing is compiled before")
    options = parser.parse_args()
    points = [(rate, seed) for rate in RATES for seed in range(SEEDS)][:: 16 // options.single]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not options.cold:
            sweep(folder, 5000)
            single(folder, RATES[0], 0, 5000)
        clock, cores, programs = sweep(folder, options.steps)
        runs = [single(folder, rate, seed, options.steps) for rate, seed in points]
    many = [sum(of) * 16 / len(runs) for of in zip(*runs, strict=True)]
    print(
        f"sweep: {clock:.1f} s, {cores:.1f} CPU-s, {programs} program(s); 16 runs: {many[0]:.1f} s, {many[1]:.1f} CPU-s"
    )
    print(json.dumps({"clock_ratio": clock / many[0], "cpu_ratio": cores / many[1], "single_runs_made": len(runs)}))


if __name__ == "__main__":
    main()
