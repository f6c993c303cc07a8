"""`python -m tests.parity [DIR] [--only PATTERN]`: one line per case; exit code 1 if one fails or none is found."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.parity.runner import TOLERANCE, run_all

FIXTURES = Path(__file__).parent / "fixtures"


def main() -> int:
    """Run the cases of a folder and print the outcomes."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description=__doc__)
    parser.add_argument("dir", nargs="?", type=Path, default=FIXTURES, help="folder with <case>.json and <case>.npz")
    parser.add_argument("--only", default="*", help="shell pattern for case names, such as 'c_poca*'")
    arguments = parser.parse_args()
    counts = {"pass": 0, "FAIL": 0, "unsupported": 0}
    for outcome in run_all(arguments.dir, arguments.only):
        print(outcome, flush=True)
        counts[outcome.status] += 1
    print(
        f"{counts['pass']} passed, {counts['FAIL']} failed, {counts['unsupported']} unsupported; tolerance {TOLERANCE}"
    )
    if not sum(counts.values()):
        print(f"no case in {arguments.dir} fits '{arguments.only}'", file=sys.stderr)
    return int(counts["FAIL"] > 0 or not sum(counts.values()))


if __name__ == "__main__":
    sys.exit(main())
