"""Checkpoints are written beside the training: the loop hands over a copy of what it has, and goes on.

One at a time, and one of each behavior: who saves again waits for the one before. So a slow disk slows the run down
instead of filling the memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from jaxrl.artifacts.checkpoint.document import CheckpointError
from jaxrl.artifacts.files import ArtifactError
from jaxrl.training.errors import LostWrites

SAY_SECONDS = 30.0
"""A wait of so long is told."""
GIVE_UP_SECONDS = 600.0
"""A disk that takes longer for a checkpoint does not answer any more."""
_KIND = "checkpoint"
_log = logging.getLogger(__name__)


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
