"""The main job, five seeds of MA-POCA and of PPO: final group reward, wall time of the whole command, and the curves.

    python benchmarks/dungeon_escape.py --seeds 1 2 3 4 5 --draw benchmarks/dungeon_escape.png

Each run is the README's command as a process of its own, one after the other, from start to exit. Drawing needs the
extra `plots`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
POINT = re.compile(r"Step: (\d+)\. .*Mean Group Reward: (-?[\d.]+)\. Std of Group Reward: [\d.]+\. Training")
FINAL = re.compile(r"mean group reward (-?[\d.]+) over the last (\d+) team episodes")


class Outcome(NamedTuple):
    """One run."""

    trainer: str
    seed: int
    seconds: float
    final: float  # mean group reward over the last 100 team episodes
    steps: list[int]
    rewards: list[float]


def run(trainer: str, seed: int, results: str, base_port: int) -> Outcome:
    """One whole `jaxrl train` process; raises CalledProcessError when it fails."""
    command = [sys.executable, "-m", "jaxrl.cli", "train", str(ROOT / "configs" / trainer / "dungeon_escape.yaml")]
    command += [f"--run-id={trainer}-{seed}", f"--seed={seed}", f"--results-dir={results}", f"--base-port={base_port}"]
    begun = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800)
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")
    points = [(int(step), float(reward)) for step, reward in POINT.findall(done.stdout)]
    final = FINAL.search(done.stdout)
    assert final is not None, done.stdout[-3000:]
    return Outcome(
        trainer, seed, seconds, float(final[1]), [step for step, _ in points], [reward for _, reward in points]
    )


def draw(outcomes: list[Outcome], path: Path) -> None:
    """Curve of each seed and the mean of each trainer."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=110)
    for trainer, color, label in (("poca", "#1565c0", "MA-POCA"), ("ppo", "#c62828", "PPO")):
        runs = [outcome for outcome in outcomes if outcome.trainer == trainer]
        if not runs:
            continue
        for outcome in runs:
            axes.plot(outcome.steps, outcome.rewards, color=color, alpha=0.25, linewidth=1)
        length = min(len(outcome.steps) for outcome in runs)
        mean = np.mean([outcome.rewards[:length] for outcome in runs], axis=0)
        axes.plot(runs[0].steps[:length], mean, color=color, linewidth=2.2, label=f"{label} ({len(runs)} seeds)")
    axes.set(xlabel="agent steps", ylabel="mean group reward", ylim=(-0.02, 1.05), title="Dungeon Escape")
    axes.grid(alpha=0.3)
    axes.legend(loc="center right", frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--trainers", nargs="+", default=["poca", "ppo"])
    parser.add_argument("--base-port", type=int, default=5305)
    parser.add_argument("--draw", type=Path, help="write the curves to this .png")
    options = parser.parse_args()
    outcomes = []
    print("trainer  seed  group reward (last 100)  seconds")
    with tempfile.TemporaryDirectory() as results:
        for trainer in options.trainers:
            for seed in options.seeds:
                outcome = run(trainer, seed, results, options.base_port)
                outcomes.append(outcome)
                print(f"{trainer:7}  {seed:4}  {outcome.final:23.3f}  {outcome.seconds:7.1f}", flush=True)
    if options.draw:
        draw(outcomes, options.draw)


if __name__ == "__main__":
    main()
