"""The pool's side of a worker on a Ray cluster: Ray chooses the machine, and notices when the worker is lost.

Ray is imported when it is asked for. Its objects announce themselves in Ray's own threads; a byte in a socket pair
wakes the pool, which waits for sockets.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import deque
from concurrent import futures
from importlib import metadata
from typing import Any, Literal

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.workers.ray_worker import RayWorker
from jaxrl.envs.workers.transport import ChannelClosedError, Message, from_bytes, to_bytes
from jaxrl.log_lines import current_level

PREFIX = "ray://"
OF_THIS_MACHINE = "auto"
"""`ray://auto`: the cluster that this machine belongs to."""
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
    except Exception as error:  # Ray's own, gRPC's, and OSError: whatever it is, there is no cluster to work with
        first = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise EnvironmentFailure(
            f"{address}: no Ray cluster answers there ({first}); start one with `ray start --head`, further machines "
            "with `ray start --address=HOST:6379`, and check host and port (10001 for ray://HOST:PORT)"
        ) from error


class RayHandle:
    """A worker in a process of Ray's, on whatever machine of the cluster has a free CPU; spread over the machines."""

    def __init__(self, pickled_factory: bytes, worker: int, incarnation: int = 0) -> None:
        import ray

        self._ray = ray
        self._due: deque[Any] = deque()  # what was asked for and not yet taken, in order
        self._lost: str | None = None  # why there is no worker any more
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
        with contextlib.suppress(OSError):  # full: it rings already; closed: nobody listens
            self._ring.send(b"!")


def _reason(error: BaseException) -> str:
    """What Ray says of a loss, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:2]) or type(error).__name__
