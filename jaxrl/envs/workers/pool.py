"""Several environments behind one `send` and `recv`, each in its own numpy-only process or all inline.

The caller sends actions to any worker that has answered and takes results as they come: with `min_ready == num_envs`
all of them, in the order of the workers (reproducible), with less whatever is there (faster).
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import NoReturn

from jaxrl.envs.interface import EnvironmentClosed, EnvironmentFailure
from jaxrl.envs.workers.diagnosis import why_silent
from jaxrl.envs.workers.handles import EnvFactory, InlineHandle, ProcessHandle, WorkerHandle, pickle_factory, wait
from jaxrl.envs.workers.shutdown import close_workers
from jaxrl.envs.workers.transport import ChannelClosedError, ChannelTimeoutError, Message, decode_result, encode_actions
from jaxrl.envs.workers.worker import FailureReport, parameters_message, reset_message
from jaxrl.types import Action, EnvMessage

logger = logging.getLogger(__name__)

_SLICE_SECONDS = 0.5  # longest wait between two looks at the processes


class WorkerError(Exception):
    """Carries the worker's traceback as the cause of an EnvironmentFailure."""


class EnvPool:
    """`num_envs` environments, one worker each.

    A worker that has been told to reset or step owes one result; `recv` collects. Parameters that are sent meanwhile
    take effect after it. The first failure of a worker is raised once by whatever call meets it; results of the other
    workers stay available.

    Args:
        factory: called as `factory(worker)` inside the worker; picklable unless `inline`.
        num_envs: number of workers, at least 1.
        inline: run the environments in this process, for debugging; same interface and results.
        timeout: seconds that a worker may take for one reset or step.
        startup_timeout: seconds that the workers, which start in parallel, may take for building their environments.
        wait: until they are built; else `ready` does.

    Raises:
        EnvironmentFailure: an environment could not be built; all workers are closed.
        TypeError: the factory cannot be pickled.
        ValueError: num_envs < 1.
    """

    def __init__(
        self,
        factory: EnvFactory,
        num_envs: int,
        *,
        inline: bool = False,
        timeout: float = 60.0,
        startup_timeout: float = 120.0,
        wait: bool = True,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs: got {num_envs}, expected at least 1")
        self.num_envs = num_envs
        self._timeout = timeout
        self._workers: list[WorkerHandle] = []
        self._incarnations = [0] * num_envs  # stamped on results: ids of a new process are other agents
        self._doing = ["start-up"] * num_envs
        self._since = [0.0] * num_envs
        self._limit = [startup_timeout] * num_envs
        self._owing: set[int] = set()
        self._arrived: dict[int, EnvMessage] = {}
        self._dropped: dict[int, EnvMessage] = {}  # by a reset; what else they told comes with the next result
        self._failures: dict[int, str] = {}
        # Also runs when the pool is garbage or the interpreter exits: environments never outlive their pool.
        self._close = weakref.finalize(self, close_workers, self._workers)
        try:
            self._start(factory, inline)
        except BaseException:
            self.close()
            raise
        if wait:
            self.ready()

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def ready(self) -> None:
        """Wait until all environments are built. Raises EnvironmentFailure if one could not; all workers are closed."""
        try:
            self._gather(still_owing=0)
        except BaseException:
            self.close()
            raise

    def reset(self, parameters: Mapping[str, float] | None = None, seeds: Sequence[int] | None = None) -> None:
        """Tell all workers to reset; the first observations then come by `recv`.

        Results that are still owed or not yet taken belong to episodes that end here: they are waited for and dropped,
        but for behaviors that they show for the first time, and statistics. The caller discards what it holds of the
        episodes before (`Slots.discard`).

        Args:
            parameters: environment parameters (curriculum, randomization) that the new episodes start with.
            seeds: one per worker; all that follows depends on them and the actions alone.

        Raises:
            EnvironmentFailure: a worker failed, died or hung. One that takes no seed says so in place of its result.
        """
        self._expect_open()
        self._gather(still_owing=0)
        self._dropped, self._arrived = self._arrived, {}
        for worker in range(self.num_envs):
            self._command(worker, reset_message(parameters, None if seeds is None else seeds[worker]))
            self._owe(worker, "reset", self._timeout)

    def send(self, worker: int, actions: Mapping[str, Action]) -> None:
        """Tell one worker, whose last result has been taken, to step.

        Args:
            actions: by behavior id, one row for each agent that asked in the last result, in that order.

        Raises:
            EnvironmentFailure: the worker has failed or died.
            IndexError: there is no such worker.
            RuntimeError: the worker still owes a result, or its last one has not been taken.
        """
        self._expect_open()
        if not 0 <= worker < self.num_envs:
            raise IndexError(f"there is no worker {worker}; expected 0 to {self.num_envs - 1}")
        if worker in self._owing or worker in self._arrived:
            raise RuntimeError(
                f"worker {worker} was sent actions while its last {self._doing[worker]} is not received; recv first"
            )
        self._command(worker, encode_actions(actions))
        self._owe(worker, "step", self._timeout)

    def recv(self, min_ready: int = 1) -> list[EnvMessage]:
        """Wait until at least `min_ready` workers have answered and take all answers that are there.

        Returns:
            At most one result per worker; by index of the worker if `min_ready == num_envs`, else as they arrived.

        Raises:
            EnvironmentFailure: a worker failed, died or hung; EnvironmentClosed if its player was closed in order.
            RuntimeError: fewer than `min_ready` workers owe a result, so that the wait would never end.
        """
        self._expect_open()
        possible = len(self._owing) + len(self._arrived)
        if not 1 <= min_ready <= possible:
            raise RuntimeError(
                f"recv(min_ready={min_ready}): {possible} of {self.num_envs} workers owe a result; expected min_ready "
                "from 1 to that number; send actions or reset first"
            )
        self._gather(still_owing=possible - min_ready)
        results = list(self._arrived.values())
        self._arrived.clear()
        return sorted(results, key=lambda result: result.worker) if min_ready == self.num_envs else results

    def set_parameters(self, parameters: Mapping[str, float]) -> None:
        """Send environment parameters to all workers, for the episodes to come, without a reset.

        Raises:
            EnvironmentFailure: a worker has died. One whose environment refuses them says so in place of its next
                result.
        """
        self._expect_open()
        for worker in range(self.num_envs):
            self._command(worker, parameters_message(parameters))

    def hang_up(self) -> None:
        """Tell all environments to close, without waiting: `close` does."""
        for handle in self._workers:
            handle.hang_up()

    def close(self) -> None:
        """Close all environments and end all processes, in at most 18 s. May be called twice and after a failure."""
        for worker in self._owing:
            if self._doing[worker] == "start-up":  # would notice only when its environment is there
                self._workers[worker].force("terminate")
        self._close()

    def _start(self, factory: EnvFactory, inline: bool) -> None:
        pickled = b"" if inline else pickle_factory(factory)
        for worker in range(self.num_envs):
            handle = InlineHandle(factory, worker) if inline else ProcessHandle(pickled, worker, self._timeout)
            self._workers.append(handle)
            self._owe(worker, "start-up", self._limit[worker])

    def _expect_open(self) -> None:
        if not self._close.alive:
            raise RuntimeError("the pool is closed; make a new one")

    def _owe(self, worker: int, doing: str, limit: float) -> None:
        self._owing.add(worker)
        self._doing[worker], self._since[worker], self._limit[worker] = doing, time.monotonic(), limit

    def _command(self, worker: int, command: Message) -> None:
        if worker in self._failures:
            raise EnvironmentFailure(f"{self._failures[worker]} (earlier; the worker was not replaced)")
        try:
            self._workers[worker].send(command)
        except (ChannelClosedError, ChannelTimeoutError) as error:
            self._doing[worker] = command.kind
            self._look_after(worker)  # its last words say more than a closed socket
            self._fail_for_silence(worker, error)

    def _gather(self, still_owing: int) -> None:
        """Take all answers that are there, and wait until at most `still_owing` workers owe one."""
        for worker in sorted(self._owing) if still_owing else ():  # else all of them will be heard below
            self._look_after(worker)
        while len(self._owing) > still_owing:
            watched = {item: worker for worker in self._owing for item in self._workers[worker].waitables()}
            woken = {watched[item] for item in wait(watched, _SLICE_SECONDS)} or self._owing
            for worker in sorted(woken):
                self._look_after(worker)

    def _look_after(self, worker: int) -> None:
        """Take the worker's answer if it is there; raise if it failed, died or is late."""
        handle, ended = self._workers[worker], False
        try:
            message = handle.poll()
            if message is None and (ended := handle.has_ended()):
                message = handle.poll()  # once more: what it sent last still counts
        except (ChannelClosedError, ChannelTimeoutError) as error:
            self._fail_for_silence(worker, error)
        if message is None:
            late = worker in self._owing and time.monotonic() - self._since[worker] > self._limit[worker]
            if ended or late:
                self._fail_for_silence(worker, None)
            return
        if message.kind == "failure":
            self._fail_as_reported(worker, message.facts)
        self._owing.discard(worker)
        if message.kind == "ready" and message.facts:
            logger.info("%s (worker %d)", message.facts, worker)
        if message.kind == "result":
            self._arrived[worker] = self._received(decode_result(message, worker, self._incarnations[worker]))

    def _received(self, result: EnvMessage) -> EnvMessage:
        dropped = self._dropped.pop(result.worker, None)
        if dropped is None:
            return result
        return result._replace(
            new_specs={**dropped.new_specs, **result.new_specs}, stats=(*dropped.stats, *result.stats)
        )

    def _fail_as_reported(self, worker: int, report: FailureReport) -> NoReturn:
        logger.debug("environment worker %d failed during its %s:\n%s", worker, report.doing, report.trace)
        if report.orderly:
            self._fail(worker, f"has closed: {report.summary}", WorkerError(report.trace), EnvironmentClosed)
        self._fail(worker, f"failed during its {report.doing}: {report.summary}", WorkerError(report.trace))

    def _fail_for_silence(self, worker: int, cause: ChannelClosedError | ChannelTimeoutError | None) -> NoReturn:
        self._fail(worker, why_silent(self._workers[worker], self._doing[worker], self._since[worker], cause), cause)

    def _fail(self, worker: int, text: str, cause: Exception | None, kind: type = EnvironmentFailure) -> NoReturn:
        self._owing.discard(worker)
        self._failures[worker] = f"environment worker {worker} {text}"
        raise kind(self._failures[worker]) from cause
