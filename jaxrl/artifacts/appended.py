"""A file that grows by whole pieces: the rest of a failed write is cut off by the next one."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from jaxrl.artifacts import files


class AppendedFile:
    """Unbuffered file; opened at the first `append`, so that a missing folder costs that piece alone.

    One that was deleted meanwhile begins anew.

    Args:
      path: for messages.
      opened: returns the file, open for writing at the place where it goes on.
    """

    def __init__(self, path: Path, opened: Callable[[], io.FileIO]) -> None:
        self.path = path
        self._end = 0  # bytes of whole pieces
        self._opened = opened
        self._file: io.FileIO | None = None

    @property
    def end(self) -> int:
        """Bytes of whole pieces; 0 before the first one, also the first after the file was deleted."""
        self._forget_deleted()
        return self._end

    def append(self, data: bytes) -> None:
        """Hand the whole piece to the system, or nothing of it. Raises ArtifactError; the next one tries again."""
        with files.reported(self.path):
            file = self._open()
            file.seek(self._end)
            file.truncate()
            written = 0
            while written < len(data):
                written += file.write(data[written:])
        self._end += len(data)

    def close(self) -> None:
        """Close the file; may be called twice. Raises ArtifactError."""
        if self._file is not None:
            with files.reported(self.path):
                self._file.close()

    def _open(self) -> io.FileIO:
        self._forget_deleted()
        if self._file is None:
            self._file = self._opened()
            self._end = self._file.tell()
        return self._file

    def _forget_deleted(self) -> None:
        if self._file is not None and not self.path.exists():
            self.close()
            self._file, self._end = None, 0
