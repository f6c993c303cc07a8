"""Stores rows that arrive in pieces, as one array per column: small ones in memory, large ones in mapped files.

The files lie in the results folder that `keep_in` has named, so that a large recording is parsed once for all
runs there; before that, in a folder that ends with the process. Nothing is ever written beside a demonstration.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import numpy as np

from jaxrl.regular_files import open_regular, read_regular

LARGE = 128 * 2**20
"""Largest size of all columns, in bytes, at which they are held in memory."""
FOLDER = ".demonstrations"
_DOCUMENT = "columns.json"
_results: list[Path] = []


def keep_in(results_dir: str | Path) -> None:
    """Store large columns of files that are read from now on in this results folder, in `.demonstrations`."""
    _results[:] = [Path(results_dir)]


def place_of(path: str | Path, reading: object, version: object) -> Path:
    """Return the folder of the columns of a file, or folder of files.

    `reading` says how they are read, and `version` changes with the files: columns of an earlier version are removed.
    """
    below = _results[0] / FOLDER if _results else _of_process()
    words = repr((str(Path(path).absolute()), reading)), repr(version)
    return below / "-".join(hashlib.sha256(word.encode()).hexdigest()[:16] for word in words)


def passing_place() -> Path:
    """Return a folder for columns that nobody else asks for; it ends with the process."""
    return _of_process() / uuid4().hex


class Columns:
    """Writer of columns. `folder`: where their files will be, if they are large; `rows`: how many it has."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._draft: Path | None = None
        self._pieces: list[Sequence[np.ndarray]] = []
        self._files: list[BinaryIO] = []
        self._like: list[tuple[str, tuple[int, ...]]] = []
        self.rows = self._bytes = 0

    def add(self, piece: Sequence[np.ndarray]) -> None:
        """Add the next rows: [n, ...] of each column, always of the same dtypes and shapes. Raises OSError."""
        self._like = [(x.dtype.str, x.shape[1:]) for x in piece]
        self.rows += len(piece[0])
        self._bytes += sum(x.nbytes for x in piece)
        self._pieces.append(piece)
        if self._bytes > LARGE:
            self._write()

    def close(self) -> list[np.ndarray]:
        """Finish writing and return all rows of each column. Raises OSError."""
        if self._draft is None:
            return [np.concatenate(columns) for columns in zip(*self._pieces, strict=True)]
        for file in self._files:
            file.close()
        text = json.dumps({"rows": self.rows, "columns": self._like})
        (self._draft / _DOCUMENT).write_text(text, encoding="utf-8")
        for old in self._folder.parent.glob(f"{self._folder.name.partition('-')[0]}-*"):
            if old != self._folder:  # of the same file as it was before
                shutil.rmtree(old, ignore_errors=True)
        try:
            self._draft.rename(self._folder)
        except OSError:  # another process was faster
            shutil.rmtree(self._draft, ignore_errors=True)
        columns_on_disk = written(self._folder)
        if columns_on_disk is None:
            raise OSError(f"{self._folder} cannot be written")
        return columns_on_disk

    def discard(self) -> None:
        """Delete everything written."""
        for file in self._files:
            file.close()
        if self._draft is not None:
            shutil.rmtree(self._draft, ignore_errors=True)

    def _write(self) -> None:
        if self._draft is None:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._draft = Path(tempfile.mkdtemp(prefix="draft-", dir=self._folder.parent))
            self._files = [(self._draft / f"{i}.bin").open("wb") for i in range(len(self._like))]
        for piece in self._pieces:
            for file, x in zip(self._files, piece, strict=True):
                file.write(x.tobytes())
        self._pieces.clear()


def written(folder: Path) -> list[np.ndarray] | None:
    """Return the columns in this folder, mapped; None: there are none."""
    try:
        document = json.loads(read_regular(folder / _DOCUMENT).decode("utf-8"))
        shapes = [(np.dtype(dtype), (document["rows"], *shape)) for dtype, shape in document["columns"]]
        return [_mapped(folder / f"{i}.bin", dtype, shape) for i, (dtype, shape) in enumerate(shapes)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        shutil.rmtree(folder, ignore_errors=True)  # of no use, whatever it is
        return None


def _mapped(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array in a file, mapped. Raises OSError or ValueError for a file of another kind or size."""
    if dtype.hasobject:  # bytes of a file as addresses in memory
        raise ValueError(f"{dtype} is no number")
    if 0 in shape:
        return np.zeros(shape, dtype)
    with open_regular(path) as file:
        return np.memmap(file, dtype, "r", shape=shape)


@cache
def _of_process() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="jaxrl-demonstrations-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
