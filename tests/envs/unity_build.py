"""Builds of the scripted player, as a game developer would have them, and an opener that cleans up."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from jaxrl.envs.unity.environment import UnityHostEnv
from jaxrl.types import Action

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPT = HERE / "scripted_player.py"
BEHAVIOR = "Walker?team=0"


def children() -> set[psutil.Process]:
    """All processes below this one."""
    return set(psutil.Process().children(recursive=True))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def write_build(folder: Path, wrapped: bool = True) -> str:
    """An executable, named without its suffix; `wrapped`: a shell that stays between us and the player."""
    path = folder / "game.x86_64"
    run = "" if wrapped else "exec "
    path.write_text(f'#!/bin/sh\nexport PYTHONPATH="{ROOT}"\n{run}"{sys.executable}" "{SCRIPT}" "$@"\nexit $?\n')
    path.chmod(0o755)
    return str(folder / "game")


@contextmanager
def opener(folder: Path) -> Iterator[Callable[..., UnityHostEnv]]:
    """Starts environments with a scenario; afterwards closes them and makes sure that no process is left."""
    opened = []
    before = children()

    def open_env(scenario: str = "normal", **changes: Any) -> UnityHostEnv:
        args = ("--scenario", scenario, *changes.pop("env_args", ()))
        build, logs = write_build(folder, changes.pop("wrapped", True)), str(folder / "logs")
        settings: dict[str, Any] = {"worker": 0, "base_port": free_port(), "seed": 5, "timeout_wait": 10.0} | changes
        env = UnityHostEnv(file_name=build, env_args=args, log_folder=logs, **settings)
        opened.append(env)
        return env

    try:
        yield open_env
    finally:
        for env in opened:
            env.close()
    assert children() == before


def actions(n: int = 2, value: float = 0.5) -> dict[str, Action]:
    return {BEHAVIOR: Action(continuous=np.full((n, 2), value, np.float32), discrete=np.ones((n, 2), np.int32))}
