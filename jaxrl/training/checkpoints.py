"""Checkpoints while a run goes on: which moments are saved, what is under way, and what becomes of a lost one.

What a checkpoint is made of says `saver`. They are written beside the training: the loop hands over a copy of what it
has, and goes on. One at a time, and one of each behavior: who saves again waits for the one before. So a slow disk
slows the run down instead of filling the memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial

from jaxrl.artifacts.checkpoint.document import CheckpointError
from jaxrl.artifacts.checkpoint.folder import BEST, POINTER, checkpoint_path
from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.timers import Timers
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import BEST_CHECKPOINT, TrainingStatus
from jaxrl.training import saver
from jaxrl.training.errors import LostWrites
from jaxrl.training.saver import Best, Snapshot

SAY_SECONDS = 30.0
"""A wait of so long is told."""
GIVE_UP_SECONDS = 600.0
"""A disk that takes longer for a checkpoint does not answer any more."""
_KIND = "checkpoint"
_log = logging.getLogger(__name__)

OnSaved = Callable[[str, int], None]
"""(behavior, trainer step)"""


class Checkpoints:
    """Those of the behaviors of one run: the latest ones, and beside them the best one.

    Args:
      status: is told of each that is written.
      timers: of the run; waiting and writing are booked there.
      lost: is told of each that cannot be written.
      minutes: after so many a checkpoint is old; None: never.
      on_saved: is told of each that has been written, by the thread that asks for it (`tell_saved`).
    """

    def __init__(
        self,
        folder: RunFolder,
        status: TrainingStatus,
        timers: Timers,
        lost: LostWrites,
        minutes: float | None,
        on_saved: OnSaved | None = None,
    ) -> None:
        self._folder, self._status, self._timers, self._on_saved = folder, status, timers, on_saved
        self.writer = CheckpointWriter(lost)
        self._old_seconds = None if minutes is None else 60.0 * minutes
        self._saved: dict[str, Hashable] = {}  # by behavior, the moment of the last one; None: not known to be written
        self._saved_at: dict[str, float] = {}  # seconds, of the last one or of the beginning
        self._written: deque[tuple[str, int]] = deque()  # by the thread that writes; not told yet

    def meet(self, name: str) -> None:
        """A behavior begins: it has no checkpoint of this run, and minutes are counted from here."""
        self._saved[name], self._saved_at[name] = None, time.monotonic()

    def are_old(self, name: str) -> bool:
        """Whether the minutes have passed since the last one of the behavior."""
        return self._old_seconds is not None and time.monotonic() - self._saved_at[name] >= self._old_seconds

    def save(
        self,
        name: str,
        moment: Hashable,
        snapshot: Callable[[], Snapshot],
        reward: float | None,
        *,
        final: bool = False,
    ) -> None:
        """A checkpoint and its ONNX file, unless the last one shows this very moment and is there.

        They are written beside the training. One that cannot be written is told in the log, and the run goes on; the
        `final` one is waited for.

        Raises:
          DivergedError: what was learned is not finite.
          ExportError: of this save if it is final, or of the one before.
          CheckpointError: the final one cannot be written; or the disk does not answer.
          RunLockedError: the folder was deleted, and belongs to another run now.
        """
        self._folder.keep()
        with self._timers(nodes.CHECKPOINT):
            self.settle(name)
            if self._saved[name] != moment or not (self._folder.behavior(name) / POINTER).exists():
                frozen = saver.copied(snapshot(), self._folder)
                self.writer.begin(name, partial(self._write, frozen, reward), final=final)
                self._saved[name], self._saved_at[name] = moment, time.monotonic()
            error = self.settle(name) if final else None
        if error is not None:
            raise CheckpointError(f"{error} Then continue with --resume.") from error

    def keep_best(self, name: str, best: Best, snapshot: Callable[[], Snapshot], reward: float | None) -> None:
        """A checkpoint apart, if its statistic is higher than it was at the one that is kept.

        It is written beside the training, as others are, and lost where a disk is full. Raises as `save`.
        """
        self._folder.keep()
        with self._timers(nodes.CHECKPOINT):
            self.settle(_best_of(name))
            there = checkpoint_path(self._folder.behavior(name), BEST).exists()
            before = self._status.get(name, BEST_CHECKPOINT) if there else None
            if before is not None and before["statistic"] == best.statistic and before["value"] >= best.value:
                return
            frozen = saver.copied(snapshot())
            write = partial(saver.save_best, frozen, self._folder, self._status, reward, best)
            self.writer.begin(_best_of(name), write)

    def settle(self, name: str) -> ArtifactError | None:
        """Wait for the one under way; why it could not be written, if so. Raises any other error of it."""
        seconds, error = self.writer.settle(name)
        if seconds:
            self._timers.add(nodes.WRITE, seconds, is_parallel=True)
        if error is not None and name in self._saved:
            self._saved[name] = None
        return error

    def tell_saved(self) -> None:
        """Tell `on_saved` of those that have been written since the last call."""
        while self._on_saved is not None and self._written:
            self._on_saved(*self._written.popleft())

    def last_steps(self) -> list[Callable[[], object]]:
        """What ends them: the wait for each that is under way."""
        under_way = [name for behavior in self._saved for name in (behavior, _best_of(behavior))]
        return [partial(self.settle, name) for name in under_way]

    def _write(self, snapshot: Snapshot, reward: float | None) -> None:
        saver.save_checkpoint(snapshot, self._folder, self._status, reward)
        if self._on_saved is not None:
            self._written.append((snapshot.name, snapshot.step))


def _best_of(name: str) -> str:
    """What a best checkpoint is called while it is written."""
    return f"{name} (best)"


class _Save:
    """One checkpoint under way."""

    def __init__(self, name: str, write: Callable[[], None], turn: threading.Lock, lost: LostWrites | None) -> None:
        self.error: Exception | None = None
        self.begun = time.monotonic()
        self.seconds = 0.0  # of writing alone
        self._write, self._turn, self._lost = write, turn, lost
        # a daemon: Python would otherwise wait for ever at its end for a disk that has been given up
        self.thread = threading.Thread(target=self._run, name=f"jaxrl-checkpoint-{name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with self._turn:
            begun = time.perf_counter()
            try:
                self._write()
            except ArtifactError as error:
                self.error = error
                if self._lost is not None:
                    self._lost.failed(_KIND, error)
            except Exception as error:  # for whoever settles
                self.error = error
            else:
                if self._lost is not None:
                    self._lost.worked(_KIND)
            self.seconds = time.perf_counter() - begun


class CheckpointWriter:
    """Threads that write the checkpoints of a run.

    Args:
      lost: is told at once of each checkpoint that could not be written, unless it is the final one.
    """

    def __init__(self, lost: LostWrites) -> None:
        self._lost = lost
        self._turn = threading.Lock()
        self._saves: dict[str, _Save] = {}

    def begin(self, name: str, write: Callable[[], None], *, final: bool = False) -> None:
        """Call `write` in a thread; what is under way for behavior `name` must be settled."""
        assert name not in self._saves
        self._saves[name] = _Save(name, write, self._turn, None if final else self._lost)

    def settle(self, name: str) -> tuple[float, ArtifactError | None]:
        """Wait for the save of behavior `name` that is under way, if any.

        Returns the seconds that writing took, and why nothing could be written, if so. Raises any other error of it;
        CheckpointError when the disk does not answer.
        """
        save = self._saves.get(name)
        if save is None:
            return 0.0, None
        self._await(name, save)
        del self._saves[name]
        if save.error is not None and not isinstance(save.error, ArtifactError):
            raise save.error
        return save.seconds, save.error

    def raise_errors(self) -> None:
        """Raise what has gone wrong in a save that is over, but for a disk that could not be written to."""
        for name, save in list(self._saves.items()):
            if not save.thread.is_alive() and not isinstance(save.error, ArtifactError | None):
                del self._saves[name]
                raise save.error

    def _await(self, name: str, save: _Save) -> None:
        save.thread.join(SAY_SECONDS)
        while save.thread.is_alive():
            waited = time.monotonic() - save.begun
            if waited > GIVE_UP_SECONDS:
                del self._saves[name]
                raise CheckpointError(
                    f"{name}: its checkpoint is being written since {waited:.0f} s, and nothing comes of it. "
                    "Check the disk or the network folder of --results-dir; then continue with --resume."
                )
            _log.warning("%s: waiting for its checkpoint, which is being written since %.0f s.", name, waited)
            save.thread.join(SAY_SECONDS)
