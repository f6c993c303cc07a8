"""Several environments behind one `send` and `recv`, each in its own numpy-only process or all inline.

The caller sends actions to any worker that has answered and takes results as they come: with `min_ready == num_envs`
all of them, in the order of the workers (reproducible), with less whatever is there (faster). A worker that fails gets
another process within `RestartLimits`; nobody else notices (M17, S22, U31, U32).
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxrl.envs.interface import EnvironmentClosed, EnvironmentFailure
from jaxrl.envs.workers.diagnosis import why_silent
from jaxrl.envs.workers.handles import EnvFactory, WorkerHandle, wait
from jaxrl.envs.workers.launcher import launcher
from jaxrl.envs.workers.restarts import Loss, RestartLimits, Restarts
from jaxrl.envs.workers.retirement import LONGEST_SECONDS, Retirement
from jaxrl.envs.workers.shutdown import close_workers
from jaxrl.envs.workers.transport import ChannelClosedError, ChannelTimeoutError, Message, decode_result, encode_actions
from jaxrl.envs.workers.worker import FailureReport, FaultKind, parameters_message, reset_message
from jaxrl.types import Action, EnvMessage, ParameterValue

logger = logging.getLogger(__name__)

_SLICE_SECONDS = 0.5  # longest wait between two looks at the processes
_START, _RESET, _END = "start-up", "reset", "end"
_BAD_DATA = "; or set env_settings.on_bad_data: restart, which starts such an environment again"


class WorkerError(Exception):
    """Carries the worker's traceback as the cause of an EnvironmentFailure."""


@dataclass
class _Worker:
    """What one worker does, and for how long it may."""

    restarts: Restarts | None  # None: never
    doing: str = _START
    since: float = 0.0
    limit: float = 0.0
    incarnation: int = 0  # stamped on results: ids of a new process are other agents
    proven: bool = False  # a process of it has given a result, so that another one may
    answered: bool = False  # this process has
    lost_at: float = 0.0  # when the one before was missed
    failure: str | None = None  # it is not started again


class EnvPool:
    """`num_envs` environments, one worker each.

    A worker that has been told to reset or step owes one result; `recv` collects. Parameters that are sent meanwhile
    take effect after it. A worker that fails, once it has given a result, is started again with the newest parameters
    and reset: it goes on owing a result, the first one of its new process, whose incarnation is one higher; `losses`
    tells. A failure beyond the limits, or before the first result of a worker (a wrong build never starts; but a port
    may be taken), is raised once by whatever call meets it; results of the other workers stay available.

    Args:
        factory: called as `factory(worker)` inside the worker; picklable unless `inline`.
        num_envs: number of workers, at least 1.
        inline: run the environments in this process, for debugging; same interface and results.
        cluster: `ray://HOST:PORT` or `ray://auto`: on the machines of a Ray cluster; same interface and results.
        timeout: seconds that a worker may take for one reset or step.
        startup_timeout: seconds that the workers, which start in parallel, may take for building their environments.
        wait: until they are built; else `ready` does.
        limits: of restarts, for each worker; None: nobody is started again.
        restart_bad_data: start anew also after data of an agent that cannot be used; else that is an error.

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
        cluster: str | None = None,
        timeout: float = 60.0,
        startup_timeout: float = 120.0,
        wait: bool = True,
        limits: RestartLimits | None = None,
        restart_bad_data: bool = False,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs: got {num_envs}, expected at least 1")
        self.num_envs = num_envs
        self._timeout, self._startup_timeout = timeout, startup_timeout
        self._restart_bad_data = restart_bad_data
        self._launch = launcher(factory, timeout, inline=inline, cluster=cluster)
        self._handles: list[WorkerHandle] = []
        self._workers = [_Worker(limits and Restarts(limits)) for _ in range(num_envs)]
        self._parameters: dict[str, ParameterValue] | None = None  # all that were sent; None: nobody has been reset
        self._owing: set[int] = set()
        self._arrived: dict[int, EnvMessage] = {}
        self._dropped: dict[int, EnvMessage] = {}  # by a reset; what else they told comes with the next result
        self._losses: list[Loss] = []
        self._retiring: dict[int, Retirement] = {}  # last processes of workers that are started again
        # Also runs when the pool is garbage or the interpreter exits: environments never outlive their pool.
        self._close = weakref.finalize(self, close_workers, self._handles)
        try:
            for worker in range(num_envs):
                self._handles.append(self._launch(worker, 0))
                self._owe(worker, _START, startup_timeout)
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

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None, seeds: Sequence[int] | None = None) -> None:
        """Tell all workers to reset; the first observations then come by `recv`.

        Results that are still owed or not yet taken belong to episodes that end here: they are waited for and dropped,
        but for behaviors that they show for the first time, and statistics. The caller discards what it holds of the
        episodes before (`Slots.discard`).

        Args:
            parameters: environment parameters (curriculum, randomization) that the new episodes start with.
            seeds: one per worker; all that follows depends on them and the actions alone.

        Raises:
            EnvironmentFailure: a worker failed, died or hung, and is not started again. One that takes no seed says so
                in place of its result.
        """
        self._expect_open()
        self._gather(still_owing=0)
        self._dropped, self._arrived = self._arrived, {}
        self._parameters = {**(self._parameters or {}), **(parameters or {})}
        for worker in range(self.num_envs):
            if self._command(worker, reset_message(parameters, None if seeds is None else seeds[worker])):
                self._owe(worker, _RESET, self._timeout)

    def send(self, worker: int, actions: Mapping[str, Action]) -> None:
        """Tell one worker, whose last result has been taken, to step.

        Args:
            actions: by behavior id, one row for each agent that asked in the last result, in that order.

        Raises:
            EnvironmentFailure: the worker has failed or died, and is not started again.
            IndexError: there is no such worker.
            RuntimeError: the worker still owes a result, or its last one has not been taken.
        """
        self._expect_open()
        if not 0 <= worker < self.num_envs:
            raise IndexError(f"there is no worker {worker}; expected 0 to {self.num_envs - 1}")
        if worker in self._owing or worker in self._arrived:
            doing = self._workers[worker].doing
            raise RuntimeError(f"worker {worker} was sent actions while its last {doing} is not received; recv first")
        if self._command(worker, encode_actions(actions)):
            self._owe(worker, "step", self._timeout)

    def recv(self, min_ready: int = 1) -> list[EnvMessage]:
        """Wait until at least `min_ready` workers have answered and take all answers that are there.

        Returns:
            At most one result per worker; by index of the worker if `min_ready == num_envs`, else as they arrived.

        Raises:
            EnvironmentFailure: a worker failed, died or hung, and is not started again; EnvironmentClosed if its
                player was closed in order.
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

    def losses(self) -> list[Loss]:
        """Processes that were lost since the last call, in the order in which that was noticed.

        What their agents had begun is never heard of again; a result of a higher incarnation comes after it.
        """
        losses, self._losses = self._losses, []
        return losses

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        """Send environment parameters to all workers, for the episodes to come, without a reset.

        Raises:
            EnvironmentFailure: a worker has died, and is not started again. One whose environment refuses them says so
                in place of its next result.
        """
        self._expect_open()
        self._parameters = {**(self._parameters or {}), **parameters}
        for number, worker in enumerate(self._workers):
            if number not in self._retiring and worker.doing != _START:  # those get them with their first reset
                self._command(number, parameters_message(parameters))

    def reopen(self, worker: int) -> None:
        """After an EnvironmentClosed: another process for the worker, which waits until somebody opens it again.

        The worker owes its first result, and `losses` tells, as after a fault; it does not count as one.
        """
        self._expect_open()
        self._workers[worker].failure = None
        self._retire(worker, "was closed", hangs=False, pause=0.0, in_order=True)

    def hang_up(self) -> None:
        """Tell all environments to close, without waiting: `close` does."""
        for handle in self._handles:
            handle.hang_up()

    def close(self) -> None:
        """Close all environments and end all processes, in at most 18 s. May be called twice and after a failure."""
        for worker in self._owing:
            if self._workers[worker].doing == _START:  # would notice only when its environment is there
                self._handles[worker].force("terminate")
        self._close()

    def _expect_open(self) -> None:
        if not self._close.alive:
            raise RuntimeError("the pool is closed; make a new one")

    def _owe(self, worker: int, doing: str, limit: float) -> None:
        self._owing.add(worker)
        record = self._workers[worker]
        record.doing, record.since, record.limit = doing, time.monotonic(), limit

    def _command(self, worker: int, command: Message) -> bool:
        """Hand it over. False: the worker has failed and is started again."""
        record = self._workers[worker]
        if record.failure is not None:
            raise EnvironmentFailure(f"{record.failure} (earlier; the worker was not replaced)")
        try:
            self._handles[worker].send(command)
        except (ChannelClosedError, ChannelTimeoutError) as error:
            record.doing = command.kind
            self._look_after(worker)  # its last words say more than a closed socket
            if worker not in self._retiring:
                self._fail_for_silence(worker, error)
            return False
        return True

    def _gather(self, still_owing: int) -> None:
        """Take all answers that are there, and wait until at most `still_owing` workers owe one."""
        for worker in sorted(self._owing) if still_owing else ():  # else all of them will be heard below
            self._look_after(worker)
        while len(self._owing) > still_owing:
            for worker in sorted(self._await_news()):
                self._look_after(worker)

    def _await_news(self) -> set[int]:
        """Wait a moment: the owing workers of whom there is something to hear, or else all of them."""
        watched = {item: worker for worker in self._owing for item in self._waitables(worker)}
        seconds = min([_SLICE_SECONDS, *(retirement.pause() for retirement in self._retiring.values())])
        if self._retiring and not watched:
            time.sleep(seconds)
        return {watched[item] for item in wait(watched, seconds)} or set(self._owing)

    def _waitables(self, worker: int) -> list[Any]:
        ended = worker in self._retiring and self._handles[worker].has_ended()
        return [] if ended else self._handles[worker].waitables()

    def _look_after(self, worker: int) -> None:
        """Take the worker's answer if it is there, or start it again; raise if it failed, died or is late for good."""
        handle, record, ended = self._handles[worker], self._workers[worker], False
        if worker in self._retiring:
            self._replace(worker)
            return
        try:
            message = handle.poll()
            if message is None and (ended := handle.has_ended()):
                message = handle.poll()  # once more: what it sent last still counts
        except (ChannelClosedError, ChannelTimeoutError) as error:
            self._fail_for_silence(worker, error)
            return
        if message is None:
            late = worker in self._owing and time.monotonic() - record.since > record.limit
            if ended or late:
                self._fail_for_silence(worker, None)
        elif message.kind == "failure":
            self._fail_as_reported(worker, message.facts)
        elif message.kind == "ready":
            self._is_ready(worker, message.facts.about)
        else:
            self._owing.discard(worker)
            if not record.answered:
                self._answers_first(worker)
            self._arrived[worker] = self._received(decode_result(message, worker, record.incarnation))

    def _is_ready(self, worker: int, about: str) -> None:
        record = self._workers[worker]
        self._owing.discard(worker)
        if about:
            logger.info("%s (worker %d)", about, worker)
        if record.incarnation and self._parameters is not None:
            record.doing = _RESET
            if self._command(worker, reset_message(self._parameters)):
                self._owe(worker, _RESET, self._timeout)

    def _answers_first(self, worker: int) -> None:
        record = self._workers[worker]
        record.proven = record.answered = True
        if record.incarnation:
            waited = time.monotonic() - record.lost_at
            logger.info("Environment worker %d answers again, %.1f s after it was missed.", worker, waited)

    def _received(self, result: EnvMessage) -> EnvMessage:
        dropped = self._dropped.pop(result.worker, None)
        if dropped is None:
            return result
        return result._replace(
            new_specs={**dropped.new_specs, **result.new_specs}, stats=(*dropped.stats, *result.stats)
        )

    def _fail_as_reported(self, worker: int, report: FailureReport) -> None:
        logger.debug("environment worker %d failed during its %s:\n%s", worker, report.doing, report.trace)
        closed = report.kind is FaultKind.CLOSED
        text = f"has closed: {report.summary}" if closed else f"failed during its {report.doing}: {report.summary}"
        self._fail(worker, text, WorkerError(report.trace), report.kind, hangs=False)

    def _fail_for_silence(self, worker: int, cause: ChannelClosedError | ChannelTimeoutError | None) -> None:
        record = self._workers[worker]
        text = why_silent(self._handles[worker], record.doing, record.since, cause)
        self._fail(worker, text, cause, FaultKind.FAULT, hangs=True)

    def _fail(self, worker: int, text: str, cause: Exception | None, kind: FaultKind, *, hangs: bool) -> None:
        """Start the worker again; raise what happened if that is not to be."""
        record, now = self._workers[worker], time.monotonic()
        self._owing.discard(worker)
        failure = f"environment worker {worker} {text}"
        mendable = kind not in (FaultKind.CLOSED, FaultKind.OURS)
        if kind is FaultKind.BAD_DATA and not self._restart_bad_data:
            mendable, failure = False, f"{failure}{_BAD_DATA}"
        if record.restarts is not None and mendable and (record.proven or kind is FaultKind.PORT_TAKEN):
            refusal = record.restarts.refusal(now)
            if refusal is None:
                pause = record.restarts.begin(now, in_vain=not record.answered)
                logger.warning("Environment worker %d is started again (%s): it %s", worker, record.restarts, text)
                self._retire(worker, text, hangs=hangs, pause=pause)
                return
            failure = f"environment worker {worker} is not started again: {refusal}. At last it {text}"
        record.failure = failure
        raise (EnvironmentClosed if kind is FaultKind.CLOSED else EnvironmentFailure)(failure) from cause

    def _retire(self, worker: int, why: str, *, hangs: bool, pause: float, in_order: bool = False) -> None:
        """The worker's process ends beside the others' work; until then the worker owes the result of the next one."""
        record = self._workers[worker]
        self._losses.append(Loss(worker, record.incarnation, why, in_order))
        record.lost_at = record.lost_at if record.incarnation and not record.answered else time.monotonic()
        if worker in self._arrived:  # of agents that are no more
            self._dropped[worker] = self._arrived.pop(worker)
        self._retiring[worker] = Retirement(self._handles[worker], hangs=hangs, pause=pause)
        self._owe(worker, _END, LONGEST_SECONDS + pause)

    def _replace(self, worker: int) -> None:
        """Start the next process if the last one has ended."""
        record, handle = self._workers[worker], self._handles[worker]
        if self._retiring[worker].over():
            handle.join(0.0)
            del self._retiring[worker]
            record.answered, record.incarnation = False, record.incarnation + 1
            self._handles[worker] = self._launch(worker, record.incarnation)
            self._owe(worker, _START, self._startup_timeout)
        elif time.monotonic() - record.since > record.limit:
            self._owing.discard(worker)
            known = handle.diagnose(0.0)
            record.failure = f"environment worker {worker} cannot be started again, it does not end: {known}"
            raise EnvironmentFailure(f"{record.failure}. End it by hand, then continue with --resume")
