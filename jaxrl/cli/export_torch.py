"""`jaxrl export-torch`: writes a run of jaxrl as a checkpoint with which ML-Agents continues."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxrl.types import JaxrlError


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the run and the file."""
    parser.description = (
        "Write the latest checkpoints of a run (PPO, MA-POCA, SAC) as .pt of ML-Agents: weights, statistics of "
        "observations, Adam and step. mlagents-learn continues with --resume, or starts with them by "
        "--initialize-from or init_path. PyTorch is not needed."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="results folder of the run, such as results/first")
    parser.add_argument("--behavior", metavar="NAME", help="one of its behaviors (default: all)")
    parser.add_argument("--seed", type=int, metavar="N", help="which seed of a run with several (default: the best)")
    parser.add_argument("--out", type=Path, metavar="FILE.pt", help="(default: RUN/<Behavior>/checkpoint.pt)")
    parser.add_argument("--trust", action="store_true", help="import code that the folder of the run names")


def run(given: argparse.Namespace) -> int:
    """Write the files and say where they are. Raises JaxrlError."""
    from jaxrl.artifacts.checkpoint.folder import behaviors_of
    from jaxrl.cli.device import choose_device

    names = behaviors_of(given.run)
    if given.behavior is not None and names and given.behavior not in names:
        raise JaxrlError(
            f"--behavior: got {given.behavior}, expected one of {', '.join(names)}, which {given.run} holds"
        )
    if given.behavior is None and given.out is not None and len(names) > 1:
        raise JaxrlError(f"--behavior: {given.run} holds {', '.join(names)}, and --out is one file: say whose")
    choose_device("cpu")
    from jaxrl.torch.migration import export_run

    for name in names if given.behavior is None and names else [given.behavior]:
        path, step = export_run(given.run, name, given.out, given.seed, trust=given.trust)
        print(f"Written to {path}: step {step}.")
    return 0
