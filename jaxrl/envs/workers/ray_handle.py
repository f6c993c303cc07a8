"""The pool's side of a worker on a Ray cluster: Ray chooses the machine, and notices when the worker is lost.

Ray is imported when it is asked for. Its objects announce themselves in Ray's own threads; a byte in a socket pair
wakes the pool, which waits for sockets.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
from collections import deque
from concurrent import futures
from importlib import metadata
from typing import Any, Literal

from jaxrl.envs.interface import EnvironmentFailure, HostEnv
from jaxrl.envs.workers.transport import ChannelClosedError, Message, from_bytes, to_bytes
from jaxrl.envs.workers.worker import INCARNATION, execute, failure_message, ready_message
from jaxrl.log_lines import current_level, log_as_worker

PREFIX = "ray://"
OF_THIS_MACHINE = "auto"
"""Host in `ray://auto`: the cluster of this machine."""
_CONNECT_SECONDS = "20"


def connect(address: str) -> None:
    """Join the cluster at `ray://HOST:PORT` (Ray's client port, 10001), or that of this machine with `ray://auto`.

    Raises:
        EnvironmentFailure: Ray is not installed, or there is no such cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise EnvironmentFailure(f"{address}: Ray is not installed ({error}): pip install 'jaxrl[ray]'") from error
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_CLIENT_RECONNECT_GRACE_PERIOD", _CONNECT_SECONDS)
    place = OF_THIS_MACHINE if address == PREFIX + OF_THIS_MACHINE else address
    try:
        ray.init(address=place, logging_level=logging.WARNING, log_to_driver=True)
    except Exception as error:  # Ray's own, gRPC's, or OSError: in any case there is no cluster to work with
        first = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise EnvironmentFailure(
            f"{address}: no Ray cluster answers there ({first}); start one with `ray start --head`, further machines "
            "with `ray start --address=HOST:6379`, and check host and port (10001 for ray://HOST:PORT)"
        ) from error


class RayHandle:
    """A worker in a process of Ray's, on any machine of the cluster with a free CPU; they spread over the machines."""

    def __init__(self, pickled_factory: bytes, worker: int, incarnation: int = 0) -> None:
        import ray

        self._ray = ray
        self._due: deque[Any] = deque()  # requests without a taken answer, in order
        self._lost: str | None = None  # reason why the worker is lost
        self._closing: Any = None
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)
        self._ring.setblocking(False)
        actor = ray.remote(RayWorker).options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")
        self._actor: Any = actor.remote()
        start = self._actor.start.remote(
            pickled_factory, worker, incarnation, metadata.version("jaxrl"), current_level()
        )
        self._await(start)

    def send(self, command: Message) -> None:
        if self.has_ended():
            raise ChannelClosedError
        self._await(self._actor.execute.remote(to_bytes(command)))

    def poll(self) -> Message | None:
        with contextlib.suppress(OSError):  # nothing rings, or the bell is gone
            self._bell.recv(4096)
        while self._due and self._due[0].done():
            future = self._due.popleft()
            error = future.exception()
            if error is not None:
                self._lose(_reason(error))
                raise ChannelClosedError from error
            if future.result() is not None:  # parameters have no answer
                return from_bytes(future.result())
        return None

    def waitables(self) -> list[Any]:
        return [] if self._lost is not None else [self._bell]

    def has_ended(self) -> bool:
        if self._lost is None and self._closing is not None and self._closing.done():
            self.force("kill")  # the environment is closed, Ray's process is not needed any more
        return self._lost is not None

    def diagnose(self, seconds: float) -> str:
        if self._lost is not None:
            return f"its place in the Ray cluster was lost: {self._lost}"
        try:
            total, free = self._ray.cluster_resources(), self._ray.available_resources()
        except Exception as error:
            return f"the Ray cluster does not answer ({_reason(error)})"
        return (
            f"the Ray cluster has {total.get('CPU', 0):g} CPUs, {free.get('CPU', 0):g} of them free, and it needs one"
        )

    def hang_up(self) -> None:
        if self._closing is None and self._lost is None:
            self._closing = self._actor.close.remote().future()
            self._closing.add_done_callback(self._wake)

    def force(self, how: Literal["terminate", "kill"]) -> None:
        if self._lost is None:
            self._lose("ended by the trainer")
            with contextlib.suppress(Exception):  # a cluster that is gone has nothing left to end
                self._ray.kill(self._actor)

    def join(self, seconds: float) -> bool:
        if self._closing is not None:
            futures.wait([self._closing], timeout=max(0.0, seconds))
        return self.has_ended()

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        self._bell.close()
        self._ring.close()

    def _await(self, ref: Any) -> None:
        future = ref.future()
        self._due.append(future)
        future.add_done_callback(self._wake)

    def _wake(self, _future: Any) -> None:
        with contextlib.suppress(OSError):  # full: it rings already; closed: there is no listener
            self._ring.send(b"!")


def _reason(error: BaseException) -> str:
    """Return Ray's reason for a loss, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:2]) or type(error).__name__


class RayWorker:
    """Environment. Messages are bytes (`transport.to_bytes`)."""

    def __init__(self) -> None:
        self._environment: HostEnv | None = None
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's, also with a cluster on this machine

    def start(self, pickled_factory: bytes, worker: int, incarnation: int, version: str, level: int) -> bytes:
        """Build the environment; return the answer to a process's start-up.

        Args:
            pickled_factory: `factory(worker)` returns the environment.
            worker: index of this worker.
            incarnation: number of its earlier starts.
            version: the trainer's version of jaxrl, which must be that of this machine: messages may differ.
            level: level of its log, the trainer's; Ray shows what it writes to standard error.
        """
        log_as_worker(worker, level)
        INCARNATION.set(incarnation)
        try:
            here = metadata.version("jaxrl")
            if here != version:
                raise EnvironmentFailure(
                    f"jaxrl {here} is installed there and {version} here: install one version on all machines"
                )
            environment = self._environment = pickle.loads(pickled_factory)(worker)
            return to_bytes(ready_message(f"{environment.about or 'Environment'} on {_node()}"))
        except Exception as error:
            return to_bytes(failure_message(error, "start-up"))

    def execute(self, command: bytes) -> bytes | None:
        """Execute one command and return its answer, if any. After a failure the environment is closed."""
        message = from_bytes(command)
        try:
            if self._environment is None:
                raise RuntimeError("there is no environment: it has failed before")
            answer = execute(self._environment, message)
            return None if answer is None else to_bytes(answer)
        except Exception as error:
            self.close()
            return to_bytes(failure_message(error, message.kind))

    def close(self) -> None:
        """Close the environment, if there is one."""
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.close()


def _node() -> str:
    """Return the name of this machine, as in Ray's own tools."""
    import ray

    return f"node {ray.util.get_node_ip_address()} ({ray.get_runtime_context().get_node_id()[:8]})"
