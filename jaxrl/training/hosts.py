"""Several processes that train one compiled run together: how they find each other, and how all of them end.

JAX makes their devices one (`jax.distributed`) and knows nothing of Ctrl-C, of a host that fails while it writes, or of
who is gone: a collective whose partner was killed may wait for ever. So each host keeps a connection to host 0, on
which it says that it lives, that it was interrupted, why it fails, and that it is done. No JAX at the top.

Anybody may call at the port of host 0 while hosts gather. Only who shows the settings of this run can take a place or
end the gathering; everybody else is hung up on, and nobody is waited for alone.
"""

from __future__ import annotations

import _thread
import atexit
import hashlib
import json
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from jaxrl.training.interrupt import Interrupt, leave
from jaxrl.types import JaxrlError

log = logging.getLogger(__name__)

GATHER_SECONDS = 300.0
"""So long hosts wait for each other at the start."""
BEAT_SECONDS = 5.0
SILENT_SECONDS = 30.0
"""A host that has said nothing for so long is gone."""
_GONE = "it is gone, and with it the run. What was saved last is good: start all hosts again with --resume"
_JAX_SECONDS = 50  # after which JAX ends what waits for a host that is gone, should this file not have
_LONGEST = 10_000  # bytes of a line
_CALLERS = 64  # that have not said yet who they are; the one that has waited longest makes room
_TOLD = 10  # refusals that are told
AUTO = "auto"
"""In the place of HOST:PORT: as `jax.distributed` finds the others by itself (Slurm, Kubernetes, Open MPI, TPUs)."""


class HostsError(JaxrlError):
    """The hosts of a run did not find each other, were started unlike each other, or one of them is gone."""


class Place(NamedTuple):
    """Which of the hosts this is."""

    address: str  # HOST:PORT of host 0, or AUTO
    index: int = 0
    count: int = 0


def place_of(address: str | None, index: int | None, count: int | None) -> Place | None:
    """Of --hosts, --host-id and --host-count; None without any. Raises HostsError for what does not fit together."""
    if address is None:
        if index is not None or count is not None:
            raise HostsError("--host-id, --host-count: expected --hosts HOST:PORT beside them")
        return None
    if address == AUTO:
        if index is not None or count is not None:
            raise HostsError("--hosts auto: finds --host-id and --host-count by itself: leave them out")
        return Place(AUTO)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise HostsError(
            f"--hosts: got {address}, expected HOST:PORT of the first host, such as 10.0.0.1:6000, or auto"
        )
    if count is None or index is None:
        raise HostsError("--hosts: expected --host-id (0, 1, ...) and --host-count beside it")
    if count < 1 or not 0 <= index < count:
        raise HostsError(f"--host-id: got {index}, expected 0 to {max(count - 1, 0)} with --host-count {count}")
    return Place(address, index, count)


class Line:
    """A connection that carries JSON objects, a line each."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(SILENT_SECONDS)
        self.end = end
        self._heard = b""
        self._writing = threading.Lock()

    def send(self, kind: str, **content: Any) -> None:
        """Say it; nothing if nobody listens any more, which whoever reads notices."""
        with self._writing, suppress(OSError):
            self.end.sendall(json.dumps({"kind": kind, **content}).encode() + b"\n")

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """Return the next object; None where the other side has not said it within `seconds`, or speaks otherwise."""
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.end, selectors.EVENT_READ)
            while not self.is_complete:
                if not waiting.select(max(until - time.monotonic(), 0.0)) or not self.hear():
                    return None
        return self.take()

    @property
    def is_complete(self) -> bool:
        """True if a whole line has been heard."""
        return b"\n" in self._heard

    def hear(self) -> bool:
        """Read what has arrived; False where the other side is gone, or its line has no end."""
        try:
            piece = self.end.recv(_LONGEST)
        except OSError:
            return False
        self._heard += piece
        return bool(piece) and (self.is_complete or len(self._heard) < _LONGEST)

    def take(self) -> dict[str, Any] | None:
        """Take the object of a complete line; None where there is none on it."""
        line, _, self._heard = self._heard.partition(b"\n")
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return said if isinstance(said, dict) and isinstance(said.get("kind"), str) else None

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)
        self.end.close()


class _Door:
    """Callers at a port that have not said who they are: some at a time, each for BEAT_SECONDS at most."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._since: dict[Line, float] = {}  # in the order in which they came
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(server, selectors.EVENT_READ)

    def heard(self, seconds: float) -> list[tuple[Line, dict[str, Any]]]:
        """Wait so long at most; the lines of callers that have spoken, with the object that they have said."""
        spoken = []
        for ready, _ in self._waiting.select(seconds):
            line = ready.data
            if line is None:
                self._let_in()
            elif line in self._since and not line.hear():
                self._hang_up(line)
            elif line in self._since and line.is_complete:
                said = line.take()
                self._forget(line) if said is not None else self._hang_up(line)
                spoken += [(line, said)] if said is not None else []
        for line in [line for line, since in self._since.items() if time.monotonic() - since > BEAT_SECONDS]:
            self._hang_up(line)
        return spoken

    def _let_in(self) -> None:
        with suppress(OSError):  # who has gone already
            line = Line(self._server.accept()[0])
            self._since[line] = time.monotonic()
            self._waiting.register(line.end, selectors.EVENT_READ, line)
        if len(self._since) > _CALLERS:
            self._hang_up(next(iter(self._since)))

    def _forget(self, line: Line) -> None:
        del self._since[line]
        self._waiting.unregister(line.end)

    def _hang_up(self, line: Line) -> None:
        self._forget(line)
        line.close()

    def __enter__(self) -> _Door:
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up on everybody who is left."""
        for line in list(self._since):
            self._hang_up(line)
        self._waiting.close()


class Hosts:
    """All hosts of a run, as one of them sees it: a context manager around the run.

    Host 0 has a connection to each other one, these have one to host 0. Where one is gone without a word, each process
    ends with exit code 1 and names it; what it leaves is the last checkpoint. Where one is interrupted, all are. Where
    one fails, all fail with its words.
    """

    def __init__(self, place: Place, settings: str) -> None:
        """Gather the hosts. `settings`: text that has to be the same on all."""
        self.place = place
        self._settings = settings
        self._lines: dict[int, Line] = {}
        self._names: dict[int, str] = {}
        self._done: set[int] = set()
        self._interrupt: Interrupt | None = None
        self._over = threading.Event()
        self._told = threading.Lock()
        self._passed_on = False  # another host's interrupt
        self._refused: list[str] = []  # callers with other settings, in words

    @property
    def name(self) -> str:
        """Of this one, for the others."""
        return f"host {self.place.index} ({socket.gethostname()}, process {os.getpid()})"

    def gather(self) -> str:
        """Wait for all others; HOST:PORT at which JAX's own service then listens. Raises HostsError."""
        host, _, port = self.place.address.rpartition(":")
        if self.place.index == 0:
            return self._gather_here(host, int(port))
        return self._go_to(host, int(port))

    def _gather_here(self, host: str, port: int) -> str:
        try:
            server = socket.create_server((host, port))
        except OSError as error:
            raise HostsError(f"--hosts: cannot listen at {self.place.address} ({error.strerror or error})") from None
        deadline = time.monotonic() + GATHER_SECONDS
        server.setblocking(False)
        with server, _Door(server) as door:
            while len(self._lines) < self.place.count - 1:
                if time.monotonic() > deadline:
                    raise HostsError(self._missing())
                for line, said in door.heard(min(max(deadline - time.monotonic(), 0.01), BEAT_SECONDS)):
                    self._welcome(line, said)
        with socket.create_server((host, 0)) as free:
            chosen = f"{host}:{free.getsockname()[1]}"
        for line in self._lines.values():
            line.send("welcome", jax=chosen, name=self.name)
        return chosen

    def _missing(self) -> str:
        missing = sorted(set(range(1, self.place.count)) - self._lines.keys())
        refused = f". Refused: {'; '.join(self._refused)}" if self._refused else ""
        return (
            f"--hosts {self.place.address}: host(s) {', '.join(map(str, missing))} did not come within "
            f"{GATHER_SECONDS:g} s; start the same command there with --host-id and --host-count {self.place.count}"
            f"{refused}"
        )

    def _welcome(self, line: Line, said: Mapping[str, Any]) -> None:
        """Give a caller its place. Who shows other settings is refused; with these, other flags are an error of all."""
        index, count, name = said.get("index"), said.get("count"), str(said.get("name"))[:200]
        if said["kind"] != "hello" or type(index) is not int:
            return line.close()
        if said.get("settings") != self._settings:
            return self._refuse(line, index)
        problem = None
        if count != self.place.count:
            problem = f"--host-count: got {count} at host {index}, {self.place.count} at host 0"
        elif not 0 < index < self.place.count or index in self._lines:
            problem = f"--host-id: {index} is given twice, or is none of 1 to {self.place.count - 1}"
        if problem is not None:
            line.send("refused", text=problem)
            line.close()
            for other in self._lines.values():
                other.send("failed", text=problem, name=self.name)
            raise HostsError(problem)
        self._lines[index], self._names[index] = line, name
        log.info("%s is here, %d of %d.", name, len(self._lines) + 1, self.place.count)

    def _refuse(self, line: Line, index: int) -> None:
        """Tell a caller that it is none of this run, and hang up; others are still waited for."""
        text = f"host {str(index)[:20]} was started with another version, configuration or other flags than host 0"
        line.send("refused", text=text)
        line.close()
        if text not in self._refused and len(self._refused) < _TOLD:
            self._refused.append(text)
            log.warning("%s: it is refused, and host 0 waits for another.", text)

    def _go_to(self, host: str, port: int) -> str:
        deadline = time.monotonic() + GATHER_SECONDS
        while True:
            try:
                line = Line(socket.create_connection((host, port), timeout=BEAT_SECONDS))
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    where, why = self.place.address, error.strerror or error
                    raise HostsError(
                        f"--hosts {where}: host 0 is not there after {GATHER_SECONDS:g} s ({why})"
                    ) from None
                time.sleep(0.2)
        about = {"index": self.place.index, "count": self.place.count, "settings": self._settings, "name": self.name}
        line.send("hello", **about)
        said = line.receive(GATHER_SECONDS) or {"text": "host 0 is gone"}
        if said.get("kind") != "welcome" or not {"jax", "name"} <= said.keys():
            raise HostsError(f"--hosts {self.place.address}: {said.get('text')}")
        self._lines[0], self._names[0] = line, str(said["name"])
        return str(said["jax"])

    def start_jax(self) -> None:
        """Make the devices of all hosts one. Before JAX looks for its devices. Raises HostsError."""
        import jax

        # of CPUs; accelerators have their own
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        try:
            if self.place.address == AUTO:
                jax.distributed.initialize(heartbeat_timeout_seconds=_JAX_SECONDS)
            else:
                jax.distributed.initialize(
                    coordinator_address=self.gather(),
                    num_processes=self.place.count,
                    process_id=self.place.index,
                    heartbeat_timeout_seconds=_JAX_SECONDS,
                )
        except (RuntimeError, ValueError) as error:
            raise HostsError(f"--hosts {self.place.address}: JAX's hosts do not find each other: {error}") from error

    def meet(self) -> None:
        """Connect to host 0 after JAX has found the hosts and its devices; host 0 tells all where it listens."""
        if self.place.address != AUTO:
            return
        import jax
        import numpy as np
        from jax.experimental import multihost_utils

        with socket.create_server(("", 0)) as free:
            port = free.getsockname()[1]
        here = _address_of_this_machine()
        told = multihost_utils.broadcast_one_to_all(np.array([*map(int, here.split(".")), port], np.int32))
        *numbers, port = told.tolist()
        address = f"{'.'.join(map(str, numbers))}:{port}"
        self.place = Place(address, jax.process_index(), jax.process_count())
        self.gather()

    def watch(self, interrupt: Interrupt) -> None:
        """From here on all end together; `interrupt` is of this process."""
        self._interrupt = interrupt
        for index, line in self._lines.items():
            work = threading.Thread(target=self._listen, args=(index, line), daemon=True, name=f"jaxrl-host-{index}")
            work.start()
        threading.Thread(target=self._beat, daemon=True, name="jaxrl-hosts").start()

    def _beat(self) -> None:
        """Say that we live; and that we were interrupted, as soon as that is so."""
        said, beat_at = False, 0.0
        while not self._over.wait(0.2):
            assert self._interrupt is not None
            if self._interrupt.requested and not said:
                said = True
                self._tell("interrupted")
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + BEAT_SECONDS
                self._tell("beat")

    def _listen(self, index: int, line: Line) -> None:
        while True:
            said = line.receive(SILENT_SECONDS)
            kind = "gone" if said is None else said["kind"]
            if kind == "done":
                self._done.add(index)
                return
            if kind == "interrupted":
                self._interrupted()
            elif kind == "failed":
                assert said is not None
                self._end(f"{said.get('name')}: {said.get('text')}")
            elif kind == "gone":
                assert self._interrupt is not None
                if not self._over.is_set() and not self._interrupt.requested:
                    self._end(f"{self._names[index]}: {_GONE}", whose=self._names[index])
                return

    def _interrupted(self) -> None:
        """As if Ctrl-C had come here, once: a second one would leave at once. Host 0 passes it on with a beat."""
        assert self._interrupt is not None
        with self._told:
            first, self._passed_on = not self._passed_on, True
        if first and not self._interrupt.requested:  # which a main thread that computes sets later
            _thread.interrupt_main()

    def _end(self, text: str, whose: str | None = None) -> NoReturn:
        """End this process at once: the common program waits for a host that is gone."""
        with self._told:  # one of the threads tells
            if whose is not None:
                self._tell("failed", text=_GONE, name=whose)
            log.error("%s", text)
            leave(1)

    def _tell(self, kind: str, **content: Any) -> None:
        for line in self._lines.values():
            line.send(kind, **content)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, *_: object) -> None:
        """Tell the others how this one has ended. After a failure the process ends without JAX's farewell."""
        if kind is None or issubclass(kind, SystemExit):
            self._over.set()
            if self._interrupt is not None and self._interrupt.requested:
                self._tell("interrupted")  # the thread that says so may not have come to it
            self._tell("done")
            return
        if not isinstance(value, JaxrlError) and self._interrupt is not None:
            self._over.wait(SILENT_SECONDS + BEAT_SECONDS)  # a collective fails at once where somebody is gone: who?
        self._over.set()
        self._tell("failed", text=str(value).partition("\n")[0][:1000] or kind.__name__, name=self.name)
        atexit.register(leave, 1)


def _address_of_this_machine() -> str:
    """IPv4, as others reach it: its own name may mean 127.0.1.1. Nothing is sent."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outwards:
        outwards.connect(("10.255.255.255", 1))
        return outwards.getsockname()[0]
    return socket.gethostbyname(socket.gethostname())


def settings_text(version: str, settings: Mapping[str, Any]) -> str:
    """Return the text that has to be the same on all hosts. Only host 0 writes results, so their folder may differ."""
    options = {name: value for name, value in settings["checkpoint_settings"].items() if name != "results_dir"}
    text = json.dumps([version, {**settings, "checkpoint_settings": options}], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
