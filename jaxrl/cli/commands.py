"""What the command line asks for. Each command is one file here, with `add_flags` and `run`, and one line below.

`run` returns the exit code where it is not 0.

No JAX at the top of these files: a spawned environment process imports the main module again.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence

from jaxrl.cli import bench, diff, make_player, report, train, watch
from jaxrl.cli.version import version_line
from jaxrl.types import JaxrlError

_COMMANDS = (
    ("train", train, "train the behaviors of an environment"),
    ("make-player", make_player, "write an executable that serves one of jaxrl's environments as a Unity player would"),
    ("watch", watch, "play a JAX environment with the policy of a run and make a film of it"),
    ("report", report, "learning curves, tables and time split of runs in one file"),
    ("diff", diff, "the first difference between two runs: settings, versions, statistics, parameters"),
    ("bench", bench, "run the benchmarks of a clone and print a table"),
)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command and its flags. A usage error exits with 2."""
    return _parser().parse_args(argv)


def run(given: argparse.Namespace) -> int:
    """Run the command and return the exit code.

    An error that the user can mend is one message on stderr, with a traceback only under --debug.
    """
    try:
        return given.command(given) or 0
    except JaxrlError as error:
        if getattr(given, "debug", False):
            traceback.print_exc()
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxrl",
        description="Train ML-Agents and JAX environments with MA-POCA, PPO and relatives.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version_line())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module, text in _COMMANDS:
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
        module.add_flags(command)
        command.set_defaults(command=module.run)
    return parser
