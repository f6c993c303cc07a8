"""`jaxrl completion`: the script that teaches a shell jaxrl's commands and flags. Nothing of jaxrl runs at a Tab."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "tcsh")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add SHELL."""
    parser.description = (
        "Print a script that completes jaxrl's commands and flags. In bash: "
        'eval "$(jaxrl completion bash)"; to keep it: jaxrl completion bash > '
        "~/.local/share/bash-completion/completions/jaxrl. In zsh: jaxrl completion zsh > DIR/_jaxrl, where DIR is in "
        "$fpath."
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(given: argparse.Namespace) -> None:
    """Print the script."""
    import shtab

    from jaxrl.cli.commands import whole_parser

    print(shtab.complete(whole_parser(), given.shell))
