"""`jaxrl train`: reads settings, checks them, and only then imports JAX and trains."""

from __future__ import annotations

import argparse
import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rich
import rich.console

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.metrics.console import setup_logging
from jaxrl.artifacts.versions import version_line
from jaxrl.callbacks import load_callbacks
from jaxrl.cli import flags
from jaxrl.cli.device import choose_device, start_computing
from jaxrl.cli.leaving import leaving_at_once
from jaxrl.cli.shipped import beside, is_shipped, made_for, named
from jaxrl.compilation import enable_compilation_cache
from jaxrl.envs.address import is_compiled
from jaxrl.settings import RunSettings, load_run_settings, with_drawn_seed
from jaxrl.training.checks import check_hosts, check_run
from jaxrl.training.host.launch import launched
from jaxrl.training.hosts import Hosts, Place, place_of, settings_text
from jaxrl.training.interrupt import Interrupt, leave_if_unsent
from jaxrl.types import JaxrlError

_log = logging.getLogger(__name__)

NO_ENVIRONMENT = (
    "No environment is named: waiting for the Unity Editor for up to %g s; open the scene and press Play. A build is "
    "given with --env=PATH. Without Unity: jaxrl train dungeon_escape --run-id=first (`jaxrl init` lists more)."
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG and ML-Agents' flags."""
    parser.description = "Train. A flag beats the configuration file, the file beats the default shown here."
    add_config(parser)
    flags.add_flags(parser)
    flags.add_host_flags(parser)


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG."""
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="YAML configuration file, or the name of one of jaxrl's own (`jaxrl init`)",
    )


def run(given: argparse.Namespace) -> int:
    """Check everything that can be checked, in order, then train; return the exit code, which tells what ended the run.

    Raises JaxrlError for errors that the user can mend.
    """
    console = rich.get_console()
    place = place_of(*(getattr(given, name, None) for name in ("hosts", "host_id", "host_count")))
    with leaving_at_once():
        settings = _checked(given, console, place)
    if place is not None:
        return _train_with_others(place, settings, console)
    with Interrupt() as interrupt:
        if is_compiled(settings.env_settings.env_path):
            _train_compiled(settings, console, interrupt)
        else:
            _train_on_host(settings, console, interrupt)
    leave_if_unsent(interrupt.exit_code)
    return interrupt.exit_code


def _checked(given: argparse.Namespace, console: rich.console.Console, place: Place | None) -> RunSettings:
    """Return the settings of the run. Nothing is written or started."""
    setup_logging(console, debug=getattr(given, "debug", False))
    for flag in flags.removed_flags(given):
        _log.warning("%s has no effect", flag)
    for flag in flags.swallowed_flags(given):
        _log.warning("--env-args takes the rest of the line: %s goes to the environment; put it before", flag)
    config, overrides = configuration(given.config, flags.overrides_from(given))
    settings = load_run_settings(config, overrides, HYPERPARAMETER_TYPES, strict=hasattr(given, flags.STRICT))
    given.debug = settings.debug
    setup_logging(console, debug=settings.debug)
    if place is not None:
        check_hosts(settings)
    check_run(settings, config or "command line")
    _log.info(version_line())
    if settings.env_settings.env_path is None:
        _log.info(NO_ENVIRONMENT, settings.env_settings.timeout_wait)
    device = settings.torch_settings.device
    if device is not None and place is None:  # it may be missing; to look for it imports JAX
        choose_device(device)
    return settings


def configuration(given: str | None, overrides: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the configuration file: the path, the shipped one of that name, or without a name that of the environment.

    Raises JaxrlError for a name that is neither a file nor shipped.
    """
    env_path = overrides.get("env_settings", {}).get("env_path")
    if given is None:
        matches = made_for(env_path) if env_path else []
    elif Path(given).is_file() or Path(given).suffix:  # a file, or the path of one that is missed
        return given, overrides
    elif Path(given).is_dir() and not is_shipped(given):
        raise JaxrlError(f"{given} is a folder: name the configuration file in it")
    else:
        matches = named(given)
    if not matches:
        return None, overrides
    chosen, *others = matches
    text = "Configuration: %s, one of jaxrl's own%s. `jaxrl init %s` writes it to a file."
    _log.info(text, chosen.name, beside(others), chosen.name)
    return str(chosen.path), overrides


@contextmanager
def _importing() -> Iterator[None]:
    """Pause garbage collection: imported objects stay, and a look at them takes a fifth of the import time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _train_on_host(settings: RunSettings, console: rich.console.Console, interrupt: Interrupt) -> None:
    """Train in environments that are processes; they start before JAX is imported."""
    settings = with_drawn_seed(settings)
    callbacks = load_callbacks(settings.callbacks or ())  # before anything is written or started
    with launched(settings, interrupt) as started:
        with _importing():
            start_computing(settings.torch_settings.device)
            from jaxrl.training.host.run import train
        train(settings, console=console, started=started, callbacks=callbacks)


def _train_with_others(place: Place, settings: RunSettings, console: rich.console.Console) -> int:
    """Train one compiled run as one of several processes; return the exit code."""
    with Hosts(place, settings_text(version_line(), settings.model_dump(mode="json"))) as hosts:
        with leaving_at_once(), _importing():
            hosts.start_jax()
            count = -(-settings.env_settings.seeds // (hosts.place.count or settings.env_settings.seeds))
            choose_device(settings.torch_settings.device, cpu_devices=min(count, os.cpu_count() or 1))
            hosts.meet()
        if hosts.place.index:
            logging.getLogger("jaxrl").setLevel(logging.DEBUG if settings.debug else logging.WARNING)
            console = rich.console.Console(quiet=True)
        with Interrupt() as interrupt:
            hosts.watch(interrupt)
            enable_compilation_cache()
            with _importing():
                from jaxrl.training.compiled.run import train
            train(settings, console=console, interrupt=interrupt)
    return interrupt.exit_code


def _train_compiled(settings: RunSettings, console: rich.console.Console, interrupt: Interrupt) -> None:
    """Train with environment and learner as one program: there is nothing to launch."""
    with _importing():
        start_computing(settings.torch_settings.device, settings.env_settings.seeds)
        from jaxrl.training.compiled.run import train
    train(settings, console=console, interrupt=interrupt)
