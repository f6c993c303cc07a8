"""`jaxrl export-torch`: a run of jaxrl becomes a checkpoint that ML-Agents goes on with."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The run, and the file."""
    parser.description = (
        "Write the latest checkpoint of a run (PPO, MA-POCA) as the .pt of ML-Agents: weights, statistics of "
        "observations, Adam and step. mlagents-learn continues it with --resume, or starts with it by "
        "--initialize-from or init_path. PyTorch is not needed."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="results folder of the run, such as results/first")
    parser.add_argument("--behavior", metavar="NAME", help="which of its behaviors (default: the only one)")
    parser.add_argument("--seed", type=int, metavar="N", help="which seed of a run with several (default: the best)")
    parser.add_argument("--out", type=Path, metavar="FILE.pt", help="(default: RUN/<Behavior>/checkpoint.pt)")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(given: argparse.Namespace) -> int:
    """Write the file and say where it is."""
    from jaxrl.cli.device import choose_device

    choose_device("cpu")
    from jaxrl.training.host.migration import export_run

    path, step = export_run(given.run, given.behavior, given.out, given.seed)
    print(f"Written to {path}: step {step}.")
    return 0
