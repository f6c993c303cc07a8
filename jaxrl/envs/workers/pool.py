"""Runs several environments behind one `send` and `recv`, each in its own numpy-only process or all inline.

The caller sends actions to any worker that has answered and takes results as they come: with `min_ready == num_envs`
all of them, in the order of the workers (reproducible), with less those that are there (faster). A worker that fails
gets another process within `RestartLimits`; the others are not affected.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from jaxrl.envs.behavior_names import BehaviorNames, SharedNames
from jaxrl.envs.parameters import of_worker
from jaxrl.envs.workers.handles import EnvFactory, InlineHandle, ProcessHandle, WorkerHandle, pickle_factory
from jaxrl.envs.workers.owing import Owing
from jaxrl.envs.workers.restarts import Loss, RestartLimits, Restarts
from jaxrl.envs.workers.supervisor import START, Inbox, Supervisor
from jaxrl.envs.workers.transport import Message, encode_actions
from jaxrl.envs.workers.worker import parameters_message, reset_message
from jaxrl.types import Action, EnvMessage, ParameterValue

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 10.0
_FORCE_SECONDS = 4.0  # after SIGTERM a worker has 3 s for closing its environment
_HURRY_SECONDS = 1.0


class EnvPool:
    """`num_envs` environments, one worker each.

    A worker that was sent a reset or step owes one result; `recv` collects. Parameters that are sent meanwhile take
    effect after it. A worker that fails, once it has given a result, is started again with the newest parameters and
    reset: it still owes a result, the first one of its new process, whose incarnation is one higher; `losses` reports
    it. A failure beyond the limits, or before the first result of a worker (a wrong build never starts; but a port may
    be taken), is raised once by the call that meets it; results of the other workers stay available. A worker whose
    environment was closed is started again, too, as long as another one runs.

    Args:
        factory: called as `factory(worker)` inside the worker; picklable unless `inline`.
        num_envs: number of workers, at least 1.
        inline: run the environments in this process, for debugging; same interface and results.
        cluster: `ray://HOST:PORT` or `ray://auto`: on the machines of a Ray cluster; same interface and results.
        timeout: seconds that a worker may take for one reset or step.
        startup_timeout: seconds that the workers, which start in parallel, may take for building their environments.
        wait: return when they are built; else `ready` waits.
        limits: of restarts, for each worker; None: no restarts.
        restart_bad_data: restart also after an agent's data that cannot be used; else that is an error.
        names: of behaviors, in this pool and others of the run.

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
        names: BehaviorNames | None = None,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs: got {num_envs}, expected at least 1")
        self.num_envs = num_envs
        # All parameters that were sent, by worker; None: there was no reset.
        self._parameters: list[dict[str, ParameterValue]] | None = None
        self._inbox = Inbox()
        self.names = BehaviorNames() if names is None else names
        self._shared_names = SharedNames(self.names)
        self._workers: list[Supervisor] = []
        self._owing = Owing()
        launch = _launcher(factory, timeout, inline=inline, cluster=cluster)
        # Also runs when the pool is garbage or the interpreter exits: environments never outlive their pool.
        self._close = weakref.finalize(self, _close_workers, self._workers)
        try:
            for number in range(num_envs):
                worker = Supervisor(
                    number,
                    launch,
                    self._inbox,
                    timeout=timeout,
                    startup_timeout=startup_timeout,
                    restarts=limits and Restarts(limits),
                    restart_bad_data=restart_bad_data,
                    others_run=partial(_others_run, self._workers, number),
                )
                self._workers.append(worker)
                self._owing.follow(worker)
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
        """Send a reset to all workers; the first observations then come by `recv`.

        Results that are still owed or not yet taken belong to episodes that end here: they are waited for and dropped,
        except their specs of new behaviors, and statistics. The caller discards its data of the episodes before
        (`Slots.discard`).

        Args:
            parameters: environment parameters (curriculum, randomization) that the new episodes start with.
            seeds: one per worker; everything that follows depends on them and the actions alone.

        Raises:
            EnvironmentFailure: a worker failed, died or hung, and is not started again. A worker that takes no seed
                reports that in place of its result.
        """
        self._expect_open()
        self._gather(still_owing=0)
        self._inbox.drop()
        by_worker = self._note(parameters or {})
        for number, worker in enumerate(self._workers):
            self._ask(worker, reset_message(by_worker[number], None if seeds is None else seeds[number]))

    def send(self, worker: int, actions: Mapping[str, Action]) -> None:
        """Send a step to one worker, whose last result has been taken.

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
        supervisor = self._workers[worker]
        if supervisor.owes or worker in self._inbox:
            raise RuntimeError(
                f"worker {worker} was sent actions while its last {supervisor.doing} is not received; recv first"
            )
        self._ask(supervisor, encode_actions(self._shared_names.sent(worker, actions)))

    def recv(self, min_ready: int = 1) -> list[EnvMessage]:
        """Wait until at least `min_ready` workers have answered and take all available answers.

        Returns:
            At most one result per worker; by index of the worker if `min_ready == num_envs`, else as they arrived.

        Raises:
            EnvironmentFailure: a worker failed, died or hung, and is not started again; EnvironmentClosed if its
                player was closed in order.
            RuntimeError: fewer than `min_ready` workers owe a result, so that the wait would never end.
        """
        self._expect_open()
        possible = len(self._owing) + len(self._inbox)
        if not 1 <= min_ready <= possible:
            raise RuntimeError(
                f"recv(min_ready={min_ready}): {possible} of {self.num_envs} workers owe a result; expected min_ready "
                "from 1 to that number; send actions or reset first"
            )
        self._gather(still_owing=possible - min_ready)
        results = self._inbox.take()
        if min_ready == self.num_envs:
            results.sort(key=lambda result: result.worker)
        return self._shared_names.received(results)

    def losses(self) -> list[Loss]:
        """Return processes that were lost since the last call, in the order in which the losses were noticed.

        Their agents' open episodes are lost; results of a higher incarnation follow.
        """
        losses, names = self._inbox.take_losses(), self._shared_names
        return [
            loss if loss.agents is None else loss._replace(agents=names.lost(loss.worker, loss.agents))
            for loss in losses
        ]

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        """Send environment parameters to all workers, for the episodes to come, without a reset.

        Raises:
            EnvironmentFailure: a worker has died, and is not started again. A worker whose environment refuses them
                reports that in place of its next result.
        """
        self._expect_open()
        for worker, told in zip(self._workers, self._note(parameters), strict=True):
            if worker.retirement is None and worker.doing != START:  # these workers get them with their first reset
                try:
                    worker.tell(parameters_message(told))
                finally:
                    self._owing.follow(worker)

    def reopen(self, worker: int) -> None:
        """Start another process for a worker after an EnvironmentClosed; it waits until a user opens it again.

        The worker owes its first result, and `losses` reports it, as after a fault; it does not count as one.
        """
        self._expect_open()
        self._workers[worker].reopen()
        self._owing.follow(self._workers[worker])

    def hang_up(self) -> None:
        """Send the end to all environments, without waiting: `close` waits."""
        for worker in self._workers:
            worker.handle.hang_up()

    def close(self) -> None:
        """Close all environments and end all processes, in at most 18 s. May be called twice and after a failure."""
        for worker in self._workers:
            if worker.owes and worker.doing == START:  # it would notice only once its environment is built
                worker.handle.force("terminate")
        self._close()

    def _note(self, parameters: Mapping[str, ParameterValue]) -> list[dict[str, ParameterValue]]:
        """Return these parameters by worker, and remember them for workers that are started again."""
        by_worker = [of_worker(parameters, number) for number in range(self.num_envs)]
        before = self._parameters or [{}] * self.num_envs
        self._parameters = [old | new for old, new in zip(before, by_worker, strict=True)]
        return by_worker

    def _expect_open(self) -> None:
        if not self._close.alive:
            raise RuntimeError("the pool is closed; make a new one")

    def _ask(self, worker: Supervisor, command: Message) -> None:
        try:
            worker.ask(command)
        finally:
            self._owing.follow(worker)

    def _gather(self, still_owing: int) -> None:
        """Take all available answers, and wait until at most `still_owing` workers owe one."""
        if still_owing:  # else all of them will be heard below
            self._look_after(self._owing.at_once())
        while len(self._owing) > still_owing:
            self._look_after(self._owing.in_a_moment())

    def _look_after(self, workers: Sequence[Supervisor]) -> None:
        for worker in workers:
            try:
                worker.look_after(None if self._parameters is None else self._parameters[worker.number])
            finally:
                self._owing.follow(worker)


def _others_run(workers: Sequence[Supervisor], number: int) -> bool:
    return any(worker.runs for worker in workers if worker.number != number)


def _launcher(
    factory: EnvFactory, patience: float, *, inline: bool, cluster: str | None
) -> Callable[[int, int], WorkerHandle]:
    """Return a function (worker, incarnation) → its starting process, here or on a cluster, or inline environment."""
    if inline:
        return lambda worker, incarnation: InlineHandle(factory, worker, incarnation)
    pickled = pickle_factory(factory)
    if cluster is None:
        return lambda worker, incarnation: ProcessHandle(pickled, worker, patience, incarnation)
    from jaxrl.envs.workers import ray_handle  # Ray takes a second to import

    ray_handle.connect(cluster)
    return lambda worker, incarnation: ray_handle.RayHandle(pickled, worker, incarnation)


def _close_workers(supervisors: Sequence[Supervisor]) -> None:
    """Ask the workers to end, then terminate, then kill; each stage is bounded and over as soon as all have ended."""
    workers = [supervisor.handle for supervisor in supervisors]
    try:
        for worker in workers:
            worker.hang_up()
        left = _still_running(workers, _CLOSE_SECONDS)
        if left:
            logger.warning("%d environment workers did not close within %g s: terminated", len(left), _CLOSE_SECONDS)
        _force(left, _FORCE_SECONDS)
    except BaseException:
        # A second Ctrl-C: the user wants to leave now.
        _force(workers, _HURRY_SECONDS)
        raise


def _force(workers: Sequence[WorkerHandle], seconds: float) -> None:
    for worker in workers:
        worker.force("terminate")
    left = _still_running(workers, seconds)
    for worker in left:
        worker.force("kill")
    _still_running(left, seconds)


def _still_running(workers: Sequence[WorkerHandle], seconds: float) -> list[WorkerHandle]:
    deadline = time.monotonic() + seconds
    return [worker for worker in workers if not worker.join(deadline - time.monotonic())]
