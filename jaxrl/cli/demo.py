"""`jaxrl demo info`: what is in demonstration files."""

from __future__ import annotations

import argparse

import numpy as np

from jaxrl.demonstrations import Demonstration, read
from jaxrl.demonstrations.reading import files


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What to do, and with which files."""
    parser.description = (
        "Say of demonstrations, .demo files of Unity's Demonstration Recorder, what agent recorded them, how many "
        "decisions and episodes they hold and what these earned; or what is wrong with a file."
    )
    parser.add_argument("what", choices=("info",), help="info: a line for each file, and what its agent sees and does")
    parser.add_argument("paths", metavar="FILE|DIR", nargs="+", help=".demo files, or folders of them")


def run(given: argparse.Namespace) -> None:
    """Print the lines. Raises DemonstrationError for the first file that cannot be used."""
    for path in given.paths:
        for file in files(path):
            found = read(file)
            print(f"{file}: {_line(found)}")
            for i, sensor in enumerate(found.spec.observations):
                print(f"  observation {i}: {sensor.name or 'without a name'}, shape {sensor.shape}")
            action = found.spec.action
            print(f"  actions: {action.continuous_size} numbers, branches {list(action.discrete_branches)}")


def _line(found: Demonstration) -> str:
    decided = ~found.terminal
    episodes = np.cumsum(found.terminal)  # of the end of one on, rows belong to the next
    returns = np.bincount(episodes[decided], weights=found.reward[decided])[: found.done.sum()]
    lengths = np.bincount(episodes[decided])[: found.done.sum()]
    return (
        f"behavior {found.behavior!r}, {decided.sum()} decisions, {found.done.sum()} whole episodes of "
        f"{lengths.mean():.1f} decisions, mean reward {returns.mean():.3f} ({returns.min():.3f} to {returns.max():.3f})"
        f", {found.interrupted.sum()} interrupted"
    )
