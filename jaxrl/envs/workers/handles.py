"""The pool's side of one worker: a process of its own, or for debugging this process, behind one interface."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import signal
import socket
from collections.abc import Callable
from typing import Any, Literal, Protocol

from jaxrl import platforms
from jaxrl.envs.interface import HostEnv
from jaxrl.envs.workers.transport import Channel, ChannelClosedError, Message, through_bytes
from jaxrl.envs.workers.worker import INCARNATION, execute, failure_message, ready_message, worker_main
from jaxrl.log_lines import current_level

logger = logging.getLogger(__name__)

EnvFactory = Callable[[int], HostEnv]


class WorkerHandle(Protocol):
    """Worker as the pool sees it."""

    def send(self, command: Message) -> None:
        """Hand over a command. Raises ChannelClosedError or ChannelTimeoutError."""
        ...

    def poll(self) -> Message | None:
        """Return the next answer if there is one. Raises ChannelClosedError or ChannelTimeoutError."""
        ...

    def waitables(self) -> list[Any]:
        """Return objects for `multiprocessing.connection.wait`: they show an answer, or the end of the process."""
        ...

    def has_ended(self) -> bool:
        """Return whether the worker can answer no more, except for answers that are already under way."""
        ...

    def diagnose(self, seconds: float) -> str:
        """Describe the state of the worker's process, for an error; wait up to `seconds` for its exit code."""
        ...

    def hang_up(self) -> None:
        """Tell the worker to close its environment and to stop."""
        ...

    def force(self, how: Literal["terminate", "kill"]) -> None:
        """End a worker that does not stop by itself."""
        ...

    def join(self, seconds: float) -> bool:
        """Wait up to `seconds` for the end; return whether the worker has ended."""
        ...


class ProcessHandle:
    """A worker in its own process, which starts at once and builds its environment while others do the same."""

    def __init__(self, pickled_factory: bytes, worker: int, patience: float, incarnation: int = 0) -> None:
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours, patience)
        self._process = multiprocessing.get_context("spawn").Process(
            target=worker_main,
            args=(theirs, pickled_factory, worker, incarnation, current_level()),
            name=f"jaxrl-env-{worker}",
            daemon=True,
        )
        try:
            with platforms.interrupts_blocked():
                self._process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    def send(self, command: Message) -> None:
        self._channel.send(command)

    def poll(self) -> Message | None:
        return self._channel.poll()

    def waitables(self) -> list[Any]:
        ends = [self._process.sentinel]
        return ends if self._channel.fileno() < 0 else [self._channel, *ends]

    def has_ended(self) -> bool:
        return self._process.exitcode is not None

    def diagnose(self, seconds: float) -> str:
        self._process.join(seconds)
        code = self._process.exitcode
        if code is not None:
            return f"process {self._process.pid} ended with {_exit_in_words(code)}"
        return f"process {self._process.pid} is alive{_process_state(self._process.pid)}"

    def hang_up(self) -> None:
        self._channel.close()

    def force(self, how: Literal["terminate", "kill"]) -> None:
        self._process.kill() if how == "kill" else self._process.terminate()

    def join(self, seconds: float) -> bool:
        self._process.join(max(0.0, seconds))
        return self.has_ended()


class InlineHandle:
    """A worker without a process: commands run in `send`. Data go through bytes as between processes, so that results
    are equal and nothing is shared by accident.
    """

    def __init__(self, factory: EnvFactory, worker: int, incarnation: int = 0) -> None:
        self._answers: list[Message] = []
        self._ended = False
        self._environment: HostEnv | None = None
        before = INCARNATION.set(incarnation)
        try:
            self._environment = factory(worker)
            self._answers.append(ready_message(self._environment.about))
        except Exception as error:
            self._fail(error, "start-up")
        finally:
            INCARNATION.reset(before)

    def send(self, command: Message) -> None:
        if self._environment is None or self._ended:
            raise ChannelClosedError
        try:
            answer = execute(self._environment, through_bytes(command))
            if answer is not None:
                self._answers.append(through_bytes(answer))
        except Exception as error:
            self._fail(error, command.kind)

    def poll(self) -> Message | None:
        if not self._answers and self._ended:
            raise ChannelClosedError
        return self._answers.pop(0) if self._answers else None

    def waitables(self) -> list[Any]:
        return []

    def has_ended(self) -> bool:
        return self._ended

    def diagnose(self, seconds: float) -> str:
        return "it runs inline and has ended"

    def hang_up(self) -> None:
        self._ended = True
        try:
            if self._environment is not None:
                self._environment.close()
        except Exception:
            # As a process would: the others are still to be closed, and a failure under way must stay visible.
            logger.exception("an inline environment failed to close")

    def force(self, how: Literal["terminate", "kill"]) -> None:
        """Do nothing: `hang_up` has returned, so the worker has ended."""

    def join(self, seconds: float) -> bool:
        return True

    def _fail(self, error: Exception, doing: str) -> None:
        self._answers.append(failure_message(error, doing))
        self._ended = True


def pickle_factory(factory: EnvFactory) -> bytes:
    """Return the factory as bytes.

    Raises:
        TypeError: it cannot be pickled.
    """
    try:
        return pickle.dumps(factory)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"the environment factory {factory!r} cannot be pickled for the worker processes ({error}); expected a "
            "function or class at the top level of a module, or functools.partial of one; or pass inline=True"
        ) from error


def _exit_in_words(code: int) -> str:
    """Return an exit code in words: negative codes, and those above 128, stand for signals."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {code}"
    return f"exit code {code} ({name})"


def _process_state(pid: int | None) -> str:
    """Describe what the process is doing, where the system shows it."""
    names = {"R": "computing", "S": "waiting", "D": "waiting for a disk or device", "T": "stopped by a signal"}
    letter = platforms.state_of(pid)
    return f" and {names.get(letter, f'in state {letter}')}" if letter else ""
