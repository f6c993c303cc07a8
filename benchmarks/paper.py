"""The experiment of the MA-POCA paper: does leaving the dead out beat padding them with absorbing states?

    python benchmarks/paper.py --draw benchmarks/paper.png      # everything: 10 seeds of 3 trainers on 4 tasks, the toy
    python benchmarks/paper.py --quick                          # does it run? 2 seeds, 2 updates
    python benchmarks/paper.py --tasks baton_pass --trainers poca ppo --seeds 4

After Cohen et al., "On the Use and Misuse of Absorbing States in Multi-agent Reinforcement Learning" (arXiv
2111.05992): MA-POCA (attention over the living), COMA with absorbing states (a fully connected critic of fixed
capacity) and PPO (each agent for itself) on jaxrl's own versions of the paper's tasks, which are small enough for
minutes; settings and what is equal stand in paper_tasks.py, the toy regression in paper_toy.py, the statistics in
paper_report.py. Seeds run side by side, one device per core on a CPU.

Each trainer on each task is kept in the folder `--out` as soon as it is done: an experiment that was interrupted goes
on with what is missing. The tables printed at the end are those of results.md. Drawing needs the extra `plots`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import paper_figure
import paper_report
import paper_toy
from paper_tasks import TASKS, TRAINERS
from paper_training import Outcome, kept, trained

SEEDS, QUICK_SEEDS, QUICK_EPOCHS = 10, 2, 11


def run(
    tasks: Sequence[str],
    trainers: Sequence[str],
    seeds: int,
    folder: Path,
    changes: dict[str, Any] | None = None,
    toy: dict[str, Any] | None = None,
) -> tuple[dict[tuple[str, str], Outcome], dict[str, np.ndarray]]:
    """What is not yet in `folder` is trained. `changes` replaces fields of each task, `toy` arguments of the toy."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [(task, trainer) for task in tasks for trainer in trainers]
    results = {(task, trainer): trained(task, trainer, seeds, folder, changes or {}) for task, trainer in pairs}
    given = {"seeds": paper_toy.SEEDS, "epochs": paper_toy.EPOCHS, "most": list(paper_toy.MOST_ABSORBED), **(toy or {})}
    errors = kept(folder / "toy.json", given, lambda: _lists(paper_toy.run(**given)))
    return results, {case: np.asarray(found, np.float64) for case, found in errors.items()}


def _lists(errors: dict[str, np.ndarray]) -> dict[str, Any]:
    return {case: found.tolist() for case, found in errors.items()}


def report(results: dict[tuple[str, str], Outcome], errors: dict[str, np.ndarray], picture: Path) -> None:
    """Print the tables and draw the figure."""
    if results:
        print(f"\n{paper_report.table(results)}")
    print(f"\n{paper_report.toy_table(errors)}\n")
    paper_figure.draw(results, errors, picture)
    print(f"drawn: {picture}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS), help="none: the toy alone")
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=list(TRAINERS))
    parser.add_argument("--seeds", type=int, help=f"default {SEEDS}; best a multiple of the cores")
    parser.add_argument("--steps", type=int, help="agent steps of each seed, instead of those in paper_tasks.py")
    parser.add_argument("--out", type=Path, help="folder of the runs, default results/paper")
    parser.add_argument("--draw", type=Path, help="the figure, a .png; default paper.png in that folder")
    parser.add_argument("--quick", action="store_true", help="2 seeds and 2 updates each")
    given = parser.parse_args()
    if jax.config.jax_platforms in (None, "", "cpu"):  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    folder = given.out or Path("results", "paper-quick" if given.quick else "paper")
    steps = given.steps or (1 + max(TASKS[task].buffer for task in TASKS) if given.quick else None)
    seeds = given.seeds or (QUICK_SEEDS if given.quick else SEEDS)
    toy = {"seeds": QUICK_SEEDS, "epochs": QUICK_EPOCHS} if given.quick else {}
    results, errors = run(given.tasks, given.trainers, seeds, folder, {"steps": steps} if steps else {}, toy)
    report(results, errors, given.draw or folder / "paper.png")


if __name__ == "__main__":
    main()
