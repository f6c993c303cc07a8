"""`jaxrl make-player`: writes an executable that serves one of jaxrl's environments."""

from __future__ import annotations

import argparse


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add NAME and DIR."""
    parser.add_argument("name", metavar="NAME", help="name of the environment, such as dungeon_escape")
    parser.add_argument("directory", metavar="DIR", help="folder for the executable")


def run(given: argparse.Namespace) -> None:
    """Write the executable and print its path. Raises JaxrlError for an unknown name."""
    from jaxrl.jax_envs.served.launcher import make_player

    print(make_player(given.name, given.directory))
