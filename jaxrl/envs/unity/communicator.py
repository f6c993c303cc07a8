"""Serves one player by gRPC at the trainer's end of the wire, with a queue of messages and no wait without end.

Stands in for `mlagents_envs.rpc_communicator.RpcCommunicator`, which hands messages over through a Pipe inside one
process (each is parsed twice), limits them to 4 MB, and whose non-daemon threads can keep the interpreter from exiting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from jaxrl.envs.interface import EnvironmentClosed, EnvironmentFailure, PortTakenError
from jaxrl.envs.protobuf import RUNNING, STOPPED, messages, new_message
from jaxrl.envs.unity.decode import InvalidMessage
from jaxrl.envs.unity.peers import Peers, describe
from jaxrl.envs.unity.ports import addresses, port_in_use, port_problem, target

logger = logging.getLogger(__name__)

_SERVICE = "communicator_objects.UnityToExternalProto"
_UNSET = 0
_CALLS = 2  # a player sends one message at a time, and may say goodbye while it waits for the answer to another
_SLICE = 0.05  # seconds between two looks at the process and the connection
_LAST_WORD = 0.2  # seconds in which a connection shows that its player has ended
_STOP = 1.0  # seconds for the server to stop
MESSAGE_MEGABYTES = 256
"""Default limit of one message. gRPC's own 4 MB are less than one message of many cameras."""

_START_TIMEOUT = """the environment did not connect within {seconds:g} seconds. Check that:
  - the environment needs no click or key before it starts; in the Editor, that you pressed Play
  - it has at least one agent whose Behavior Parameters > Behavior Type is "Default" and that has a Decision Requester
  - its ML-Agents package and this program speak the same protocol (communication version 1.x)
  - on a machine without a display: --no-graphics is given, or the build is a server build
  - nothing (a firewall) keeps it from port {port} of {place}; from a container or another machine it
    calls at another address: --listen 0.0.0.0 serves all of them
  - it is not merely slow to load: if so, raise env_settings.timeout_wait (--timeout-wait)"""
_NOT_WHOLE = """the environment sent a message that did not arrive whole: it is larger than {megabytes} MB
(env_settings.message_megabytes), or was cut off"""


class BrokenConnectionError(EnvironmentFailure):
    """The player hung up without announcing its end: its exit code shows whether that was in order."""


class CutOffMessage(InvalidMessage):
    """An incomplete message: it is too large, or the player died while it sent it."""


class NotConnectedError(EnvironmentFailure):
    """No player connected in time."""


class Communicator:
    """Serves one player on `port`. Not thread-safe: one caller.

    Any other caller is refused before any of its data are read, with one warning.

    Args:
        port: of the server.
        timeout_wait: seconds of patience.
        listen: address of this machine; None: loopback.
        megabytes: limit of one message of the player.

    Raises:
        EnvironmentFailure: the player is silent for `patience` seconds. Errors of a `poll_callback`, which is called
            several times a second during each wait, pass through.
        PortTakenError: (a subclass) the port is in use.
        NotConnectedError: (a subclass) no player connected.
        EnvironmentClosed: (a subclass) the player announced its end, with status 400. It may fail afterwards.
        BrokenConnectionError: (a subclass) the connection broke.
        InvalidMessage: the player sent bytes that are no message, or too many.
    """

    def __init__(
        self, port: int, timeout_wait: float, listen: str | None = None, megabytes: int = MESSAGE_MEGABYTES
    ) -> None:
        self.port = port
        self.patience = timeout_wait
        self.peers = Peers(port, anywhere=listen is not None)
        self._listen = listen
        self._megabytes = megabytes
        self._opened = threading.Event()  # set once the player's process is known
        self._warned = False
        self._slice = min(_SLICE, timeout_wait / 10)
        self._inbox: SimpleQueue[bytes | EnvironmentFailure] = SimpleQueue()
        self._outbox: SimpleQueue[bytes] = SimpleQueue()
        self._waiting: set[int] = set()  # server threads with an unanswered call of a player
        problem = port_problem(port, listen)
        if problem:
            raise PortTakenError(problem)
        # grpc's type hint asks for the standard library's pool, whose threads the interpreter waits for; any works.
        self._pool: Any = _DaemonThreads(_CALLS)
        self._server: Any = self._start()

    def initialize(self, inputs: Any, poll_callback: Callable[[], None] | None = None) -> Any:
        """Shake hands: the player introduces itself, gets `inputs`, and asks for its first command.

        Return the `UnityOutputProto` of the player's first message.
        """
        place = self._listen or "this machine's localhost"
        missing = NotConnectedError(_START_TIMEOUT.format(seconds=self.patience, port=self.port, place=place))
        self._opened.set()
        introduction = self._receive(poll_callback, missing)
        check_status(introduction, (RUNNING, _UNSET))
        self._send(_wrap(inputs))
        check_status(self._receive(poll_callback, missing), (RUNNING, _UNSET))
        return introduction.unity_output

    def exchange(self, inputs: Any, poll_callback: Callable[[], None] | None = None) -> Any:
        """Send a `UnityInputProto`; return the `UnityOutputProto` that answers it."""
        return self.exchange_message(_wrap(inputs), poll_callback)

    def exchange_message(self, message: Any, poll_callback: Callable[[], None] | None = None) -> Any:
        """Exchange, as `exchange`, a whole `UnityMessageProto`: saves the copy that `exchange` makes."""
        self._send(message)
        text = f"the environment sent no answer within {self.patience:g} seconds: it hangs, or needs a longer time-out"
        answer = self._receive(poll_callback, EnvironmentFailure(text))
        check_status(answer)
        return answer.unity_output

    def close(self) -> bool:
        """Tell the player to stop (status 400) and free the port, in bounded time. May be called twice.

        Return whether a player was connected.
        """
        server, self._server = self._server, None
        if server is None:
            return False
        connected = bool(self._waiting)
        for _ in range(max(len(self._waiting), 1)):  # one for each call: a goodbye may come beside another call
            self._outbox.put(new_message(STOPPED).SerializeToString())
        server.stop(_STOP if connected else None).wait(_STOP + 0.5)
        self._pool.shutdown()
        return connected

    def _start(self) -> Any:
        handler = grpc.stream_unary_rpc_method_handler(self._exchange)  # no (de)serializer: plain bytes
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", self._megabytes << 20),
            ("grpc.max_send_message_length", -1),
        ]
        server = grpc.server(self._pool, options=options)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Exchange": handler}),))
        try:
            bound = [server.add_insecure_port(target(address, self.port)) for address in addresses(self._listen)]
        except RuntimeError as error:
            raise PortTakenError(port_in_use(self.port)) from error
        if set(bound) != {self.port}:
            raise PortTakenError(port_in_use(self.port))
        server.start()
        return server

    def _exchange(self, requests: Iterator[bytes], context: Any) -> bytes:
        """Hand the player's message over, and wait for the answer; runs in the server's thread.

        A call has one message. It is taken from a stream so that nothing is read before the caller is known.
        """
        while not self._opened.wait(_SLICE):
            if not context.is_active():
                return b""
        if not self.peers.admits(context.peer()):
            self._refuse(context)
        thread = threading.get_ident()
        self._waiting.add(thread)
        reply = None
        request = next(_up_to_its_end(requests), None)
        if request is None:
            self._inbox.put(CutOffMessage(_NOT_WHOLE.format(megabytes=self._megabytes)))
        else:
            self._inbox.put(request)
            while reply is None and context.is_active():
                with suppress(Empty):
                    reply = self._outbox.get(timeout=_SLICE)
            if reply is None:
                self._inbox.put(BrokenConnectionError("the environment closed: the connection broke"))
        self._waiting.discard(thread)
        return reply or b""

    def _refuse(self, context: Any) -> None:
        """End the call of a stranger. Raises the exception that ends it."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "port %d: refused %s, which is not the player of this run. If it is, as where a script starts it in a "
                "container: --listen ADDRESS (env_settings.listen) serves the first who calls at that address.",
                self.port, describe(context.peer(), self.port),
            )  # fmt: skip
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "this port serves one player, which is another process")

    def _send(self, message: Any) -> None:
        self._outbox.put(message.SerializeToString())

    def _receive(self, poll_callback: Callable[[], None] | None, late: EnvironmentFailure) -> Any:
        arrived = self._wait(poll_callback, late)
        if isinstance(arrived, EnvironmentFailure):
            raise arrived
        return parse(arrived)

    def _wait(self, poll_callback: Callable[[], None] | None, late: EnvironmentFailure) -> bytes | EnvironmentFailure:
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return self._inbox.get(timeout=self._slice)
            except Empty:
                pass
            if poll_callback is not None:
                try:
                    poll_callback()
                except EnvironmentFailure:
                    cut_off = self._cut_off()
                    if cut_off is None:
                        raise
                    return cut_off
            if time.monotonic() >= deadline:
                raise late

    def _cut_off(self) -> CutOffMessage | None:
        """Return an error if a message of an ended player was incomplete: the connection may show it a little later."""
        try:
            word = self._inbox.get(timeout=_LAST_WORD)
        except Empty:
            return None
        return word if isinstance(word, CutOffMessage) else None


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
            except BaseException as error:  # belongs to the owner of the future
                future.set_exception(error)


def _up_to_its_end(requests: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the data of a call until gRPC raises: it is cut off, or a message is larger than the limit."""
    with suppress(grpc.RpcError):
        yield from requests


def parse(data: bytes) -> Any:
    """Return the `UnityMessageProto` in a player's bytes. Raises InvalidMessage if they are none."""
    try:
        return messages().UnityMessageProto.FromString(data)
    except DecodeError as error:
        raise InvalidMessage(f"received {len(data)} bytes that are no ML-Agents message: {error}") from error


def _wrap(inputs: Any) -> Any:
    message = new_message()
    message.unity_input.MergeFrom(inputs)
    return message


def check_status(message: Any, accepted: tuple[int, ...] = (RUNNING,)) -> None:
    """Raise EnvironmentFailure for another status, EnvironmentClosed for that of a stopping player."""
    if message.header.status not in accepted:
        reason = message.header.message or "it quit, or play mode was stopped in the Editor"
        kind = EnvironmentClosed if message.header.status == STOPPED else EnvironmentFailure
        raise kind(f"the environment closed (status {message.header.status}): {reason}")
