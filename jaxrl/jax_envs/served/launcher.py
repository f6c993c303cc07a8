"""Writes executables that a trainer launches like a Unity build: short scripts that run `serve.py`.

To the host loop they are the simulator of `player:NAME` (`jaxrl.envs`): `check` and `make_factory`.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import jaxrl
from jaxrl import trust, unfinished
from jaxrl.cache import cache_folder
from jaxrl.envs.address import UnknownEnvironmentError, split_function, unknown
from jaxrl.envs.unity import simulator as unity
from jaxrl.envs.workers.handles import EnvFactory
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.types import JaxrlError

if TYPE_CHECKING:
    from jaxrl.settings import RunSettings


RESEEDS = unity.RESEEDS


def check(name: str | None) -> None:
    """Raise UnknownEnvironmentError if `name` is no function, not in `ENVIRONMENTS` and not installed.

    UntrustedError: a folder names the function, and not the user.

    What a function makes is seen when the player starts, since this must not import JAX.
    """
    split = split_function(name or "")
    if split is not None:
        trust.require(name or "")
        file = Path(split[0]).expanduser()
        if file.suffix == ".py" and not file.is_file():
            raise UnknownEnvironmentError(f"player:{name}: there is no file {file.absolute()}")
    elif name not in ENVIRONMENTS:
        raise UnknownEnvironmentError(unknown(f"player:{name}", name or "", ENVIRONMENTS))


def make_factory(name: str | None, settings: RunSettings, log_folder: str) -> EnvFactory:
    """Return a function worker → HostEnv that starts one player for each worker. Raises as `make_player`."""
    check(name)
    return unity.make_factory(str(resolve_player(name or "")), settings, log_folder)


def make_player(name: str, directory: str | Path) -> Path:
    """Write the executable of environment `name`, for example `DungeonEscape.x86_64`, into `directory` and return it.

    It holds the absolute path of the Python that runs now, takes a Unity player's command line, and replaces an older
    one in one step, so that no other process sees half a file.

    Raises:
        UnknownEnvironmentError: `name` is no key of `ENVIRONMENTS`.
        JaxrlError: the directory cannot be written.
    """
    check(name)
    target = Path(directory).expanduser().absolute() / f"{_file_name(name)}.x86_64"
    try:
        with unfinished.writing(target) as file:
            file.write(_script(name).encode())
            os.chmod(file.name, 0o755)
    except OSError as error:
        raise JaxrlError(f"cannot write the player {target}: {error}; choose a directory that you may write") from error
    return target


def resolve_player(name: str) -> Path:
    """Write the executable for `--env player:<name>` anew into the user's cache folder and return its path.

    Each Python installation has its own, so that two of them may train at the same time.

    Raises:
        UnknownEnvironmentError: `name` is no key of `ENVIRONMENTS`; the text lists the nearest names.
    """
    installation = hashlib.sha256(sys.executable.encode()).hexdigest()[:12]
    return make_player(name, cache_folder() / "players" / installation)


def _file_name(name: str) -> str:
    """Convert `dungeon_escape` to `DungeonEscape`; a function to its file and name, which tells two of them apart."""
    split = split_function(name)
    if split is not None:
        name = f"{Path(split[0]).stem if split[0].endswith('.py') else split[0].replace('.', '_')}_{split[1]}"
    return "".join(part.capitalize() for part in name.split("_"))


def _script(name: str) -> str:
    """Write the script. `exec` keeps the process id, so that signals and exit codes are the player's; `-P` keeps the
    user's folder, which may hold a file called `jax.py`, off the import path.
    """
    root = Path(jaxrl.__file__).resolve().parents[1]
    installed = root in {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    lines = ["#!/bin/sh"]
    split, folders = split_function(name), [] if installed else [root]  # a checkout may not be on the path
    if split is not None and split[0].endswith(".py"):
        name = f"{Path(split[0]).expanduser().absolute()}:{split[1]}"
    elif split is not None:
        folders.append(Path.cwd())
    for folder in folders:
        lines.append(f'export PYTHONPATH={shlex.quote(str(folder))}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    lines.append(f'exec {shlex.quote(sys.executable)} -P -m jaxrl.jax_envs.served.serve {shlex.quote(name)} "$@"')
    return "\n".join(lines) + "\n"
