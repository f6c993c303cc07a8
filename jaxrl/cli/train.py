"""`jaxrl train`: settings, checks, and only then JAX and training."""

from __future__ import annotations

import argparse
import logging
import os

import rich
import rich.console

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.metrics.console import setup_logging
from jaxrl.callbacks import load_callbacks
from jaxrl.cli import flags
from jaxrl.cli.checks import (
    check_compiled,
    check_connectors,
    check_environment_settings,
    check_resume,
    refuse_unsupported,
)
from jaxrl.cli.device import choose_device
from jaxrl.cli.version import version_line
from jaxrl.compilation import enable_compilation_cache
from jaxrl.envs.address import is_compiled
from jaxrl.settings import RunSettings, load_run_settings, with_drawn_seed
from jaxrl.training.host.launch import launched

_log = logging.getLogger(__name__)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """CONFIG and ML-Agents' flags."""
    parser.description = "Train. A flag beats the configuration file, the file beats the default shown here."
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="YAML configuration file")
    flags.add_flags(parser)


def run(given: argparse.Namespace) -> None:
    """Check everything that can be checked, in order, then train. Raises JaxrlError for what the user can mend."""
    console = rich.get_console()
    setup_logging(console, debug=getattr(given, "debug", False))
    for flag in flags.removed_flags(given):
        _log.warning("%s has no effect", flag)
    settings = load_run_settings(given.config, flags.overrides_from(given), HYPERPARAMETER_TYPES)
    given.debug = settings.debug
    setup_logging(console, debug=settings.debug)
    refuse_unsupported(settings, given.config or "command line")
    check_environment_settings(settings.env_settings)
    check_connectors(settings)
    check_resume(settings)
    _log.info(version_line())
    device = settings.torch_settings.device
    if device is not None:  # one that may not be there; to look for it imports JAX
        choose_device(device)
    if is_compiled(settings.env_settings.env_path):
        _train_compiled(settings, console)
        return
    settings = with_drawn_seed(settings)
    callbacks = load_callbacks(settings.callbacks or ())  # before anything is written or started
    with launched(settings) as started:
        if device is None:
            choose_device(None)
        enable_compilation_cache()
        from jaxrl.training.host.loop import train

        train(settings, console=console, started=started, callbacks=callbacks)


def _train_compiled(settings: RunSettings, console: rich.console.Console) -> None:
    """Environment and learner as one program: there is nothing to launch."""
    check_compiled(settings)
    if settings.torch_settings.device is None:
        choose_device(None, cpu_devices=min(settings.env_settings.seeds, os.cpu_count() or 1))
    enable_compilation_cache()
    from jaxrl.training.compiled.trainer import train

    train(settings, console=console)
