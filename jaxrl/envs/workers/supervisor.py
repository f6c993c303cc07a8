"""Supervises one worker of a pool through all its processes: owed results, time limits, failures and restarts.

A failed process ends beside the others' work (`Retirement`); then the next one starts, is reset with the newest
parameters and owes the result instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from jaxrl.envs.interface import EnvironmentClosed, EnvironmentFailure
from jaxrl.envs.workers.handles import WorkerHandle
from jaxrl.envs.workers.restarts import Loss, Restarts
from jaxrl.envs.workers.transport import ChannelClosedError, ChannelTimeoutError, Message, decode_result
from jaxrl.envs.workers.worker import FailureReport, FaultKind, reset_message
from jaxrl.types import EnvMessage, ParameterValue

logger = logging.getLogger(__name__)

START = "start-up"
"""Activity of a worker until its first reset."""
_END = "end"
_EXIT_SECONDS = 1.0  # for the exit code of a process whose socket has closed

_ADVICE_DEAD = {
    True: "Its output above may say why; a training script needs the guard `if __name__ == '__main__':`, because each "
    "worker imports the script again",
    False: "Killed from outside, out of memory, or crashed in native code: its output above may say why",
}
_ADVICE_SILENT = (
    "Check that the environment runs (not paused, no dialog open) and that its agents request decisions; if it is only "
    "slow, allow more time"
)
_CLOSE_SECONDS = 10.0  # for a worker that closes its environment by itself, which takes less than 8 s
_TERMINATE_SECONDS = 4.0  # after SIGTERM a worker has 3 s for closing its environment
_MOMENT = 0.05
LONGEST_SECONDS = 60.0
"""Longest time from the beginning to the end of a process, unless the system keeps it."""
_BAD_DATA = "; or set env_settings.on_bad_data: restart, which starts such an environment again"


class WorkerError(Exception):
    """Carries the worker's traceback as the cause of an EnvironmentFailure."""


class Supervisor:
    """Commands one worker, reads its answers, and restarts it after a failure if that is allowed; else it raises.

    Args:
        number: of the worker.
        launch: (worker, incarnation) → its process, which starts.
        inbox: gets the results of the worker and the losses of its processes.
        timeout: seconds for one reset or step.
        startup_timeout: seconds for building its environment.
        restarts: its restarts; None: none are allowed.
        restart_bad_data: restart it also after an agent's data that cannot be used.
        others_run: returns whether another worker of the pool gives results: then a closed one is started again.
    """

    def __init__(
        self,
        number: int,
        launch: Callable[[int, int], WorkerHandle],
        inbox: Inbox,
        *,
        timeout: float,
        startup_timeout: float,
        restarts: Restarts | None,
        restart_bad_data: bool,
        others_run: Callable[[], bool],
    ) -> None:
        self.number = number
        self._launch = launch
        self._inbox = inbox
        self._timeout, self._startup_timeout = timeout, startup_timeout
        self._restarts = restarts
        self._restart_bad_data = restart_bad_data
        self._others_run = others_run
        self._incarnation = 0  # stamped on results: ids of a new process are other agents
        self._proven = False  # one of its processes has given a result, so that another one may
        self._answered = False  # this process has given a result
        self._lost_at = 0.0  # time of the loss of the process before
        self._failure: str | None = None  # reason why it is not started again
        self.retirement: Retirement | None = None  # of the last process, before another one starts
        self.handle = launch(number, 0)
        self._owe(START, startup_timeout)

    def ask(self, command: Message) -> None:
        """Send a command that is answered by a result.

        Raises:
            EnvironmentFailure: the worker has failed or died, and is not started again.
        """
        if self.tell(command):
            self._owe(command.kind, self._timeout)

    def tell(self, command: Message) -> bool:
        """Send a command. Return False if the worker has failed and is started again. Raises as `ask`."""
        if self._failure is not None:
            raise EnvironmentFailure(f"{self._failure} (earlier; the worker was not replaced)")
        try:
            self.handle.send(command)
        except (ChannelClosedError, ChannelTimeoutError) as error:
            self.doing = command.kind
            self._hear()  # its last words say more than a closed socket
            if self.retirement is None:
                self._fail_for_silence(error)
            return False
        return True

    def look_after(self, parameters: Mapping[str, ParameterValue] | None) -> None:
        """Take the worker's answer if it is there, or start it again.

        Args:
            parameters: parameters of another process's first reset; None: there was no reset.

        Raises:
            EnvironmentFailure: it failed, died or is late, and is not started again.
        """
        if self.retirement is not None:
            self._replace(self.retirement)
        elif self._hear() and self._incarnation and parameters is not None:
            self.ask(reset_message(parameters))

    def waitables(self) -> list[Any]:
        """Return objects that show an answer, see `WorkerHandle.waitables`."""
        ended = self.retirement is not None and self.handle.has_ended()
        return [] if ended else self.handle.waitables()

    def reopen(self) -> None:
        """Start another process for a worker that was closed in order, which is no fault."""
        self._failure = None
        self._retire("was closed", hangs=False, pause=0.0, in_order=True)

    @property
    def runs(self) -> bool:
        """Its present process has given a result and is not known to have ended."""
        return self._answered and self.retirement is None and self._failure is None

    def _owe(self, doing: str, limit: float) -> None:
        self.owes, self.doing, self._since, self._limit = True, doing, time.monotonic(), limit

    def _is_late(self) -> bool:
        return time.monotonic() - self._since > self._limit

    def _hear(self) -> bool:
        """Take the worker's answer, or notice that it is silent; return True if its environment is built."""
        handle, ended = self.handle, False
        try:
            message = handle.poll()
            if message is None and (ended := handle.has_ended()):
                message = handle.poll()  # once more: its last message still counts
        except (ChannelClosedError, ChannelTimeoutError) as error:
            self._fail_for_silence(error)
            return False
        if message is None:
            if ended or (self.owes and self._is_late()):
                self._fail_for_silence(None)
        elif message.kind == "failure":
            self._fail_as_reported(message.facts)
        elif message.kind == "ready":
            self.owes = False
            if message.facts:
                logger.info("%s (worker %d)", message.facts, self.number)
            return True
        else:
            self.owes = False
            if not self._answered:
                self._answers_first()
            self._take(decode_result(message, self.number, self._incarnation))
        return False

    def _take(self, result: EnvMessage) -> None:
        """Take a result. Failed copies count as restarts of the worker; the result is dropped if they are too many."""
        now = time.monotonic()
        for fault in result.faults:
            text = f"failed in one of its copies: {fault.why}"
            refusal = self._restarts.refusal(now) if self._restarts is not None else "it has no restarts"
            if refusal is not None or (fault.bad_data and not self._restart_bad_data):
                kind = FaultKind.BAD_DATA if fault.bad_data else FaultKind.FAULT
                self._fail(text, None, kind, hangs=False)
                return
            assert self._restarts is not None
            self._restarts.begin(now, in_vain=False)
            logger.warning("A copy in worker %d is made anew (%s): it %s", self.number, self._restarts, text)
            self._inbox.lose(Loss(self.number, self._incarnation, text, agents=fault.agents))
        self._inbox.put(result)

    def _answers_first(self) -> None:
        self._proven = self._answered = True
        if self._incarnation:
            waited = time.monotonic() - self._lost_at
            logger.info("Environment worker %d answers again, %.1f s after it was missed.", self.number, waited)

    def _fail_as_reported(self, report: FailureReport) -> None:
        logger.debug("environment worker %d failed during its %s:\n%s", self.number, report.doing, report.trace)
        closed = report.kind is FaultKind.CLOSED
        text = f"has closed: {report.summary}" if closed else f"failed during its {report.doing}: {report.summary}"
        self._fail(text, WorkerError(report.trace), report.kind, hangs=False)

    def _fail_for_silence(self, cause: ChannelClosedError | ChannelTimeoutError | None) -> None:
        """Fail a worker that has died, or hangs, with the cause and what to do in words."""
        known = self.handle.diagnose(_EXIT_SECONDS if isinstance(cause, ChannelClosedError) else 0.0)
        if self.handle.has_ended():
            text = f"died during its {self.doing}: {known}. {_ADVICE_DEAD[self.doing == START]}"
        else:
            waited = time.monotonic() - self._since
            text = f"has not answered its {self.doing} for {waited:.1f} s: {known}. {_ADVICE_SILENT}"
        self._fail(text, cause, FaultKind.FAULT, hangs=True)

    def _fail(self, text: str, cause: Exception | None, kind: FaultKind, *, hangs: bool) -> None:
        """Start the worker again, or raise the failure if that is not allowed."""
        now = time.monotonic()
        self.owes = False
        failure = f"environment worker {self.number} {text}"
        mendable = kind is not FaultKind.OURS
        if kind is FaultKind.CLOSED and (self._restarts is None or not self._others_run()):
            mendable = False  # all are closed
        if kind is FaultKind.BAD_DATA and not self._restart_bad_data:
            mendable, failure = False, f"{failure}{_BAD_DATA}"
        if self._restarts is not None and mendable and (self._proven or kind is FaultKind.PORT_TAKEN):
            refusal = self._restarts.refusal(now)
            if refusal is None:
                pause = self._restarts.begin(now, in_vain=not self._answered)
                logger.warning("Environment worker %d is started again (%s): it %s", self.number, self._restarts, text)
                self._retire(text, hangs=hangs, pause=pause)
                return
            failure = f"environment worker {self.number} is not started again: {refusal}. At last it {text}"
            kind = FaultKind.FAULT
        self._failure = failure
        raise (EnvironmentClosed if kind is FaultKind.CLOSED else EnvironmentFailure)(failure) from cause

    def _retire(self, why: str, *, hangs: bool, pause: float, in_order: bool = False) -> None:
        """Let the process end beside the others' work; until then the worker owes the result of the next one."""
        self._inbox.lose(Loss(self.number, self._incarnation, why, in_order))
        self._lost_at = self._lost_at if self._incarnation and not self._answered else time.monotonic()
        self.retirement = Retirement(self.handle, hangs=hangs, pause=pause)
        self._owe(_END, LONGEST_SECONDS + pause)

    def _replace(self, retirement: Retirement) -> None:
        """Start the next process if the last one has ended."""
        if retirement.over():
            self.handle.join(0.0)
            self.retirement = None
            self._answered, self._incarnation = False, self._incarnation + 1
            self.handle = self._launch(self.number, self._incarnation)
            self._owe(START, self._startup_timeout)
        elif self._is_late():
            self.owes = False
            known = self.handle.diagnose(0.0)
            self._failure = f"environment worker {self.number} cannot be started again, it does not end: {known}"
            raise EnvironmentFailure(f"{self._failure}. End it by hand, then continue with --resume")


class Retirement:
    """The end of a worker's failed process; another may take its place once `over`.

    Args:
        handle: handle of the old process. It is asked to stop at once.
        hangs: it does not answer, so that a request to stop would only lose time.
        pause: seconds from now before which `over` stays False.
    """

    def __init__(self, handle: WorkerHandle, *, hangs: bool, pause: float) -> None:
        now = time.monotonic()
        self._due = now + pause
        self._handle = handle
        terminate = now if hangs else now + _CLOSE_SECONDS
        self._steps: list[tuple[float, Literal["terminate", "kill"]]] = [
            (terminate, "terminate"),
            (terminate + _TERMINATE_SECONDS, "kill"),
        ]
        handle.hang_up()

    def over(self) -> bool:
        """Return whether the process has ended and the wait is over; use more force if its time is up."""
        now = time.monotonic()
        if self._handle.has_ended():
            return now >= self._due
        if self._steps and now >= self._steps[0][0]:
            self._handle.force(self._steps.pop(0)[1])
        return False

    def pause(self) -> float:
        """Return seconds until the next look, if nothing happens before; a moment at least."""
        return max(self._due - time.monotonic(), _MOMENT)


class Inbox:
    """At most one result of each worker, and every loss.

    A dropped result belongs to episodes that are over. Its specs of new behaviors, and statistics, are kept: they come
    with the worker's next result.
    """

    def __init__(self) -> None:
        self._results: dict[int, EnvMessage] = {}  # by worker, in the order in which they came
        self._dropped: dict[int, EnvMessage] = {}
        self._losses: list[Loss] = []

    def __len__(self) -> int:
        """Return the number of results."""
        return len(self._results)

    def __contains__(self, worker: int) -> bool:
        """Return whether there is a result of this worker."""
        return worker in self._results

    def put(self, result: EnvMessage) -> None:
        """Add a result."""
        dropped = self._dropped.pop(result.worker, None)
        if dropped is not None:
            result = result._replace(
                new_specs={**dropped.new_specs, **result.new_specs},
                identities={**dropped.identities, **result.identities},
                stats=(*dropped.stats, *result.stats),
            )
        self._results[result.worker] = result

    def take(self) -> list[EnvMessage]:
        """Return and remove all results, in the order in which they came."""
        results = list(self._results.values())
        self._results.clear()
        return results

    def drop(self) -> None:
        """Drop every result, as all episodes end."""
        self._dropped, self._results = self._results, {}

    def lose(self, loss: Loss) -> None:
        """Add the loss of a process or a copy; a result of a lost process is dropped."""
        self._losses.append(loss)
        if loss.agents is None and loss.worker in self._results:
            self._dropped[loss.worker] = self._results.pop(loss.worker)

    def take_losses(self) -> list[Loss]:
        """Return and remove all losses, in the order in which they were noticed."""
        losses, self._losses = self._losses, []
        return losses
