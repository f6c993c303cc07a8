"""Opponent snapshots on disk: `<run>/<Behavior>/self_play/<SHA-256>.npz`, written once for all checkpoints.

A checkpoint names the files that it needs, and a file is named by its content's hash: damage is found, and two
checkpoints with one snapshot share its file. The folder may be somebody else's: a file is read up to the size of the
policy, and only files with such names are deleted.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.artifacts import files
from jaxrl.artifacts.checkpoint import tree as trees
from jaxrl.artifacts.checkpoint.document import METADATA, CheckpointError, read_info
from jaxrl.artifacts.checkpoint.loop import SELF_PLAY
from jaxrl.artifacts.checkpoint.notes import SNAPSHOT_NAME
from jaxrl.artifacts.npz import read_npz
from jaxrl.regular_files import read_regular

FOLDER = "self_play"
ENDING = ".npz"
_ENTRY_BYTES = 1024
"""Bytes that a zip and NumPy write around an array, without its name, which is written twice."""


def pack(policy: Any) -> tuple[str, bytes]:
    """Return the name and the bytes of the file of a pytree of arrays; equal arrays give equal names."""
    stream = io.BytesIO()
    arrays = {path: np.ravel(x).view(np.uint8) for path, x in trees.to_arrays(policy).items()}
    np.savez(stream, allow_pickle=False, **arrays)
    return hashlib.sha256(stream.getvalue()).hexdigest() + ENDING, stream.getvalue()


def is_there(folder: Path, name: str) -> bool:
    """Return whether the behavior's folder `folder` has this file."""
    return (folder / FOLDER / name).is_file()


def write(folder: Path, packed: Mapping[str, bytes]) -> None:
    """Write those files, by name, that the behavior's folder `folder` does not have yet. Raises ArtifactError."""
    for name, content in packed.items():
        with files.writing(folder / FOLDER / name) as file:
            file.write(content)


def check(folder: Path, state: Mapping[str, Any], template: Any) -> None:
    """Raise CheckpointError unless all files that a checkpoint's SELF_PLAY names hold policies like `template`."""
    leaves = trees.leaves_of(template)
    for name in _named(state):
        _arrays(folder / FOLDER / name, leaves)


def read(folder: Path, name: str, template: Any) -> Any:
    """Read a policy in the form of `template`. Raises CheckpointError for a missing, damaged or foreign file."""
    leaves = trees.leaves_of(template)
    return trees.rebuild(template, _arrays(folder / FOLDER / name, leaves), leaves)


def prune(folder: Path) -> None:
    """Delete files of the behavior's folder `folder` that none of its checkpoints names any more.

    Deletes none where a checkpoint cannot be read. Raises ArtifactError.
    """
    written = [path for path in (folder / FOLDER).glob(f"*{ENDING}") if re.fullmatch(SNAPSHOT_NAME, path.name)]
    try:
        states = [read_info(path.parent).settings.get(SELF_PLAY) for path in folder.glob(f"*/{METADATA}") if written]
    except CheckpointError:
        return
    needed = {name for state in states if state is not None for name in _named(state)}
    for path in written:
        if path.name not in needed:
            with files.reported(path):
                path.unlink()


def _named(state: Mapping[str, Any]) -> set[str]:
    """Return the names of the files that one behavior's state of self-play needs."""
    exploiters = [opponent for exploiter in state.get("league", ()) for opponent in exploiter["playing"].values()]
    names = {opponent["weights"] for opponent in (*state["snapshots"], *state["playing"].values(), *exploiters)}
    return {name for name in names if name is not None}


def _arrays(path: Path, leaves: trees.Leaves) -> dict[str, np.ndarray]:
    """Return the arrays of a policy with these `leaves`, without those of size zero. Raises CheckpointError."""
    sizes = {name: trees.bytes_of(entry) for name, entry in leaves.items()}
    sizes = {name: size for name, size in sizes.items() if size}
    largest = sum(size + 2 * len(name) + _ENTRY_BYTES for name, size in sizes.items()) + _ENTRY_BYTES
    content = _content(path, largest)
    try:
        raw = read_npz(io.BytesIO(content), largest)
    except ValueError as error:
        raise _lost(path, f"does not fit this run ({error})") from error
    if {name: (x.shape, x.dtype) for name, x in raw.items()} != {name: ((n,), np.uint8) for name, n in sizes.items()}:
        unlike = sorted(name for name in {*raw, *sizes} if name not in raw or raw[name].nbytes != sizes.get(name))
        raise _lost(path, f"does not fit this run (arrays: {', '.join(unlike or sizes)[:200]})")
    return {name: x.view(jnp.dtype(leaves[name]["dtype"])).reshape(leaves[name]["shape"]) for name, x in raw.items()}


def _content(path: Path, largest: int) -> bytes:
    """Return the bytes of a file that is called after them."""
    try:
        content = read_regular(path, largest)
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
