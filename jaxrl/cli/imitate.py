"""`jaxrl imitate`: training from demonstrations alone."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import rich

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.metrics.console import setup_logging
from jaxrl.artifacts.versions import version_line
from jaxrl.cli import flags
from jaxrl.cli.device import start_computing
from jaxrl.cli.sweep import with_earlier_seed
from jaxrl.cli.train import configuration
from jaxrl.settings import load_run_settings, with_drawn_seed
from jaxrl.settings.inheritance import EVERY, merge
from jaxrl.training.interrupt import Interrupt


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add --demo, --config and the flags of `jaxrl train`."""
    parser.description = (
        "Train a policy to do as demonstrations do, without an environment. The results folder is that of any run: "
        "`jaxrl train --initialize-from` goes on from it. Steps are decisions learned from; --env is only noted."
    )
    parser.add_argument("--demo", required=True, metavar="FILE|DIR", help="a .demo file, or a folder of them")
    parser.add_argument(
        "--config", metavar="FILE", help="YAML configuration file, whose behavior of the demonstrations' name counts"
    )
    flags.add_flags(parser)


def run(given: argparse.Namespace) -> int:
    """Check everything, then train; return the exit code. Raises JaxrlError for errors that the user can mend."""
    console = rich.get_console()
    setup_logging(console, debug=getattr(given, "debug", False))
    demonstrated = {"behaviors": {EVERY: {"behavioral_cloning": {"demo_path": given.demo}}}}
    config, overrides = configuration(given.config, merge(demonstrated, flags.overrides_from(given)))
    settings = load_run_settings(config, overrides, HYPERPARAMETER_TYPES, strict=hasattr(given, flags.STRICT))
    options = settings.checkpoint_settings
    # the earlier seed of a continued run decides which episodes are held out
    settings = with_drawn_seed(with_earlier_seed(settings, Path(options.results_dir, options.run_id)))
    with Interrupt() as interrupt:
        start_computing(settings.torch_settings.device)
        from jaxrl.training.host.imitation import imitate

        logging.getLogger(__name__).info(version_line())
        imitate(settings, given.demo, interrupt, console)
    return interrupt.exit_code
