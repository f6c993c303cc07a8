"""Run the updates of all behaviors, between two messages or in threads during collection, and end those threads."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.training.host.behavior import Behavior
from jaxrl.training.host.learner import Held
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.host.threaded import JOIN_SECONDS, LEAVE_SECONDS, ThreadedLearner
from jaxrl.training.interrupt import Interrupt

log = logging.getLogger(__name__)


class Learned(NamedTuple):
    """Result of an update: its metrics, and the amount of data that it learned from."""

    metrics: Mapping[str, float]
    held: Held


_NOTHING: Mapping[str, Learned] = {}


class Updates:
    """Updates of all behaviors of a host loop. Costs nothing per message if no learner is threaded."""

    def __init__(self, recorder: HostRecorder, interrupt: Interrupt) -> None:
        self._recorder = recorder
        self._interrupt = interrupt
        self._told: Mapping[str, Learned] = _NOTHING
        self._threaded: dict[str, tuple[Behavior, ThreadedLearner]] = {}  # by name; a team's first has the thread

    def meet(self, behavior: Behavior) -> None:
        """Register a behavior, if its updates run in a thread."""
        first = next(iter(behavior.team), behavior)
        if isinstance(first.learner, ThreadedLearner):
            self._threaded[behavior.name] = first, first.learner

    def use_up(self, behavior: Behavior) -> None:
        """Learn from the collected data, or drop it if the behavior does not learn (any more).

        Raises DivergedError, and KeyboardInterrupt while it waits for a program or for an update before this one.
        """
        if not behavior.training or not behavior.unfinished() or not behavior.collector.held:
            behavior.collector.discard()
            return
        if behavior.name in self._threaded:
            self._await(*self._threaded[behavior.name])
        timers = self._recorder.timers
        with timers(nodes.TRAINER_ADVANCE), timers(nodes.UPDATE_POLICY):
            with self._interrupt.waiting():
                behavior.learner.await_program(behavior.collector)
            metrics = behavior.learn()
        self._tell_all(behavior, metrics)

    def told(self) -> Mapping[str, Learned]:
        """Return the updates since the last call, by behavior."""
        updates, self._told = self._told, _NOTHING
        return updates

    def publish_done(self) -> None:
        """Publish the updates that threads have finished, so that actors use them. Raises the errors of threads."""
        for behavior, learner in self._threaded.values():
            if learner.done():
                self._publish(behavior, learner)

    def await_all(self) -> None:
        """Wait for every running update. Raises as `use_up`."""
        for behavior, learner in self._threaded.values():
            self._await(behavior, learner)

    def join(self) -> Exception | None:
        """Wait for the last updates, with a time limit, so that the newest policies are saved.

        Returns the first error of an update. An update that does not end in time is logged and lost: its behavior is
        saved as it was before.
        """
        failed = None
        for behavior, learner in self._threaded.values():
            if not learner.under_way:
                continue
            if not learner.join(LEAVE_SECONDS if self._interrupt.requested else JOIN_SECONDS):
                log.warning("%s: saved without %s; it is lost.", behavior.name, learner.diagnosis())
                continue
            try:
                self._publish(behavior, learner)
            except Exception as error:
                failed = failed or error
        return failed

    def _await(self, behavior: Behavior, learner: ThreadedLearner) -> None:
        if not learner.under_way:
            return
        with self._recorder.timers(nodes.UPDATE_POLICY), self._interrupt.waiting():
            learner.wait()
        self._publish(behavior, learner)

    def _publish(self, behavior: Behavior, learner: ThreadedLearner) -> None:
        metrics = learner.publish()
        behavior.follow()
        self._recorder.timers.add(nodes.THREADS, learner.seconds, is_parallel=True)
        self._tell_all(behavior, metrics)

    def _tell_all(self, behavior: Behavior, metrics: dict[str, float]) -> None:
        """Record an update for the behavior and for the others of its team."""
        self._tell(behavior, metrics)
        for mate in behavior.mates:
            self._tell(mate, mate.learner.take_told())

    def _tell(self, behavior: Behavior, metrics: dict[str, float]) -> None:
        self._recorder.updated(behavior, metrics)
        if metrics:
            held = behavior.learner.held
            self._told = {**self._told, behavior.name: Learned(metrics, held)}
            self._recorder.timers.gauge(f"{behavior.name}.Buffer.EnvSteps", held.env_steps)
            self._recorder.timers.gauge(f"{behavior.name}.Buffer.AgentSteps", held.agent_steps)
