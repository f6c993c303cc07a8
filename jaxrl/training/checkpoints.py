"""Write checkpoints in threads while a run goes on, and handle those that cannot be written.

`saver` makes their contents. The loop hands over a copy of its state, and goes on. One checkpoint is written at a time,
and one per behavior is pending: the next save of a behavior waits for the one before. So a slow disk slows the run down
instead of filling the memory.
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
"""Interval between log lines about a wait."""
GIVE_UP_SECONDS = 600.0
"""Time limit for writing a checkpoint, after which the disk is taken for dead."""
_KIND = "checkpoint"
_log = logging.getLogger(__name__)

OnSaved = Callable[[str, int], None]
"""(behavior, trainer step)"""


class Checkpoints:
    """Checkpoints of the behaviors of one run: the latest ones, and the best one.

    Args:
      status: records each checkpoint that is written.
      timers: the run's; waiting and writing are booked there.
      lost: records each checkpoint that cannot be written.
      minutes: age after which a new checkpoint is due; None: never.
      on_saved: called for each written checkpoint, in the thread that calls `tell_saved`.
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
        self._saved: dict[str, Hashable] = {}  # moment of the last one by behavior; None: not known to be written
        self._saved_at: dict[str, float] = {}  # time of the last one, or of the beginning, in seconds
        self._written: deque[tuple[str, int]] = deque()  # filled by the writing thread; not yet passed to `on_saved`

    def meet(self, name: str) -> None:
        """Register a behavior, without a checkpoint of this run; its minutes are counted from now on."""
        self._saved[name], self._saved_at[name] = None, time.monotonic()

    def are_old(self, name: str) -> bool:
        """Return whether the behavior's last checkpoint is older than `minutes`."""
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
        """Begin to write a checkpoint and its ONNX file, unless the last one holds this very moment and exists.

        A thread writes them. If it cannot, the log says so, and the run goes on; a `final` save is waited for.

        Raises:
          DivergedError: a learned parameter is not finite.
          ExportError: from this save if it is final, or from the one before.
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
        """Begin to write the separate best checkpoint, if its statistic is higher than that of the present one.

        A thread writes it, as others; on a full disk it is lost. Raises as `save`.
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
        """Wait for a running save; return the error if it could not be written, else None. Raises other errors."""
        seconds, error = self.writer.settle(name)
        if seconds:
            self._timers.add(nodes.WRITE, seconds, is_parallel=True)
        if error is not None and name in self._saved:
            self._saved[name] = None
        return error

    def tell_saved(self) -> None:
        """Call `on_saved` for the checkpoints that have been written since the last call."""
        while self._on_saved is not None and self._written:
            self._on_saved(*self._written.popleft())

    def last_steps(self) -> list[Callable[[], object]]:
        """Return the steps that end the saves: a wait for each that may be running."""
        under_way = [name for behavior in self._saved for name in (behavior, _best_of(behavior))]
        return [partial(self.settle, name) for name in under_way]

    def _write(self, snapshot: Snapshot, reward: float | None) -> None:
        saver.save_checkpoint(snapshot, self._folder, self._status, reward)
        if self._on_saved is not None:
            self._written.append((snapshot.name, snapshot.step))


def _best_of(name: str) -> str:
    """Return the name of a behavior's best checkpoint while it is written."""
    return f"{name} (best)"


class _Save:
    """Checkpoint that is being written in a thread."""

    def __init__(self, name: str, write: Callable[[], None], turn: threading.Lock, lost: LostWrites | None) -> None:
        self.error: Exception | None = None
        self.begun = time.monotonic()
        self.seconds = 0.0  # duration of writing, without waiting
        self._write, self._turn, self._lost = write, turn, lost
        # A daemon thread: otherwise Python would wait for ever at its exit for a disk that does not answer.
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
            except Exception as error:  # raised by `settle`
                self.error = error
            else:
                if self._lost is not None:
                    self._lost.worked(_KIND)
            self.seconds = time.perf_counter() - begun


class CheckpointWriter:
    """Threads that write the checkpoints of a run.

    Args:
      lost: records at once each checkpoint that could not be written, except final ones.
    """

    def __init__(self, lost: LostWrites) -> None:
        self._lost = lost
        self._turn = threading.Lock()
        self._saves: dict[str, _Save] = {}

    def begin(self, name: str, write: Callable[[], None], *, final: bool = False) -> None:
        """Call `write` in a thread; an earlier save of behavior `name` must be settled."""
        assert name not in self._saves
        self._saves[name] = _Save(name, write, self._turn, None if final else self._lost)

    def settle(self, name: str) -> tuple[float, ArtifactError | None]:
        """Wait for the running save of behavior `name`, if any.

        Returns the seconds that writing took, and the error if it could not be written. Raises other errors of the
        save; CheckpointError when the disk does not answer.
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
        """Raise the error of a finished save, except a failure to write."""
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
