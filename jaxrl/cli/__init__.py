"""The command `jaxrl`. Each of its commands is one file here; `commands.py` lists them.

Nothing is imported at the top but what ends the program on Ctrl-C without a traceback; the rest takes half a second.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl.cli.leaving import leaving_at_once


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    0; 1 after an error; 130 after Ctrl-C outside of a run; 143 (129) after a run that SIGTERM (SIGHUP) has ended. A
    usage error exits with 2.
    """
    with leaving_at_once():
        from jaxrl.cli.commands import parse

        given = parse(argv)
    from jaxrl.cli.commands import run

    return run(given)
