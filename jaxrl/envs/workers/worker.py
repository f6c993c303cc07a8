"""Runs one environment process: builds its environment, answers commands, and always closes the environment.

The end of the socket is the only order to stop, so a pool that closes and a parent that was killed look the same here
and take the same path. An exception of the environment is sent to the parent in place of a result.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from enum import Enum, auto
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from jaxrl import platforms
from jaxrl.envs.interface import BadDataError, EnvironmentClosed, EnvironmentFailure, HostEnv, PortTakenError
from jaxrl.envs.workers.transport import Channel, ChannelClosedError, Message, decode_actions, encode_result
from jaxrl.log_lines import log_as_worker
from jaxrl.types import EnvMessage, JaxrlError, ParameterValue

INCARNATION: ContextVar[int] = ContextVar("incarnation", default=0)
"""Set before an environment is built, and not changed later."""


logger = logging.getLogger(__name__)

GRACE_SECONDS = 3.0
"""Seconds that a terminated worker has for closing its environment before it ends without."""
ORPHAN_SECONDS = 12.0
"""Seconds of grace after the parent has died: nobody waits, and nobody else would kill a player that does not end."""


class FaultKind(Enum):
    """Meaning of an environment's exception for the pool."""

    FAULT = auto()  # another process may do better
    PORT_TAKEN = auto()  # another process may do better, even before a first result
    BAD_DATA = auto()  # the settings decide about a restart
    CLOSED = auto()  # closed in order: no fault
    OURS = auto()  # not the environment's fault (actions that are not finite), and no restart mends it


class FailureReport(NamedTuple):
    """An exception of the environment as it travels to the parent."""

    doing: str  # "start-up", "reset", "step" or "parameters"
    summary: str  # type and text of the exception
    trace: str  # the worker's traceback
    kind: FaultKind


def ready_message(about: str) -> Message:
    """Return the message that the environment is built, with its line for the log."""
    return Message(kind="ready", facts=about)


def reset_message(parameters: Mapping[str, ParameterValue] | None, seed: int | None = None) -> Message:
    """Return the message for a start of all episodes with these parameters and this seed, answered by a result."""
    return Message(kind="reset", facts=(None if parameters is None else dict(parameters), seed))


def parameters_message(parameters: Mapping[str, ParameterValue]) -> Message:
    """Return the message with environment parameters for later episodes. It is answered only if it fails."""
    return Message(kind="parameters", facts=dict(parameters))


def failure_message(error: Exception, doing: str) -> Message:
    """Return the exception as a message; texts of other errors than jaxrl's begin with their type."""
    text = str(error)
    summary = text if isinstance(error, JaxrlError) else f"{type(error).__name__}: {text}"
    trace = "".join(traceback.format_exception(error))
    return Message(kind="failure", facts=FailureReport(doing=doing, summary=summary, trace=trace, kind=_kind(error)))


def _kind(error: Exception) -> FaultKind:
    if not isinstance(error, EnvironmentFailure):
        return FaultKind.OURS if isinstance(error, JaxrlError) else FaultKind.FAULT
    kinds = {
        EnvironmentClosed: FaultKind.CLOSED,
        PortTakenError: FaultKind.PORT_TAKEN,
        BadDataError: FaultKind.BAD_DATA,
    }
    return next((kind for of_type, kind in kinds.items() if isinstance(error, of_type)), FaultKind.FAULT)


class WorkerClock:
    """Seconds of the last command: inside the environment, and in the rest of the worker's work."""

    __slots__ = ("environment", "own")

    def __init__(self) -> None:
        self.environment = self.own = 0.0


def execute(environment: HostEnv, command: Message, clock: WorkerClock | None = None) -> Message | None:
    """Execute one command; its answer, if any, holds the environment's own wall time in `seconds`.

    With a clock it also holds the worker's own time for the command before.

    Raises:
        Exception: any error of the environment.
    """
    if command.kind == "parameters":
        environment.set_parameters(command.facts)
        return None
    actions = decode_actions(command) if command.kind == "step" else {}
    start = time.perf_counter()
    result = environment.step(actions) if command.kind == "step" else _reset(environment, *command.facts)
    seconds = time.perf_counter() - start
    if clock is not None:
        clock.environment = seconds
        result = result._replace(timing=result.timing._replace(own=clock.own))
    return encode_result(result._replace(seconds=seconds))


def _reset(environment: HostEnv, parameters: Mapping[str, ParameterValue] | None, seed: int | None) -> EnvMessage:
    return environment.reset(parameters) if seed is None else environment.reset(parameters, seed)


def worker_main(
    end: socket.socket, pickled_factory: bytes, worker: int, incarnation: int = 0, level: int = logging.WARNING
) -> None:
    """Serve, as the process's target, until the parent closes its end of the socket or dies.

    Args:
        end: this side of a socket pair whose other side only the parent holds.
        pickled_factory: `factory(worker)` returns the environment; pickled, so that a failure to load it is reported
            like any other failure of the start-up.
        worker: index of this worker.
        incarnation: number of its earlier processes.
        level: level of its log, the trainer's.
    """
    log_as_worker(worker, level)
    INCARNATION.set(incarnation)
    _leave_interrupts_to_the_parent()
    _end_with_the_parent()
    channel = Channel(end, patience=None)
    # The parent is gone or closing: there is no reader of an error.
    with contextlib.suppress(ChannelClosedError):
        _serve(channel, pickled_factory, worker)
    channel.close()


def _serve(channel: Channel, pickled_factory: bytes, worker: int) -> None:
    environment = None
    doing, begun = "start-up", time.perf_counter()
    try:
        environment = pickle.loads(pickled_factory)(worker)
        logger.debug("process %d built its environment in %.1f s.", os.getpid(), time.perf_counter() - begun)
        channel.send(ready_message(environment.about))
        clock = WorkerClock()
        while True:
            command = channel.receive()
            doing, begun = command.kind, time.perf_counter()
            answer = execute(environment, command, clock)
            if answer is not None:
                channel.send(answer)
                clock.own = time.perf_counter() - begun - clock.environment
    except ChannelClosedError:
        raise
    except Exception as error:
        channel.send(failure_message(error, doing))
    finally:
        if environment is not None:
            _let_closing_finish()
            logger.debug("process %d closes its environment.", os.getpid())
            environment.close()


def _leave_interrupts_to_the_parent() -> None:
    """Ignore Ctrl-C, which reaches the whole terminal group: the parent still wants results while it saves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    platforms.interrupts_unblocked()  # the parent starts us with it blocked
    if platforms.CATCHES_TERMINATION:
        signal.signal(signal.SIGTERM, _on_terminate)


def _end_with_the_parent() -> None:
    """End with a killed parent also while a wait for a player keeps the closed socket unread."""
    parent = multiprocessing.parent_process()
    if parent is not None and platforms.CATCHES_TERMINATION:
        threading.Thread(target=_terminate_after, args=(parent,), daemon=True, name="jaxrl-parent").start()


def _terminate_after(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_SECONDS)  # the main thread may be where no signal reaches it, in native code
    os._exit(128 + signal.SIGTERM)


def _on_terminate(number: int, _frame: object) -> None:
    """Raise SystemExit, so that the environment is closed, but within bounds."""
    _let_closing_finish()
    parent = multiprocessing.parent_process()
    seconds = GRACE_SECONDS if parent is None or parent.is_alive() else ORPHAN_SECONDS
    timer = threading.Timer(seconds, os._exit, args=(128 + number,))
    timer.daemon = True
    timer.start()
    sys.exit(128 + number)


def _let_closing_finish() -> None:
    """Ignore a second SIGTERM, which must not interrupt the closing; SIGKILL follows if it hangs."""
    if platforms.CATCHES_TERMINATION:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
