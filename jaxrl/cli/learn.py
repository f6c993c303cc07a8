"""`jaxrl learn`: `jaxrl train` for users of `mlagents-learn`; its help shows ML-Agents' own flags alone."""

from __future__ import annotations

import argparse

from jaxrl.cli import train
from jaxrl.cli.commands import FlagParser
from jaxrl.cli.flags import MLAGENTS_FLAGS

run = train.run


def add_flags(parser: FlagParser) -> None:
    """Add every flag of `jaxrl train`; only those of `mlagents-learn` are shown."""
    train.add_flags(parser)
    parser.description = (
        "Train, with the arguments of mlagents-learn. A flag beats the configuration file, the file beats the default "
        "shown here. CONFIG may be JSON. Every other flag of `jaxrl train` is taken as well, see `jaxrl train --help`."
    )
    for flag, action in parser.flags.items():
        if flag not in MLAGENTS_FLAGS and flag != "-h":
            action.help = argparse.SUPPRESS
