"""Environments that fail when a script says so: in which process of which worker, at which call, and how."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from jaxrl.envs.interface import BadDataError, EnvironmentClosed, PortTakenError
from jaxrl.envs.workers.worker import INCARNATION
from jaxrl.types import Action, EnvMessage, JaxrlError, ParameterValue
from tests.envs.toy_env import ToyEnv, ToySettings

Script = Mapping[tuple[int, int], tuple[int, str]]
"""(worker, incarnation) → the call of `reset` or `step` in which it fails, -1: while it is built, and how."""
BUILDING = -1


class PolicyError(JaxrlError):
    """As `ActionError`: not the environment's fault."""


class ScriptedEnv(ToyEnv):
    """A toy environment whose calls are counted from the first reset, call 0."""

    def __init__(self, script: Script, settings: ToySettings, worker: int) -> None:
        self.number, self.fault = script.get((worker, INCARNATION.get()), (BUILDING - 1, ""))
        self.calls = BUILDING
        self.meet()
        super().__init__(worker, settings)

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None) -> EnvMessage:
        self.meet()
        return super().reset(parameters)

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        self.meet()
        return super().step(actions)

    def meet(self) -> None:
        """One more call, which may be the one that fails."""
        if self.calls == self.number:
            FAULTS[self.fault]()
        self.calls += 1


def boom() -> None:
    raise ValueError("boom")


def bad_number() -> None:
    raise BadDataError("agent 3, reward: nan is not a finite number")


def port_taken() -> None:
    raise PortTakenError("port 5005 is in use")


def closed() -> None:
    raise EnvironmentClosed("the player has quit")


def ours() -> None:
    raise PolicyError("action nan is not finite")


FAULTS = {
    "raise": boom,
    "bad number": bad_number,
    "port": port_taken,
    "closed": closed,
    "ours": ours,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: os._exit(7),
    "hang": lambda: time.sleep(100),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}
