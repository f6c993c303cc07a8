"""`jaxrl dashboard`: a page on this machine that follows the runs in a results folder. No JAX."""

from __future__ import annotations

import argparse
from pathlib import Path

PORT = 6060


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add RESULTS, --port and --host."""
    parser.add_argument(
        "results",
        nargs="?",
        type=Path,
        default=Path("results"),
        metavar="RESULTS",
        help="folder that holds the results of runs, or of one run (default: %(default)s)",
    )
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help="0: any free one (default: %(default)s)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen; with another one than this machine's own, whoever reaches it can read the runs "
        "(default: %(default)s)",
    )
    parser.add_argument("--debug", action="store_true", help="show requests and tracebacks")


def run(given: argparse.Namespace) -> int:
    """Serve until Ctrl-C, then return 0. Raises JaxrlError."""
    import rich

    from jaxrl.artifacts.metrics.console import setup_logging
    from jaxrl.tools.dashboard.results import Results
    from jaxrl.tools.dashboard.server import Server

    setup_logging(rich.get_console(), debug=given.debug)
    with Server(Results(given.results), given.host, given.port) as server:
        print(f"Runs in {given.results} at {server.address} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended", flush=True)
    return 0
