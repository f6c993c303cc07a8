"""`jaxrl diff`: the first difference between two runs. JAX is imported for the parameters alone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from jaxrl.types import JaxrlError

EQUAL, DIFFERENT, BAD_INPUT = 0, 1, 2
"""Exit codes, as of the program `diff`."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add two runs or checkpoints."""
    for name in ("first", "second"):
        parser.add_argument(
            name, type=Path, metavar="RUN", help="results folder of a run, or a checkpoint such as Walker/Walker-500"
        )


def run(given: argparse.Namespace) -> int:
    """Print a line for settings, versions, statistics and parameters; the exit code says whether all are equal."""
    from jaxrl.cli.device import choose_device
    from jaxrl.tools.report.difference import compare_files, compare_parameters, pair_of
    from jaxrl.torch.reading import read_torch_arrays

    try:
        pair = pair_of(given.first, given.second)
        compared = compare_files(pair)
        choose_device("cpu")  # an accelerator may be busy with training
        compared.append(compare_parameters(pair, read_torch_arrays))
    except JaxrlError as error:
        if given.debug:
            raise
        print(error, file=sys.stderr)
        return BAD_INPUT
    for each in compared:
        print(f"{each.what}: {each.difference or ('equal' if each.is_there else 'none in either')}")
    return EQUAL if all(each.difference is None for each in compared) else DIFFERENT
