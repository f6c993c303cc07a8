"""A file that grows by whole pieces: what a write that failed has left is cut off by the next one."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from jaxrl.artifacts import files


class AppendedFile:
    """Unbuffered; opened at the first `append`, so that a folder that is missing costs that piece alone.

    Args:
      path: for messages.
      opened: gives the file, open for writing; it goes on where that stands.
    """

    def __init__(self, path: Path, opened: Callable[[], io.FileIO]) -> None:
        self.path = path
        self.end = 0  # bytes of whole pieces
        self._opened = opened
        self._file: io.FileIO | None = None

    def append(self, data: bytes) -> None:
        """Hand the whole piece to the system, or nothing of it. Raises ArtifactError; the next one tries again."""
        try:
            if self._file is None:
                self._file = self._opened()
                self.end = self._file.tell()
            self._file.seek(self.end)
            self._file.truncate()
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            raise files.write_error(self.path, error) from error
        self.end += len(data)

    def close(self) -> None:
        """May be called twice. Raises ArtifactError."""
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:
            raise files.write_error(self.path, error) from error
