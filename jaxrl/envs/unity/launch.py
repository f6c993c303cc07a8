"""Handles the player's process: finds the executable, stops it in bounded time, and quotes its log."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from jaxrl import platforms
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.protobuf import register

_TAIL_LINES = 20
_TAIL_BYTES = 1 << 16
_TERMINATE_SECONDS = 1.5
_KILL_SECONDS = 1.5


def check_executable(file_name: str) -> None:
    """Fail early, with the paths tried, if `file_name` cannot be started.

    The platform's suffix may be left out: .x86_64 or .x86 on Linux, .app on macOS, .exe on Windows.

    Raises:
        EnvironmentFailure: no such file, or it may not be executed.
    """
    register()
    from mlagents_envs import env_utils  # importable from here on

    executable = env_utils.validate_environment_path(file_name)
    path = Path(file_name).absolute()
    if executable is None:
        names = ", ".join(str(path) + suffix for suffix in ("", ".x86_64", ".x86", ".app", ".exe"))
        if path.is_dir():
            names += " (the first is a folder: name the executable inside it)"
        raise EnvironmentFailure(f"no executable environment at {file_name!r}; tried {names}. Check --env")
    if not os.access(executable, os.X_OK):
        raise EnvironmentFailure(f"environment {executable} is not executable; run: chmod +x {executable}")


def log_path(worker: int, log_folder: str | None, env_args: Sequence[str]) -> Path | None:
    """Return the path of the player's log: the user's `-logFile`, else in `log_folder`, else None."""
    for argument, value in pairwise(env_args):
        if argument.lower() == "-logfile":
            return Path(value)
    return Path(log_folder) / f"Player-{worker}.log" if log_folder else None


def keep_log(path: Path) -> None:
    """Move a player's log aside, `NAME.previous.log`, before the next player of its worker writes a new one."""
    with suppress(OSError):  # there is none, or another process still holds it (Windows): it is then overwritten
        path.replace(path.with_suffix(".previous.log"))


def log_tail(path: Path | None) -> str:
    """Return the last lines of a player log, as the end of an error text."""
    if path is None:
        return "The player writes no log that is known here."
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
    except OSError as error:
        return f"No player log at {path}: {error.strerror}."
    if not lines:
        return f"The player's log {path} is empty."
    return f"Last {len(lines)} lines of {path}:\n" + "\n".join(f"  {line}" for line in lines)


def stop_process(process: subprocess.Popen[bytes], patience: float) -> None:
    """Wait `patience` seconds for the end, then terminate, then kill; takes at most 3 seconds more.

    On POSIX the whole group is ended (the launcher starts a new session), so that a wrapper script leaves no child.
    """
    try:
        if _ended(process, patience):
            return
        platforms.end_session(process, kill=False)
        _ended(process, _TERMINATE_SECONDS)
    finally:
        platforms.end_session(process, kill=True)
        _ended(process, _KILL_SECONDS)


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
