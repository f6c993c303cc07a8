"""A learner whose updates run in a thread while collection goes on (`threaded: true`).

When the buffer is due its rollout is taken and learned from in a thread; XLA releases Python's lock. Meanwhile actors
decide with the policy before, whose arrays are not overwritten. They get the newest policy between two decisions. One
update runs at a time: if the next buffer is full before it ends, the loop waits. So no decision is more than one update
older than the policy that learns from it (two for the pending decision of each row; with complete episodes, as many as
an episode spans). `Policy/Staleness` measures that, and `Policy/Time Waited` the share of time that the loop waited.

Which decisions still follow the old policy depends on the speed of the machine: threaded runs do not repeat bit for
bit. On an accelerator that runs one program after the other, decisions wait for the update in the device's own queue.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.rollout.booking.records import Ending, RowsMessage
from jaxrl.training.host.collector import Collector
from jaxrl.training.host.learner import Learner
from jaxrl.training.host.team_learner import KindLearner
from jaxrl.training.interrupt import await_telling

log = logging.getLogger(__name__)

JOIN_SECONDS = 60.0
"""Longest wait for a running update at the end of a run."""
LEAVE_SECONDS = 5.0
"""Longest wait after Ctrl-C or SIGTERM; without the update the policy before it is saved."""


class Staleness:
    """Age, in updates, of the policies that made a buffer's decisions. On the host, in numpy."""

    def __init__(self) -> None:
        self._version = np.zeros((0, 0), np.int64)  # [B, A], updates before the newest decision of each member
        self._sum, self._count = 0, 0

    def note(self, steps: RowsMessage, version: int) -> None:
        """Book a message: rewards for earlier decisions arrived, new decisions were made after `version` updates."""
        rows, members = self._version.shape
        shape = steps.deciding.shape
        if shape != (rows, members):
            self._version = np.pad(self._version, [(0, shape[0] - rows), (0, shape[1] - members)])
        finished = steps.ending != Ending.OPEN
        self._sum += int(self._version[finished].sum())
        self._count += int(np.count_nonzero(finished))
        self._version[steps.deciding] = version

    def take(self, updates: int) -> float:
        """Compute the mean lag behind `updates` of the decisions since the last call; 0 if there were none."""
        mean = updates - self._sum / self._count if self._count else 0.0
        self._sum, self._count = 0, 0
        return mean


class Learned(NamedTuple):
    """Result of an update in the thread; for a team, state and metrics are by behavior."""

    state: Any
    store: Any
    metrics: Any  # on the host
    seconds: float


class ThreadedLearner(Learner):
    """Learner whose `learn` begins an update and whose `publish` takes over its state. Arguments as `Learner`."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.staleness = Staleness()
        self.seconds = 0.0  # duration of the newest finished update
        self._under_way: Future[Learned] | None = None
        self._begun = 0.0
        self._waited = 0.0  # seconds since the newest update began
        self._lag: dict[str, float] = {}  # staleness metrics of the running update
        self._rows = np.zeros(0, np.int64)  # rows that wrote the pages of the running update

    def watch(self, steps: RowsMessage) -> None:
        """Book a message of the actor for the staleness."""
        self.staleness.note(steps, self.updates)

    @property
    def under_way(self) -> bool:
        """True if an update has begun and is not published yet."""
        return self._under_way is not None

    def done(self) -> bool:
        """Return whether an update is finished and can be published."""
        return self._under_way is not None and self._under_way.done()

    def compile_for(self, actor: Collector, *, at_once: bool = False) -> None:
        """Begin to compile the update for rollouts of the actor's buffer, unless it has begun."""
        if actor.buffer is None:
            return
        sizes = (actor.buffer.shape, ())  # a rollout has the pages' shape, however many rows write them
        if self._lasts(sizes) or (at_once and self._sizes != sizes):
            rollout, _ = jax.eval_shape(self._programs.take, actor.buffer, *actor.begin)
            self._compile(sizes, self._programs.learn_from, *self._known, rollout)

    def await_program(self, actor: Collector) -> None:
        """Begin to compile the update without waiting: the update's thread waits for it."""
        self.compile_for(actor, at_once=True)

    def learn(self, actor: Collector) -> dict[str, float]:
        """Begin an update from the actor's data, if the algorithm is ready for it. Returns no metrics yet.

        The update before must have been published.
        """
        assert self._under_way is None
        if not self._prepared(actor):
            return {}
        assert actor.buffer is not None
        now = time.perf_counter()
        elapsed = now - self._begun if self._begun else 0.0
        self._note_lag(self._waited / elapsed if elapsed else 0.0)
        self._begun, self._waited = now, 0.0
        self._rows = actor.rows
        rollout, buffer = self._programs.take(actor.buffer, *actor.begin)
        actor.taken(buffer)
        thread = ThreadPoolExecutor(1, "jaxrl-learn")
        self._under_way = thread.submit(self._work, self._ahead, *self._known, rollout)
        thread.shutdown(wait=False)  # it ends with this update
        self.fresh = 0
        return {}

    def _note_lag(self, waited: float) -> None:
        """Note staleness and waiting time, to be reported with the metrics of the update that begins now."""
        self._lag = {"staleness": self.staleness.take(self.updates), "time_waited": waited}

    def wait(self) -> None:
        """Wait, without limit, until the running update is done; log every minute what it waits for."""
        begun = time.perf_counter()
        if self._under_way is not None:
            await_telling(self._under_way, lambda: f"{self.diagnosis()} ({self.name}); the next buffer is full")
        self._waited += time.perf_counter() - begun

    def join(self, seconds: float) -> bool:
        """Wait at most `seconds` for the running update; return whether no update is running any more."""
        return self._under_way is None or bool(wait((self._under_way,), seconds).done)

    def diagnosis(self) -> str:
        """Return a phrase that names the running update and its running time."""
        return f"update {self.updates + 1}, which has been running for {time.perf_counter() - self._begun:.0f} s"

    def publish(self) -> dict[str, float]:
        """Take over the state of the finished update, which changes `policy`.

        Returns its metrics, with `staleness` and `time_waited`.
        Raises DivergedError, or the error of the thread.
        """
        assert self._under_way is not None
        under_way, self._under_way = self._under_way, None
        learned = under_way.result()
        self.seconds = learned.seconds
        return self._learned(learned.state, learned.store, learned.metrics, self._rows) | self._lag

    def _work(self, ahead: Future[Any] | None, state: Any, store: Any, rollout: Any) -> Learned:
        """Run one update in the worker thread. Do not donate `state` or `rollout`: the main thread still reads them."""
        begun = time.perf_counter()
        learn = self._programs.learn_from if ahead is None else ahead.result()
        assert learn is not None
        state, store, metrics = jax.block_until_ready(learn(state, store, rollout))
        return Learned(state, store, jax.device_get(metrics), time.perf_counter() - begun)


class ThreadedKindLearner(ThreadedLearner, KindLearner):
    """Learner of one behavior of a team whose updates run in a thread; the team's first behavior has the thread."""

    @property
    def first(self) -> ThreadedKindLearner:
        """Learner that updates the whole team."""
        first = next(iter(self.team.values()))
        assert isinstance(first, ThreadedKindLearner)
        return first

    def await_program(self, actor: Collector) -> None:
        """Begin to compile the team's update without waiting, as `ThreadedLearner`."""
        self.first.compile_for(actor, at_once=True)

    def learn(self, actor: Collector) -> dict[str, float]:
        """Begin an update of the whole team. Returns no metrics yet."""
        return super().learn(actor) if self is self.first else self.first.learn(actor)

    def take_told(self) -> dict[str, float]:
        """Return its metrics as `KindLearner`, with the staleness of this behavior's decisions."""
        metrics = super().take_told()
        return metrics | self._lag if metrics else metrics

    def _note_lag(self, waited: float) -> None:
        for kind in self.team.values():
            if isinstance(kind, ThreadedKindLearner):
                ThreadedLearner._note_lag(kind, waited)
