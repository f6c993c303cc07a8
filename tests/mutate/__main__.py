"""`python -m tests.mutate [ROW ...] [--part NUMBER] [--jobs N]`: does a test fail when the code under it is broken?

One line per mutation; exit code 1 if one survives. Each takes some 5 s of CPU time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests import quick_compilation
from tests.mutate.mutations import MUTATIONS
from tests.mutate.newer import NEWER
from tests.mutate.runner import Verdict, part_of, run_all


def main() -> int:
    """Run the mutations of some rows, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.add_argument("rows", nargs="*", help="rows of tests/behaviours.md, such as P12 B19; default: all")
    parser.add_argument("--part", type=int, metavar="NUMBER", help="one dozen of the rows L, another for each number")
    parser.add_argument("--jobs", type=int, default=2, help="so many side by side")
    arguments = parser.parse_args()
    unknown = set(arguments.rows) - {mutation.row for mutation in MUTATIONS}
    if unknown:
        parser.error(f"no mutation of {', '.join(sorted(unknown))}")
    among = MUTATIONS if arguments.part is None else part_of(NEWER, arguments.part)
    chosen = [mutation for mutation in among if not arguments.rows or mutation.row in arguments.rows]
    quick_compilation.choose()  # once for all
    counts = dict.fromkeys(Verdict, 0)
    with tempfile.TemporaryDirectory() as folder:
        for mutation, verdict, last in run_all(chosen, Path(folder), arguments.jobs):
            counts[verdict] += 1
            print(
                f"{verdict.value:8} {mutation.row:4} {mutation.file}: {mutation.after.strip()[:60]!r}; {last}",
                flush=True,
            )
    print(", ".join(f"{count} {verdict.value}" for verdict, count in counts.items()))
    return int(counts[Verdict.CAUGHT] < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
