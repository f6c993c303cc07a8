"""The command `jaxrl`: flags to settings, checks, and only then JAX and training.

No JAX at the top of this file: a spawned environment process imports the main module again.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence

import rich
import rich.console

from jaxrl.artifacts.metrics.console import setup_logging
from jaxrl.artifacts.versions import versions
from jaxrl.cli import bench, report, watch
from jaxrl.cli.checks import check_environment, check_resume, refuse_unsupported
from jaxrl.cli.device import choose_device
from jaxrl.cli.flags import add_flags, overrides_from, removed_flags
from jaxrl.compilation import enable_compilation_cache
from jaxrl.envs.address import is_compiled
from jaxrl.settings import RunSettings, SettingsError, load_run_settings, with_drawn_seed
from jaxrl.training.host.launch import launched
from jaxrl.types import JaxrlError

COMMUNICATOR_API = "1.5.0"
"""Version of ML-Agents' wire protocol that jaxrl speaks."""
_OTHERS = (
    ("watch", watch, "play a JAX environment with the policy of a run and make a film of it"),
    ("report", report, "learning curves, tables and time split of runs in one file"),
    ("bench", bench, "run the benchmarks of a clone and print a table"),
)
_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 1 after an error or Ctrl-C. A usage error exits with 2.

    An error that the user can mend is one message on stderr, with a traceback only under --debug.
    """
    given = _parser().parse_args(argv)
    try:
        given.command(given)
    except JaxrlError as error:
        if getattr(given, "debug", False):
            traceback.print_exc()
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxrl",
        description="Train ML-Agents and JAX environments with MA-POCA, PPO and relatives.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_version_line())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    train = commands.add_parser(
        "train",
        help="train the behaviors of an environment",
        description="Train. A flag beats the configuration file, the file beats the default shown here.",
        allow_abbrev=False,
    )
    train.set_defaults(command=_train)
    train.add_argument("config", nargs="?", metavar="CONFIG", help="YAML configuration file")
    add_flags(train)
    player = commands.add_parser(
        "make-player",
        help="write an executable that serves one of jaxrl's environments as a Unity player would",
        allow_abbrev=False,
    )
    player.set_defaults(command=_make_player)
    player.add_argument("name", metavar="NAME", help="name of the environment, such as dungeon_escape")
    player.add_argument("directory", metavar="DIR", help="folder for the executable")
    for name, module, text in _OTHERS:
        other = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
        module.add_flags(other)
        other.set_defaults(command=module.run)
    return parser


def _train(given: argparse.Namespace) -> None:
    """Check everything that can be checked, in order, then train."""
    console = rich.get_console()
    setup_logging(console, debug=getattr(given, "debug", False))
    for flag in removed_flags(given):
        _log.warning("%s has no effect", flag)
    from jaxrl.algorithms.hyperparameters import HYPERPARAMETER_TYPES

    settings = load_run_settings(given.config, overrides_from(given), HYPERPARAMETER_TYPES)
    given.debug = settings.debug
    setup_logging(console, debug=settings.debug)
    refuse_unsupported(settings, given.config or "command line")
    check_environment(settings.env_settings)
    check_resume(settings)
    _log.info(_version_line())
    device = settings.torch_settings.device
    if device is not None:  # one that may not be there; to look for it imports JAX
        choose_device(device)
    if is_compiled(settings.env_settings.env_path):
        _train_jitted(settings, console)
        return
    settings = with_drawn_seed(settings)
    with launched(settings) as started:
        if device is None:
            choose_device(None)
        enable_compilation_cache()
        from jaxrl.training.host.loop import train

        train(settings, console=console, started=started)


def _train_jitted(settings: RunSettings, console: rich.console.Console) -> None:
    """Environment and learner as one program: there is nothing to launch."""
    if settings.checkpoint_settings.inference:
        raise SettingsError("checkpoint_settings.inference: a compiled environment is watched with `jaxrl watch`")
    if settings.torch_settings.device is None:
        choose_device(None, cpu_devices=min(settings.env_settings.seeds, os.cpu_count() or 1))
    enable_compilation_cache()
    from jaxrl.training.compiled.trainer import train

    train(settings, console=console)


def _version_line() -> str:
    found = versions()
    return (
        f"jaxrl {found['jaxrl_version']}, mlagents-envs {found['mlagents_envs_version']}, "
        f"communicator API {COMMUNICATOR_API}, jax {found['jax_version']}"
    )


def _make_player(given: argparse.Namespace) -> None:
    from jaxrl.jax_envs.served.launcher import make_player

    print(make_player(given.name, given.directory))
