"""The trainer's end of the wire: a gRPC server for one player, with a queue of messages and no wait without end.

Stands in for `mlagents_envs.rpc_communicator.RpcCommunicator`, which hands messages over through a Pipe inside one
process (each is parsed twice), limits them to 4 MB, and whose non-daemon threads can keep the interpreter from exiting.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent import futures
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from jaxrl.envs.interface import EnvironmentClosed, EnvironmentFailure, PortTakenError
from jaxrl.envs.protobuf import messages
from jaxrl.envs.unity.decode import InvalidMessage

_SERVICE = "communicator_objects.UnityToExternalProto"
EDITOR_PORT = 5004
"""At which the Unity Editor looks for a trainer; it cannot be told another one."""
OK = 200
"""Status of a player that runs."""
_UNSET, _SHUTDOWN = 0, 400
_CALLS = 2  # a player sends one message at a time, and may say goodbye while it waits for the answer to another
_SLICE = 0.05  # seconds between two looks at the process and the connection
_STOP = 1.0  # seconds for the server to stop
_UNLIMITED = -1  # gRPC's own limit of 4 MB is less than one message of many cameras

_START_TIMEOUT = """the environment did not connect within {seconds:g} seconds. Check that:
  - the environment needs no click or key before it starts; in the Editor, that you pressed Play
  - it has at least one agent whose Behavior Parameters > Behavior Type is "Default" and that has a Decision Requester
  - its ML-Agents package and this program speak the same protocol (communication version 1.x)
  - on a machine without a display: --no-graphics is given, or the build is a server build
  - nothing (a firewall, a container) keeps it from port {port} of this machine
  - it is not merely slow to load: if so, raise env_settings.timeout_wait (--timeout-wait)"""


class BrokenConnectionError(EnvironmentFailure):
    """The player hung up without a word: whether in order, its exit code tells."""


class NotConnectedError(EnvironmentFailure):
    """No player came in time."""


class Communicator:
    """Serves one player on `port`. Not thread-safe: one caller.

    Raises:
        EnvironmentFailure: the player is silent for `patience` seconds. What a `poll_callback` raises passes through;
            it is called several times a second during each wait.
        PortTakenError: (a subclass) the port is in use.
        NotConnectedError: (a subclass) nobody connected.
        EnvironmentClosed: (a subclass) the player said that it stops, with status 400. It may fail afterwards.
        BrokenConnectionError: (a subclass) the connection broke.
        InvalidMessage: the player sent bytes that are no message.
    """

    def __init__(self, port: int, timeout_wait: float) -> None:
        self.port = port
        self.patience = timeout_wait
        self._slice = min(_SLICE, timeout_wait / 10)
        self._inbox: SimpleQueue[bytes | None] = SimpleQueue()  # None: the connection broke
        self._outbox: SimpleQueue[bytes] = SimpleQueue()
        self._waiting: set[int] = set()  # server threads with a player's call that is not answered yet
        _check_port(port)
        # grpc's type hint asks for the standard library's pool, whose threads the interpreter waits for; any works.
        self._pool: Any = _DaemonThreads(_CALLS)
        self._server: Any = self._start()

    def initialize(self, inputs: Any, poll_callback: Callable[[], None] | None = None) -> Any:
        """Shake hands: the player introduces itself, gets `inputs`, and asks for its first command.

        Returns the `UnityOutputProto` of the player's first message.
        """
        missing = NotConnectedError(_START_TIMEOUT.format(seconds=self.patience, port=self.port))
        introduction = self._receive(poll_callback, missing)
        check_status(introduction, (OK, _UNSET))
        self._send(_wrap(inputs))
        check_status(self._receive(poll_callback, missing), (OK, _UNSET))
        return introduction.unity_output

    def exchange(self, inputs: Any, poll_callback: Callable[[], None] | None = None) -> Any:
        """Send a `UnityInputProto`; return the `UnityOutputProto` that answers it."""
        return self.exchange_message(_wrap(inputs), poll_callback)

    def exchange_message(self, message: Any, poll_callback: Callable[[], None] | None = None) -> Any:
        """As `exchange`, with a whole `UnityMessageProto`: saves the copy that `exchange` makes."""
        self._send(message)
        text = f"the environment sent no answer within {self.patience:g} seconds: it hangs, or needs a longer time-out"
        answer = self._receive(poll_callback, EnvironmentFailure(text))
        check_status(answer)
        return answer.unity_output

    def close(self) -> bool:
        """Tell the player to stop (status 400) and free the port, in bounded time. May be called twice.

        Returns whether a player was there to be told.
        """
        server, self._server = self._server, None
        if server is None:
            return False
        told = bool(self._waiting)
        for _ in range(max(len(self._waiting), 1)):  # one for each call: a goodbye may come beside another
            self._outbox.put(new_message(_SHUTDOWN).SerializeToString())
        server.stop(_STOP if told else None).wait(_STOP + 0.5)
        self._pool.shutdown()
        return told

    def _start(self) -> Any:
        handler = grpc.unary_unary_rpc_method_handler(self._exchange)  # no (de)serializer: plain bytes
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", _UNLIMITED),
            ("grpc.max_send_message_length", _UNLIMITED),
        ]
        server = grpc.server(self._pool, options=options)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Exchange": handler}),))
        try:
            # All interfaces, as ML-Agents does, so that a player in a container reaches it.
            bound = server.add_insecure_port(f"[::]:{self.port}")
        except RuntimeError as error:
            raise PortTakenError(_port_in_use(self.port)) from error
        if bound != self.port:
            raise PortTakenError(_port_in_use(self.port))
        server.start()
        return server

    def _exchange(self, request: bytes, context: Any) -> bytes:
        """Runs in the server's thread: hand the player's message over, and wait for what to answer."""
        thread = threading.get_ident()
        self._waiting.add(thread)
        self._inbox.put(request)
        reply = None
        while reply is None and context.is_active():
            with suppress(Empty):
                reply = self._outbox.get(timeout=_SLICE)
        self._waiting.discard(thread)
        if reply is None:
            self._inbox.put(None)
        return reply or b""

    def _send(self, message: Any) -> None:
        self._outbox.put(message.SerializeToString())

    def _receive(self, poll_callback: Callable[[], None] | None, late: EnvironmentFailure) -> Any:
        data = self._wait(poll_callback, late)
        if data is None:
            raise BrokenConnectionError("the environment closed: the connection broke")
        return parse(data)

    def _wait(self, poll_callback: Callable[[], None] | None, late: EnvironmentFailure) -> bytes | None:
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return self._inbox.get(timeout=self._slice)
            except Empty:
                pass
            if poll_callback is not None:
                poll_callback()
            if time.monotonic() >= deadline:
                raise late


class _DaemonThreads(futures.Executor):
    """A pool of threads that never keep the interpreter from exiting."""

    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue[tuple[futures.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._count = count
        for number in range(count):
            threading.Thread(target=self._run, daemon=True, name=f"jaxrl-player-{number}").start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        self._jobs.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in range(self._count):
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            try:
                future.set_result(call())
            except BaseException as error:  # belongs to whoever holds the future
                future.set_exception(error)


def new_message(status: int = OK) -> Any:
    """An empty `UnityMessageProto` with its status set."""
    message = messages().UnityMessageProto()
    message.header.status = status
    return message


def parse(data: bytes) -> Any:
    """A `UnityMessageProto` of what a player sent. Raises InvalidMessage if these bytes are none."""
    try:
        return messages().UnityMessageProto.FromString(data)
    except DecodeError as error:
        raise InvalidMessage(f"received {len(data)} bytes that are no ML-Agents message: {error}") from error


def _wrap(inputs: Any) -> Any:
    message = new_message()
    message.unity_input.MergeFrom(inputs)
    return message


def check_status(message: Any, accepted: tuple[int, ...] = (OK,)) -> None:
    """Raise EnvironmentFailure for another status, EnvironmentClosed for that of a player that stops."""
    if message.header.status not in accepted:
        reason = message.header.message or "it quit, or play mode was stopped in the Editor"
        kind = EnvironmentClosed if message.header.status == _SHUTDOWN else EnvironmentFailure
        raise kind(f"the environment closed (status {message.header.status}): {reason}")


def _check_port(port: int) -> None:
    """A plain bind to localhost: finds a listener that a gRPC bind to all interfaces may not collide with."""
    problem = port_problem(port)
    if problem:
        raise PortTakenError(problem)


def port_problem(port: int) -> str:
    """Why no player can be served on `port`; empty: nothing speaks against it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a port just closed stays taken for a minute
        try:
            probe.bind(("localhost", port))
        except OSError:
            return _port_in_use(port)
    return ""


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def _port_in_use(port: int) -> str:
    held = f"port {port} is in use, or may not be used: another training run or an environment left over holds it. "
    if port == EDITOR_PORT:
        return f"{held}Close that: the Unity Editor looks for a trainer at this port alone"
    others = "choose other ports with --base-port (env_settings.base_port; worker n uses base port + n)"
    return f"{held}Close that, or {others}"
