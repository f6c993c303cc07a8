"""A learner whose updates run in a thread while collection goes on (`threaded: true`).

When the buffer is due its rollout is taken and learned from in a thread; XLA releases Python's lock. Meanwhile actors
decide with the policy before, which stays whole: nothing of the old state is overwritten. The newest policy is handed
on between two decisions (M23, S28). One update at a time: if the next buffer is full before, the loop waits for it, so
that no decision is more than one update older than the policy that learns from it (the one open state of each row: two,
and with complete episodes as many as an episode spans). It is measured: `Policy/Staleness`, and `Policy/Time Waited`,
the share of time in which the loop waited for the update before.

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
"""How long the end of a run waits for an update that is under way (U46)."""
LEAVE_SECONDS = 5.0
"""The same after Ctrl-C or SIGTERM: what is saved without it is the policy before, which is whole."""


class Staleness:
    """How old the policies were that made the decisions of a buffer, in updates. Host side, numpy."""

    def __init__(self) -> None:
        self._version = np.zeros((0, 0), np.int64)  # [B, A], updates before the newest decision of each member
        self._sum, self._count = 0, 0

    def note(self, steps: RowsMessage, version: int) -> None:
        """One message: rewards arrived for what was decided before, and decisions were made after `version` updates."""
        rows, members = self._version.shape
        grown = steps.deciding.shape
        if grown != (rows, members):
            self._version = np.pad(self._version, [(0, grown[0] - rows), (0, grown[1] - members)])
        finished = steps.ending != Ending.OPEN
        self._sum += int(self._version[finished].sum())
        self._count += int(np.count_nonzero(finished))
        self._version[steps.deciding] = version

    def take(self, updates: int) -> float:
        """Mean number of updates that decisions since the last call lag behind `updates`; 0 where there were none."""
        mean = updates - self._sum / self._count if self._count else 0.0
        self._sum, self._count = 0, 0
        return mean


class Learned(NamedTuple):
    """What the thread hands back; of a team state and metrics are by behavior."""

    state: Any
    store: Any
    metrics: Any  # on the host
    seconds: float


class ThreadedLearner(Learner):
    """`learn` begins an update; `publish` brings its state in as soon as it is done. Arguments as `Learner`."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.staleness = Staleness()
        self.seconds = 0.0  # of the newest update that is done
        self._under_way: Future[Learned] | None = None
        self._begun = 0.0
        self._waited = 0.0  # since the newest update began
        self._lag: dict[str, float] = {}  # what the next published metrics tell of it
        self._rows = np.zeros(0, np.int64)  # that the pages under way belong to

    def watch(self, steps: RowsMessage) -> None:
        """The actor has booked a message."""
        self.staleness.note(steps, self.updates)

    @property
    def under_way(self) -> bool:
        """Whether an update has begun and was not published."""
        return self._under_way is not None

    def done(self) -> bool:
        """Whether there is something to publish."""
        return self._under_way is not None and self._under_way.done()

    def compile_for(self, actor: Collector, *, at_once: bool = False) -> None:
        """Begin to compile the update for rollouts of the actor's buffer, unless that is done."""
        if actor.buffer is None:
            return
        sizes = (actor.buffer.shape, ())  # a rollout has the pages' shape, however many rows write them
        if self._lasts(sizes) or (at_once and self._sizes != sizes):
            rollout, _ = jax.eval_shape(self._programs.take, actor.buffer, *actor.begin)
            self._compile(sizes, self._programs.learn_from, *self._known, rollout)

    def await_program(self, actor: Collector) -> None:
        """Nothing to wait for: the thread of the update does."""
        self.compile_for(actor, at_once=True)

    def learn(self, actor: Collector) -> dict[str, float]:
        """Begin an update from what the actor has collected, if the algorithm is ready for it. Gives no metrics yet.

        The one before must have been published.
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
        """What is told of an update that begins now, beside its metrics."""
        self._lag = {"staleness": self.staleness.take(self.updates), "time_waited": waited}

    def wait(self) -> None:
        """Wait until the update that is under way is done, as long as it takes; says every minute what for."""
        begun = time.perf_counter()
        if self._under_way is not None:
            await_telling(self._under_way, lambda: f"{self.diagnosis()} ({self.name}); the next buffer is full")
        self._waited += time.perf_counter() - begun

    def join(self, seconds: float) -> bool:
        """Wait for the update that is under way, at most so long; whether none is running any more."""
        return self._under_way is None or bool(wait((self._under_way,), seconds).done)

    def diagnosis(self) -> str:
        """Which update is under way, since when, in words."""
        return f"update {self.updates + 1}, which has been running for {time.perf_counter() - self._begun:.0f} s"

    def publish(self) -> dict[str, float]:
        """Take over the state of the update that is done; actors go on with `policy`.

        Returns its metrics, with `staleness` and `time_waited`.
        Raises DivergedError, or whatever went wrong in the thread.
        """
        assert self._under_way is not None
        under_way, self._under_way = self._under_way, None
        learned = under_way.result()
        self.seconds = learned.seconds
        return self._learned(learned.state, learned.store, learned.metrics, self._rows) | self._lag

    def _work(self, ahead: Future[Any] | None, state: Any, store: Any, rollout: Any) -> Learned:
        """In the thread. What `state` and `rollout` hold is not given away: others read them."""
        begun = time.perf_counter()
        learn = self._programs.learn_from if ahead is None else ahead.result()
        assert learn is not None
        state, store, metrics = jax.block_until_ready(learn(state, store, rollout))
        return Learned(state, store, jax.device_get(metrics), time.perf_counter() - begun)


class ThreadedKindLearner(ThreadedLearner, KindLearner):
    """The part of one behavior in a team whose updates have a thread, which is that of its first behavior."""

    @property
    def first(self) -> ThreadedKindLearner:
        """Who learns for all."""
        first = next(iter(self.team.values()))
        assert isinstance(first, ThreadedKindLearner)
        return first

    def await_program(self, actor: Collector) -> None:
        """As of `ThreadedLearner`."""
        self.first.compile_for(actor, at_once=True)

    def learn(self, actor: Collector) -> dict[str, float]:
        """Begin an update of the whole team. Gives no metrics yet."""
        return super().learn(actor) if self is self.first else self.first.learn(actor)

    def take_told(self) -> dict[str, float]:
        """As of `KindLearner`, with how old the policy of this behavior was that made its decisions."""
        found = super().take_told()
        return found | self._lag if found else found

    def _note_lag(self, waited: float) -> None:
        for kind in self.team.values():
            if isinstance(kind, ThreadedKindLearner):
                ThreadedLearner._note_lag(kind, waited)
