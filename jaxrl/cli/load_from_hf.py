"""`jaxrl load-from-hf`: loads a run from the Hugging Face Hub."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mlagents-load-from-hf`."""
    parser.add_argument("--repo-id", required=True, metavar="USER/NAME", help="where from")
    parser.add_argument("--local-dir", type=Path, required=True, metavar="DIR", help="folder, not there yet")
    parser.add_argument("--revision", metavar="COMMIT", help="commit, branch or tag (default: the newest)")


def run(given: argparse.Namespace) -> None:
    """Load the run and print its folder."""
    from jaxrl.tools.hub import load

    load(given.repo_id, given.local_dir, given.revision)
    print(f"Written to {given.local_dir}.")
