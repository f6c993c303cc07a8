"""`jaxrl push-to-hf`: pushes a run to the Hugging Face Hub."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mlagents-push-to-hf`."""
    parser.add_argument("--run-id", default="", metavar="ID", help="name in the model card (default: the folder's)")
    parser.add_argument("--local-dir", type=Path, required=True, metavar="RUN", help="results folder of the run")
    parser.add_argument("--repo-id", required=True, metavar="USER/NAME", help="where to; made if it is not there")
    parser.add_argument(
        "--commit-message", default="Push a run of jaxrl", metavar="TEXT", help="(default: %(default)s)"
    )
    parser.add_argument("--trust", action="store_true", help="import code that the folder names, for the film")


def run(given: argparse.Namespace) -> None:
    """Push, and print the address."""
    from jaxrl.cli.device import compute_on_cpu
    from jaxrl.tools.hub import push

    compute_on_cpu()  # for the film
    print(push(given.local_dir, given.repo_id, given.commit_message, name=given.run_id, trust=given.trust))
