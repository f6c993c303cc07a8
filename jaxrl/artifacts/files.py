"""Atomic small files: a reader, or a run killed at any moment, sees the old content or the new, never half of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from jaxrl import platforms, unfinished
from jaxrl.regular_files import read_regular
from jaxrl.types import JaxrlError

_PACKAGE = Path(__file__).resolve().parents[1]


class ArtifactError(JaxrlError):
    """Something in the results folder could not be read or written. The text names the path and what to do."""


@contextlib.contextmanager
def reported(path: Path) -> Iterator[None]:
    """Raise ArtifactError (see `write_error`) for an OSError within: `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


@contextlib.contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for an atomic write. Raises ArtifactError for a full disk or a folder that cannot be written."""
    with reported(path), unfinished.writing(path) as file:
        yield file


def write_text(path: Path, text: str) -> None:
    """Replace the content of `path`, as `writing` does. Raises ArtifactError."""
    with writing(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace the content of `path` atomically by strict JSON (NaN raises ValueError: others could not read it)."""
    write_text(path, json.dumps(value, indent=4, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in `path`. Raises ArtifactError that names the file when it is unreadable or no object."""
    try:
        value = json.loads(read_regular(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{path}: cannot be read ({error}). Restore the file from a backup or delete it."
        ) from error
    if not isinstance(value, dict):
        raise ArtifactError(f"{path}: expected a JSON object, found {type(value).__name__}. Delete the file.")
    return value


def copy(source: Path, target: Path) -> None:
    """Make `target` a copy of `source` atomically. Raises ArtifactError when it cannot be written."""
    with writing(target) as file, source.open("rb") as content:
        shutil.copyfileobj(content, file)


def sync_tree(folder: Path) -> None:
    """Flush every file and folder below `folder` to disk, itself included. Windows: files only."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(parent, name), "rb+") as file:
                os.fsync(file.fileno())
        platforms.sync_folder(Path(parent))


def write_error(path: Path, error: OSError) -> ArtifactError:
    """Make the error for a failed write: path, cause, free space and what to do."""
    text = f"{path}: cannot be written ({error.strerror or error}; {free_text(path)}). "
    return ArtifactError(f"{text}{remedy(path)}, check the folder's permissions, or choose another --results-dir.")


def free_text(path: Path) -> str:
    """Describe in words the free space on the disk of `path` (or of its nearest existing parent)."""
    text = f"{free_bytes(path) / 2**20:.1f} MiB free on that disk"
    return f"{text}, but no inodes: it takes no more files" if lacks_inodes(path) else text


def remedy(path: Path) -> str:
    """Say how to make room on the disk of `path`: the beginning of a sentence."""
    if lacks_inodes(path):
        return "Delete files on that disk, many small ones rather than large ones"
    return "Free disk space"


def lacks_inodes(path: Path) -> bool:
    """Return whether the disk of `path` has no more inodes, which also ends in "No space left on device"."""
    return platforms.lacks_inodes(nearest_existing(path))


def free_bytes(path: Path) -> int:
    """Return the free bytes on the disk that holds `path`, or would hold it."""
    return shutil.disk_usage(nearest_existing(path)).free


def nearest_existing(path: Path) -> Path:
    """Return `path` itself or its nearest parent that exists."""
    return next(p for p in (path.absolute(), *path.absolute().parents) if _is_there(p))


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # below a folder that may not be entered, or a name that is too long
        return False


def carried(name: str) -> Path:
    """Return the folder `name`, such as "benchmarks", that comes with jaxrl: in a wheel inside the package, in a clone
    (also installed with -e) beside it. Raises ArtifactError where this installation has none.
    """
    places = _PACKAGE / name, _PACKAGE.parent / name
    for place in places:
        if place.is_dir():
            return place
    raise ArtifactError(
        f"{places[0]}: this installation of jaxrl has no folder {name}; install jaxrl again from a wheel or a clone."
    )
