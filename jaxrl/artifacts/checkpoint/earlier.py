"""Policies of earlier selves on disk: `<run>/<Behavior>/self_play/<SHA-256>.npz`, written once for all checkpoints.

A checkpoint names those that it needs, and a file is called after its content: one that is damaged is found, and two
checkpoints with one snapshot share its file.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.artifacts import files
from jaxrl.artifacts.checkpoint import tree as trees
from jaxrl.artifacts.checkpoint.document import METADATA, CheckpointError
from jaxrl.artifacts.checkpoint.loop import SELF_PLAY
from jaxrl.artifacts.files import ArtifactError

FOLDER = "self_play"
ENDING = ".npz"


def pack(policy: Any) -> tuple[str, bytes]:
    """The name and the bytes of the file of a pytree of arrays; equal arrays give equal names."""
    stream = io.BytesIO()
    arrays = {path: np.ravel(x).view(np.uint8) for path, x in trees.to_arrays(policy).items()}
    np.savez(stream, allow_pickle=False, **arrays)
    return hashlib.sha256(stream.getvalue()).hexdigest() + ENDING, stream.getvalue()


def is_there(folder: Path, name: str) -> bool:
    """Whether the behavior's folder `folder` has this file."""
    return (folder / FOLDER / name).is_file()


def write(folder: Path, packed: Mapping[str, bytes]) -> None:
    """Files by name that the behavior's folder `folder` does not have yet. Raises ArtifactError."""
    for name, content in packed.items():
        with files.writing(folder / FOLDER / name) as file:
            file.write(content)


def check(folder: Path, state: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless all files that a checkpoint's SELF_PLAY names are there, every byte of them."""
    for name in _named(state):
        _bytes(folder / FOLDER / name)


def read(folder: Path, name: str, template: Any) -> Any:
    """A policy in the form of `template`. Raises CheckpointError for a file that is missing, damaged or of others."""
    path = folder / FOLDER / name
    try:
        with np.load(io.BytesIO(_bytes(path)), allow_pickle=False) as archive:
            raw = {entry: archive[entry] for entry in archive.files}
        leaves = trees.leaves_of(template)
        arrays = {
            entry: raw[entry].view(jnp.dtype(leaves[entry]["dtype"])).reshape(leaves[entry]["shape"]) for entry in raw
        }
        return trees.rebuild(template, arrays, leaves)
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise _lost(path, f"does not fit this run ({error})") from error


def prune(folder: Path) -> None:
    """Delete files of the behavior's folder `folder` that none of its checkpoints names any more.

    None where a checkpoint cannot be read. Raises ArtifactError.
    """
    found = list((folder / FOLDER).glob("*"))
    try:
        states = [files.read_json(path)["settings"].get(SELF_PLAY) for path in folder.glob(f"*/{METADATA}") if found]
    except (ArtifactError, KeyError):
        return
    needed = {name for state in states if state is not None for name in _named(state)}
    for path in found:
        if path.name not in needed:
            with files.reported(path):
                path.unlink()


def _named(state: Mapping[str, Any]) -> set[str]:
    """Names of the files that a side of the game needs."""
    exploiters = [each for of in state.get("league", ()) for each in of["playing"].values()]
    names = {each["weights"] for each in (*state["snapshots"], *state["playing"].values(), *exploiters)}
    return {name for name in names if name is not None}


def _bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        why = f"cannot be read ({error.strerror or error})" if path.exists() else "is missing"
        raise _lost(path, why) from error
    if hashlib.sha256(content).hexdigest() + ENDING != path.name:
        raise _lost(path, "is damaged")
    return content


def _lost(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: this snapshot of the self-play pool {what}. Restore it from a backup, or start a new run with the "
        f"policy alone, which begins a new pool: --initialize-from={path.absolute().parents[2].name} and another "
        "--run-id."
    )
