"""`jaxrl bench`: run the benchmarks of a clone. Scripts and their runner are in `benchmarks`, not in the package."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from jaxrl.types import JaxrlError

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
QUICK_SECONDS, FULL_SECONDS = 600.0, 3600.0  # of one script


class NoCloneError(JaxrlError):
    """The package is installed without its clone, which holds the benchmarks."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """--quick, --only, --json and --timeout."""
    parser.add_argument("--quick", action="store_true", help="reduced sizes, to see that everything runs")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="run these alone, e.g. update_phase (an unknown name lists all)"
    )
    parser.add_argument(
        "--json", default="bench.jsonl", metavar="FILE", help="append a JSON line per benchmark (default: bench.jsonl)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help=f"end a script after this time (default: {QUICK_SECONDS:.0f} with --quick, else {FULL_SECONDS:.0f})",
    )


def run(given: argparse.Namespace) -> None:
    """Run, append and print. Raises NoCloneError outside of a clone, else what `benchmarks.runner.run` raises."""
    if not (FOLDER / "runner" / "__init__.py").is_file():
        raise NoCloneError(
            f"jaxrl bench runs the benchmarks of a clone, and {FOLDER} does not hold them: clone jaxrl's repository, "
            "install the clone with pip install -e ., and run jaxrl bench again."
        )
    if str(FOLDER.parent) not in sys.path[:1]:
        sys.path.insert(0, str(FOLDER.parent))  # first, in case something else that is installed has this name
    runner = importlib.import_module("benchmarks.runner")
    seconds = given.timeout or (QUICK_SECONDS if given.quick else FULL_SECONDS)
    runner.run(given.only, Path(given.json), quick=given.quick, timeout=seconds)
