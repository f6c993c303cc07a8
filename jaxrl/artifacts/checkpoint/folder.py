"""Folders of checkpoints: their names, the pointer to the latest, cleaning and removal of old ones. No JAX.

    <run>/<Behavior>/<Behavior>-<step>/arrays/           the arrays (orbax)
    <run>/<Behavior>/<Behavior>-<step>/checkpoint.json   their description; without it the folder is incomplete
    <run>/<Behavior>/<Behavior>-<step>/manifest.json     size and SHA-256 of the other files
    <run>/<Behavior>/<Behavior>-<step>.onnx              the policy of that step
    <run>/<Behavior>/<Behavior>-<step>-member<i>.onnx    instead, of each member of a team (share_policy: false)
    <run>/<Behavior>/<Behavior>-best/, -best.onnx        likewise, of the moment of the best statistic (keep_best)
    <run>/<Behavior>/replay/                             replay of an algorithm (see replay.py), of the latest alone
    <run>/<Behavior>/checkpoint                          JSON: which folder is the latest

ML-Agents writes `<Behavior>-<step>.pt` and `checkpoint.pt` (PyTorch) in the same places.
A checkpoint is written to `<Behavior>-<step>.<owner>.partial` (see unfinished.py) and renamed when it is
complete and flushed; one that is replaced by a second save at the same step waits as `.old` meanwhile.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from jaxrl import platforms, unfinished
from jaxrl.artifacts import files
from jaxrl.artifacts.checkpoint.document import METADATA, CheckpointError, DamagedError, verify
from jaxrl.artifacts.checkpoint.manifest import MANIFEST
from jaxrl.artifacts.files import ArtifactError

ARRAYS = "arrays"
POINTER = "checkpoint"
REPLAY, REPLAY_BEFORE = "replay", "replay-before"
MEMBER = "-member"
BEST = "best"
"""Stands in place of a step. No run resumes from this checkpoint, and `prune` does not see it."""

_log = logging.getLogger(__name__)


class Found(NamedTuple):
    """Complete checkpoint on disk."""

    step: int
    path: Path


class Choice(NamedTuple):
    """Checkpoint that a run continues from, and the checkpoints passed over for it."""

    path: Path | None  # None: there is no checkpoint at all
    passed: tuple[str, ...]  # one text for each thing that is not as it should be


def checkpoint_path(folder: Path, step: int | str) -> Path:
    """Return the folder of the checkpoint of `step`, or of BEST, in the behavior's folder `<run>/<Behavior>`."""
    return folder / f"{folder.name}-{step}"


def onnx_path(folder: Path, step: int | str) -> Path:
    """Return the ONNX file of the checkpoint of `step`, or of BEST."""
    return folder / f"{folder.name}-{step}.onnx"


def of_members(exported: Path, places: int | None) -> list[Path]:
    """Return the ONNX files of a team whose `places` members have a policy each; None: the one file `exported`."""
    if places is None:
        return [exported]
    return [exported.with_name(f"{exported.stem}{MEMBER}{i}{exported.suffix}") for i in range(places)]


def exported_files(exported: Path) -> list[Path]:
    """Return the files of `of_members` that exist; without any, the one file `exported`."""
    members = exported.parent.glob(f"{glob.escape(exported.stem)}{MEMBER}[0-9]*{exported.suffix}")
    return sorted(members) or [exported]


def checkpoints(folder: Path) -> list[Found]:
    """List the complete checkpoints of a behavior's folder, lowest step first; empty when it does not exist."""
    return _marked(folder, METADATA)


def behaviors_of(run: Path) -> list[str]:
    """List the behaviors with complete checkpoints in a run's folder, by name; none if there is no such folder."""
    return sorted(path.name for path in run.iterdir() if checkpoints(path)) if run.is_dir() else []


def choose(folder: Path) -> Choice:
    """Choose the checkpoint to continue from: the one that `<Behavior>/checkpoint` points at, or the best instead.

    A damaged one is passed over for the one before it. A pointer that is missing, damaged or names a folder that is
    gone (the run was killed in between) stands for the newest. Raises CheckpointError when all are damaged.
    """
    # Folders that were a complete checkpoint once: one of their two JSON files may be gone.
    candidates = sorted({*_marked(folder, METADATA), *_marked(folder, MANIFEST)})
    if not candidates:
        return Choice(None, ())
    pointed = _pointed(folder, candidates)
    passed = [] if pointed else [f"{folder / POINTER} does not name a complete checkpoint"]
    newest_first = candidates[::-1]
    if pointed is not None:
        newest_first.sort(key=lambda item: (item.step > pointed.step, -item.step))
    for item in newest_first:
        try:
            verify(item.path)
        except DamagedError as error:
            passed.append(f"{item.path}: the checkpoint is damaged ({error.why})")
        else:
            return Choice(item.path, tuple(passed))
    raise CheckpointError(
        f"{'; '.join(passed)}. No other checkpoint is left: restore one from a backup, or start again with --force."
    )


def latest(folder: Path) -> Path | None:
    """Return the choice of `choose`, with one warning for all that was passed over; None without any checkpoint."""
    choice = choose(folder)
    if choice.passed and choice.path is not None:
        _log.warning("%s; using %s.", "; ".join(choice.passed), choice.path.name)
    return choice.path


def require_latest(folder: Path) -> Path:
    """Return `latest`, or raise a CheckpointError that says why there is nothing to load and what to do."""
    return latest(folder) or _nothing(folder)


def _nothing(folder: Path) -> NoReturn:
    if list(folder.glob("*.pt")):
        raise CheckpointError(
            f"{folder}: holds PyTorch checkpoints (.pt) of ML-Agents. Make a run of jaxrl from them and continue that: "
            f"jaxrl import-torch {folder.parent} --out NEW; or start a new run with another --run-id."
        )
    raise CheckpointError(
        f"{folder}: no complete checkpoint found, so there is nothing to continue from. "
        "The run ended before its first checkpoint: start it again with --force, or use another --run-id."
    )


def resolve(path: Path, *, quiet: bool = False) -> Path:
    """Return the checkpoint folder that a path given by the user means (`init_path`, `--initialize-from`).

    Accepts a checkpoint folder, the pointer file `checkpoint`, or a behavior's folder. `quiet`: warnings are left to
    whoever loads it. Raises CheckpointError, also for a damaged checkpoint if it is the one that was named.
    """
    if path.suffix == ".pt":
        raise CheckpointError(
            f"{path}: is a PyTorch checkpoint of ML-Agents. Make a run of jaxrl from it (jaxrl import-torch {path} "
            "--out NEW) and name that, or a checkpoint folder of jaxrl."
        )
    if path.suffix == ".onnx":
        beside = path.with_suffix("")
        known = beside if (beside / METADATA).is_file() else "a checkpoint folder such as Walker/Walker-500000"
        raise CheckpointError(
            f"{path}: is a policy for playing, without what training needs of its networks. Name {known}, or make a "
            "run of jaxrl from ML-Agents' .pt beside it (jaxrl import-torch FILE.pt --out NEW)."
        )
    if (path / METADATA).is_file():
        verify(path)
        return path
    folder = path.parent if path.name == POINTER and path.is_file() else path
    if not folder.is_dir():
        raise CheckpointError(f"{path}: does not exist; expected a checkpoint folder such as Walker/Walker-500000.")
    return (choose(folder).path if quiet else latest(folder)) or _nothing(folder)


def point_at(path: Path, step: int) -> None:
    """Make `path` the latest checkpoint of its behavior (atomic)."""
    files.write_json(path.parent / POINTER, {"folder": path.name, "step": step})


def install(partial: Path, path: Path) -> None:
    """Rename a complete, flushed `partial` folder to `path`; an older checkpoint of the same step gives way.

    Killed between the two renames, `recover` brings the older one back.
    """
    old = unfinished.beside(path, unfinished.OLD)
    if os.path.lexists(path):  # also a link to nowhere
        unfinished.replace(path, old)
    unfinished.replace(partial, path)
    platforms.sync_folder(path.parent)
    unfinished.discard(old)


def clean(folder: Path) -> list[str]:
    """Remove what a killed run left half-written in a behavior's folder; returns the names removed. Call at start-up.

    A complete checkpoint that was being replaced when the run died is put back first. What a living process writes is
    left alone.
    """
    recover(folder)
    removed = unfinished.remove(folder)
    if removed:
        _log.warning("%s: removed unfinished files of an interrupted save: %s.", folder, ", ".join(removed))
    return removed


def recover(folder: Path) -> None:
    """Put back a complete checkpoint that was set aside for a new one of the same step when the run was killed."""
    for old in sorted(folder.glob(f"*{unfinished.OLD}")):
        target = unfinished.target(old)
        if (old / METADATA).is_file() and not target.exists() and unfinished.abandoned(old):
            unfinished.replace(old, target)


def prune(folder: Path, keep: int) -> list[int]:
    """Remove the oldest checkpoints beyond `keep`, with their .onnx files; returns the steps removed.

    `keep` <= 0 keeps all, as in ML-Agents. Neither removed nor counted are those of later steps than the one that
    `checkpoint` points at: the run went back behind them, because they are damaged or the user chose an earlier one.
    Raises ArtifactError when one cannot be removed.
    """
    found = checkpoints(folder)
    if keep <= 0 or not found:
        return []
    current = _pointed(folder, found) or found[-1]
    old = [item for item in found if item.step <= current.step][:-keep]
    for item in old:
        remove(item)
    return [item.step for item in old]


def remove(item: Found) -> None:
    """Delete one checkpoint and its .onnx file, so that a kill leaves none that looks whole. Raises ArtifactError."""
    _remove(item.path, onnx_path(item.path.parent, item.step))


def remove_all(folder: Path) -> None:
    """Delete every checkpoint, the best one too, with their .onnx files, and the algorithm's replay.

    Raises ArtifactError.
    """
    for item in checkpoints(folder):
        remove(item)
    if checkpoint_path(folder, BEST).is_dir():
        _remove(checkpoint_path(folder, BEST), onnx_path(folder, BEST))
    for path in (folder / name for name in (REPLAY, REPLAY_BEFORE)):
        if path.is_dir():
            _remove(path)


def _remove(path: Path, exported: Path | None = None) -> None:
    leaving = unfinished.beside(path, unfinished.PARTIAL)
    try:
        unfinished.replace(path, leaving)
        shutil.rmtree(leaving)
        for file in exported_files(exported) if exported is not None else ():
            file.unlink(missing_ok=True)
    except OSError as error:
        raise ArtifactError(
            f"{path}: this old checkpoint cannot be removed ({error.strerror or error}). "
            "Check the folder's permissions, or remove it by hand."
        ) from error


def _marked(folder: Path, name: str) -> list[Found]:
    """List the folders of checkpoints that hold a file `name`, oldest (lowest step) first."""
    pattern = re.compile(re.escape(folder.name) + r"-(\d+)")
    names = ((pattern.fullmatch(path.parent.name), path.parent) for path in folder.glob(f"*/{name}"))
    return sorted(Found(step=int(match[1]), path=path) for match, path in names if match)


def _pointed(folder: Path, found: Sequence[Found]) -> Found | None:
    """Return the checkpoint in `found` that the pointer names; None when it names none or cannot be read."""
    try:
        name = files.read_json(folder / POINTER).get("folder")
    except ArtifactError:
        return None
    return next((item for item in found if item.path.name == name), None)
