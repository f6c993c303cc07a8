"""`jaxrl bench`: run the benchmarks, compare two files of their numbers, follow them over commits.

No JAX here or in `jaxrl.bench`: a benchmark is a process of its own.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from jaxrl.cli.flags import count

QUICK_SECONDS, FULL_SECONDS = 600.0, 3600.0  # of one script


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the run, and the commands `compare` and `history` with theirs."""
    parser.add_argument("--quick", action="store_true", help="reduced sizes, to see that everything runs")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="run these alone, e.g. update_phase (an unknown name lists all)"
    )
    parser.add_argument(
        "--accelerator", action="store_true", help="those that tell most of a GPU or TPU, beside what it should take"
    )
    parser.add_argument(
        "--json", default="bench.jsonl", metavar="FILE", help="append a JSON line per benchmark (default: bench.jsonl)"
    )
    parser.add_argument(
        "--repeat", type=count, default=1, metavar="N", help="N rounds of all: compare and history see their noise"
    )
    parser.add_argument(
        "--device", type=_device, metavar="DEVICE", help="cpu, cuda, cuda:N or tpu (default: what JAX takes)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help=f"end a script after this time (default: {QUICK_SECONDS:.0f} with --quick, else {FULL_SECONDS:.0f})",
    )
    parser.set_defaults(what=_measure)
    commands = parser.add_subparsers(metavar="compare | history")
    text = "what got slower or faster from file A to file B; exit code 1 with --fail-above if something got slower"
    compare = commands.add_parser("compare", help=text, description=f"{text}.")
    compare.add_argument("first", type=Path, metavar="A", help="file that --json wrote; what it ends with counts")
    compare.add_argument("second", type=Path, metavar="B", help="another")
    compare.add_argument(
        "--fail-above",
        type=_limit,
        metavar="FACTOR",
        help="exit with 1 if a cost rose by more, even if all noise is taken off",
    )
    compare.set_defaults(what=_compare)
    text = "a table over commits"
    history = commands.add_parser("history", help=text, description=f"{text}.")
    history.add_argument("places", type=Path, nargs="+", metavar="DIR|FILE", help="files that --json wrote")
    history.set_defaults(what=_history)


def run(given: argparse.Namespace) -> int:
    """Run the command and return the exit code, 1 if --fail-above was exceeded. Raises the errors of `jaxrl.bench`."""
    return given.what(given)


def _measure(given: argparse.Namespace) -> int:
    from jaxrl.tools.bench import suite
    from jaxrl.tools.bench.catalogue import ACCELERATOR

    seconds = given.timeout or (QUICK_SECONDS if given.quick else FULL_SECONDS)
    suite.run(
        [*(given.only or ()), *(ACCELERATOR if given.accelerator else ())] or None,
        Path(given.json),
        quick=given.quick,
        timeout=seconds,
        repeat=given.repeat,
        device=given.device,
    )
    return 0


def _compare(given: argparse.Namespace) -> int:
    from jaxrl.tools.bench.compare import compare

    return 0 if compare(given.first, given.second, given.fail_above) else 1


def _history(given: argparse.Namespace) -> int:
    from jaxrl.tools.bench.history import print_history

    print_history(given.places)
    return 0


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|tpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"got {text!r}: expected cpu, cuda, cuda:N or tpu")
    return text


def _limit(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text!r}: expected a factor of 1 or more, such as 1.2")
    return value
