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
    check_exact,
    check_resume,
    refuse_unsupported,
)
from jaxrl.cli.device import choose_device
from jaxrl.cli.leaving import leaving_at_once
from jaxrl.cli.version import version_line
from jaxrl.compilation import enable_compilation_cache
from jaxrl.envs.address import is_compiled
from jaxrl.settings import RunSettings, load_run_settings, with_drawn_seed
from jaxrl.training.host.launch import launched
from jaxrl.training.interrupt import Interrupt

_log = logging.getLogger(__name__)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """CONFIG and ML-Agents' flags."""
    parser.description = "Train. A flag beats the configuration file, the file beats the default shown here."
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="YAML configuration file")
    flags.add_flags(parser)


def run(given: argparse.Namespace) -> int:
    """Check everything that can be checked, in order, then train; the exit code, which tells what ended the run.

    Raises JaxrlError for what the user can mend.
    """
    console = rich.get_console()
    with leaving_at_once():
        settings = _checked(given, console)
    with Interrupt() as interrupt:
        if is_compiled(settings.env_settings.env_path):
            _train_compiled(settings, console, interrupt)
        else:
            _train_on_host(settings, console, interrupt)
    return interrupt.exit_code


def _checked(given: argparse.Namespace, console: rich.console.Console) -> RunSettings:
    """The settings of the run. Nothing is written or started."""
    setup_logging(console, debug=getattr(given, "debug", False))
    for flag in flags.removed_flags(given):
        _log.warning("%s has no effect", flag)
    settings = load_run_settings(given.config, flags.overrides_from(given), HYPERPARAMETER_TYPES)
    given.debug = settings.debug
    setup_logging(console, debug=settings.debug)
    refuse_unsupported(settings, given.config or "command line")
    check_environment_settings(settings.env_settings)
    check_connectors(settings)
    check_exact(settings)
    check_resume(settings)
    _log.info(version_line())
    if settings.torch_settings.device is not None:  # one that may not be there; to look for it imports JAX
        choose_device(settings.torch_settings.device)
    return settings


def _train_on_host(settings: RunSettings, console: rich.console.Console, interrupt: Interrupt) -> None:
    """Environments of their own, which start before JAX is imported."""
    settings = with_drawn_seed(settings)
    callbacks = load_callbacks(settings.callbacks or ())  # before anything is written or started
    with launched(settings, interrupt) as started:
        if settings.torch_settings.device is None:
            choose_device(None)
        enable_compilation_cache()
        from jaxrl.training.host.loop import train

        train(settings, console=console, started=started, callbacks=callbacks)


def _train_compiled(settings: RunSettings, console: rich.console.Console, interrupt: Interrupt) -> None:
    """Environment and learner as one program: there is nothing to launch."""
    check_compiled(settings)
    if settings.torch_settings.device is None:
        choose_device(None, cpu_devices=min(settings.env_settings.seeds, os.cpu_count() or 1))
    enable_compilation_cache()
    from jaxrl.training.compiled.trainer import train

    train(settings, console=console, interrupt=interrupt)
