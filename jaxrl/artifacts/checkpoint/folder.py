"""Where checkpoints lie on disk: names, the pointer to the latest, cleaning and removal of old ones. No JAX.

    <run>/<Behavior>/<Behavior>-<step>/arrays/           the arrays (orbax)
    <run>/<Behavior>/<Behavior>-<step>/checkpoint.json   what they are; its presence says that the folder is complete
    <run>/<Behavior>/<Behavior>-<step>.onnx              the policy of that step
    <run>/<Behavior>/checkpoint                          JSON: which folder is the latest

ML-Agents writes `<Behavior>-<step>.pt` and `checkpoint.pt` (PyTorch) in the same places.
A checkpoint is written to `<Behavior>-<step>.partial` and renamed when it is complete and flushed; one that is replaced
by a second save at the same step waits as `<Behavior>-<step>.old` meanwhile.
"""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from jaxrl.artifacts import files
from jaxrl.artifacts.files import ArtifactError

METADATA = "checkpoint.json"
ARRAYS = "arrays"
POINTER = "checkpoint"
PARTIAL = ".partial"
OLD = ".old"

_log = logging.getLogger(__name__)


class CheckpointError(ArtifactError):
    """A checkpoint is missing, damaged, cannot be written or does not fit. The text says which and what to do."""


class Found(NamedTuple):
    """One complete checkpoint on disk."""

    step: int
    path: Path


def checkpoint_path(folder: Path, step: int) -> Path:
    """Folder of the checkpoint of `step`, in the behavior's folder `<run>/<Behavior>`."""
    return folder / f"{folder.name}-{step}"


def onnx_path(folder: Path, step: int) -> Path:
    """ONNX file of the checkpoint of `step`."""
    return folder / f"{folder.name}-{step}.onnx"


def checkpoints(folder: Path) -> list[Found]:
    """All complete checkpoints of a behavior's folder, oldest (lowest step) first; empty when it does not exist."""
    pattern = re.compile(re.escape(folder.name) + r"-(\d+)")
    names = ((pattern.fullmatch(path.parent.name), path.parent) for path in folder.glob(f"*/{METADATA}"))
    return sorted(Found(step=int(match[1]), path=path) for match, path in names if match)


def latest(folder: Path) -> Path | None:
    """The checkpoint that `<Behavior>/checkpoint` points at; None when the folder holds no checkpoint at all.

    A pointer that is missing or names a folder that is gone (the run was killed in between) gives the newest complete
    checkpoint, with a warning.
    """
    found = checkpoints(folder)
    pointer = folder / POINTER
    if not found:
        return None
    if pointer.is_file():
        path = folder / str(files.read_json(pointer).get("folder"))
        if path in [item.path for item in found]:
            return path
    _log.warning("%s does not name a complete checkpoint; using the newest one, %s.", pointer, found[-1].path.name)
    return found[-1].path


def require_latest(folder: Path) -> Path:
    """`latest`, or a CheckpointError that says why there is nothing to load and what to do."""
    path = latest(folder)
    if path is not None:
        return path
    if list(folder.glob("*.pt")):
        raise CheckpointError(
            f"{folder}: holds PyTorch checkpoints (.pt) of ML-Agents, which jaxrl cannot continue. "
            "Start a new run with another --run-id, or continue this one with mlagents-learn."
        )
    raise CheckpointError(
        f"{folder}: no complete checkpoint found, so there is nothing to continue from. "
        "The run ended before its first checkpoint: start it again with --force, or use another --run-id."
    )


def resolve(path: Path) -> Path:
    """The checkpoint folder that a path given by the user means (`init_path`, `--initialize-from`).

    Accepts a checkpoint folder, the pointer file `checkpoint`, or a behavior's folder. Raises CheckpointError.
    """
    if path.suffix == ".pt":
        raise CheckpointError(f"{path}: jaxrl cannot read PyTorch checkpoints; name a checkpoint folder of jaxrl.")
    if (path / METADATA).is_file():
        return path
    folder = path.parent if path.name == POINTER and path.is_file() else path
    if not folder.is_dir():
        raise CheckpointError(f"{path}: does not exist; expected a checkpoint folder such as Walker/Walker-500000.")
    return require_latest(folder)


def point_at(path: Path, step: int) -> None:
    """Make `path` the latest checkpoint of its behavior (atomic)."""
    files.write_json(path.parent / POINTER, {"folder": path.name, "step": step})


def install(partial: Path, path: Path) -> None:
    """Rename a complete, flushed `partial` folder to `path`; an older checkpoint of the same step gives way.

    Killed between the two renames, `recover` brings the older one back.
    """
    old = path.with_name(path.name + OLD)
    if path.exists():
        files.replace(path, old)
    files.replace(partial, path)
    files.sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def clean(folder: Path) -> list[str]:
    """Remove what a killed run left half-written in a behavior's folder; returns the names removed. Call at start-up.

    A complete checkpoint that was being replaced when the run died is put back first.
    """
    recover(folder)
    removed = []
    for path in sorted([*folder.glob(f"*{PARTIAL}"), *folder.glob(f"*{OLD}"), *folder.glob("*.tmp")]):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        removed.append(path.name)
    if removed:
        _log.warning("%s: removed unfinished files of an interrupted save: %s.", folder, ", ".join(removed))
    return removed


def recover(folder: Path) -> None:
    """Put back a complete checkpoint that was set aside for a new one of the same step when the run was killed."""
    for old in sorted(folder.glob(f"*{OLD}")):
        target = old.with_name(old.name.removesuffix(OLD))
        if (old / METADATA).is_file() and not target.exists():
            files.replace(old, target)


def prune(folder: Path, keep: int) -> list[int]:
    """Remove the oldest checkpoints beyond `keep`, with their .onnx files; returns the steps removed.

    `keep` <= 0 keeps all, as in ML-Agents. The one that `checkpoint` points at is never removed.
    """
    if keep <= 0:
        return []
    current = latest(folder)
    old = [item for item in checkpoints(folder)[:-keep] if item.path != current]
    for item in old:
        remove(item)
    return [item.step for item in old]


def remove(item: Found) -> None:
    """Delete one checkpoint and its .onnx file; the metadata first, so that a kill leaves none that looks whole."""
    (item.path / METADATA).unlink(missing_ok=True)
    shutil.rmtree(item.path, ignore_errors=True)
    onnx_path(item.path.parent, item.step).unlink(missing_ok=True)
