"""Environments with real faults, importable by a spawned worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from toy_env import ToyEnv, ToySettings

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.types import Action, Aggregation, EnvironmentStat, EnvMessage, ParameterValue


class FailingEnv(ToyEnv):
    """Worker `who` fails in its third step: raises, exits, hangs or is killed, according to `how`."""

    def __init__(self, worker: int, how: str, who: int = 1) -> None:
        super().__init__(worker)
        self.how = how if worker == who else ""
        self.steps = 0

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        self.steps += 1
        if self.steps == 3:
            self._fault()
        return super().step(actions)

    def _fault(self) -> None:
        if self.how == "raise":
            raise ValueError("boom")
        if self.how == "exit":
            os._exit(7)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "hang":
            time.sleep(100)
        if self.how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)


class PlayerEnv(ToyEnv):
    """Has a child process, as a Unity environment has its player, and notes its life in a folder.

    `start<worker>`, `player<worker>` (its process id) and `closed<worker>` appear there as these things happen.
    """

    def __init__(self, worker: int, folder: str, closing_seconds: float = 0.0, inherit: bool = False) -> None:
        super().__init__(worker)
        self.folder = Path(folder)
        self.closing_seconds = closing_seconds
        command = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
        self.player = subprocess.Popen(command, close_fds=not inherit)
        self.note("player", str(self.player.pid))

    def note(self, what: str, text: str = "") -> None:
        partial = self.folder / f".{what}{self.worker}"
        partial.write_text(text)
        partial.rename(self.folder / f"{what}{self.worker}")

    def close(self) -> None:
        time.sleep(self.closing_seconds)
        self.player.kill()
        self.player.wait()
        self.note("closed")


class SlowEnv(ToyEnv):
    """Takes a while for everything."""

    def __init__(self, worker: int, start: float = 0.0, step: float = 0.0) -> None:
        time.sleep(start)
        super().__init__(worker)
        self.seconds = step

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        time.sleep(self.seconds * (1 + self.worker))
        return super().step(actions)


class TellTaleEnv(ToyEnv):
    """Reports the parameters it was given as statistics."""

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None) -> EnvMessage:
        return self._tell(super().reset(parameters))

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        return self._tell(super().step(actions))

    def _tell(self, result: EnvMessage) -> EnvMessage:
        facts = self.parameters.items()
        return result._replace(stats=tuple(EnvironmentStat(name, value, Aggregation.AVERAGE) for name, value in facts))


class BigEnv(ToyEnv):
    """Observations of several megabytes, more than a socket takes at once."""

    def __init__(self, worker: int) -> None:
        super().__init__(worker, ToySettings(observation_size=200_000, areas=2))


class ObjectEnv(ToyEnv):
    """Sends an observation that is not a number."""

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None) -> EnvMessage:
        result = super().reset(parameters)
        (behavior, steps), *_ = result.steps.items()
        wrong = steps.deciding._replace(obs=(np.array([None], object),))
        return result._replace(steps={behavior: steps._replace(deciding=wrong)})


class FixedEnv(ToyEnv):
    """Takes parameters at a reset only."""

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        raise EnvironmentFailure(f"FixedEnv takes parameters ({', '.join(parameters)}) only with a reset")


def without_executable(worker: int, folder: str) -> ToyEnv:
    """Worker 1 does not find its executable, the others start a player."""
    if worker == 1:
        raise EnvironmentFailure("env_path: 'Game.x86_64' does not exist; expected the path of a Unity build")
    return PlayerEnv(worker, folder)
