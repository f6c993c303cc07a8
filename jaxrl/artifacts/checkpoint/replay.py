"""An algorithm's replay buffer as `<run>/<Behavior>/replay/`: one for all checkpoints, the newest.

    replay/0, replay/1, ...    the bytes of its arrays, in the order of checkpoint.json
    replay/checkpoint.json     as in a checkpoint; step and time are those of the checkpoint that it belongs to
    replay/manifest.json       likewise
    replay-before/             the one before, where several behaviors are resumed from one moment: until all have it

It may be as large as a machine allows. So its bytes go to files piece by piece while nothing else happens (`stage`),
and only flushing and measuring them is left for the thread that writes the checkpoint (`Staged.install`).
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import unfinished
from jaxrl.artifacts import files
from jaxrl.artifacts.checkpoint import folder as folders
from jaxrl.artifacts.checkpoint import manifest
from jaxrl.artifacts.checkpoint import tree as trees
from jaxrl.artifacts.checkpoint.document import (
    METADATA,
    CheckpointError,
    CheckpointInfo,
    DamagedError,
    read_info,
    verify,
)
from jaxrl.artifacts.checkpoint.folder import behaviors_of
from jaxrl.artifacts.checkpoint.loop import MOMENT, SEEDS
from jaxrl.artifacts.checkpoint.mismatch import mismatches
from jaxrl.artifacts.files import ArtifactError
from jaxrl.regular_files import open_regular
from jaxrl.settings.section import flatten
from jaxrl.types import BehaviorSpec

BUFFER = "hyperparameters.buffer_size"
PIECE_BYTES = 1 << 26
"""Largest piece of an array that is copied at a time."""
_SLACK_BYTES = 1 << 20
_log = logging.getLogger(__name__)


class Staged(NamedTuple):
    """Arrays in a folder of their own until their checkpoint exists."""

    path: Path
    partial: Path
    leaves: trees.Leaves
    error: OSError | None  # why they could not be written

    def install(self, checkpoint: Path) -> CheckpointError | None:
        """Make this the replay of `checkpoint`, in place of the former one. Return the error if that fails."""
        error = self.error
        try:
            if error is None:
                document = files.read_json(checkpoint / METADATA)
                files.write_json(self.partial / METADATA, {**document, "leaves": self.leaves})
                manifest.write(self.partial)
                files.sync_tree(self.partial)
                together = {MOMENT, SEEDS} & document["settings"].keys() and len(behaviors_of(self.path.parents[1])) > 1
                if together and self.path.exists():
                    folders.install(self.path, self.path.with_name(folders.REPLAY_BEFORE))
                folders.install(self.partial, self.path)
        except (OSError, ArtifactError) as failed:
            error = failed.__cause__ if isinstance(failed.__cause__, OSError) else failed
        if error is None:
            return None
        return CheckpointError(
            f"{self.path}: the replay cannot be written ({error}; {files.free_text(self.path)}). {checkpoint.name} is "
            f"complete without it. {files.remedy(self.path)} or check the folder's permissions."
        )


def stage(folder: Path, store: Any) -> Staged:
    """Write the arrays of a store in the behavior's folder `folder`. Afterwards the store may change."""
    path, error = folder / folders.REPLAY, None
    partial, leaves = unfinished.beside(path, unfinished.PARTIAL), trees.leaves_of(store)
    try:
        needed = sum(trees.bytes_of(entry) for entry in leaves.values()) + _SLACK_BYTES
        if files.free_bytes(partial) < needed:
            raise OSError(f"it needs about {needed / 2**20:.1f} MiB")
        unfinished.discard(partial)
        partial.mkdir(parents=True)
        for number, (_, leaf) in enumerate(trees.leaf_paths(store)):
            with (partial / str(number)).open("wb") as file:
                for piece in _pieces(leaf):
                    piece.tofile(file)
    except OSError as failed:
        error = failed
    return Staged(path, partial, leaves, error)


def _pieces(leaf: Any) -> Iterator[np.ndarray]:
    """Yield an array in pieces, each in memory of its own: a view would keep updates from reusing the array's."""
    plain = jnp.asarray(jax.random.key_data(leaf) if trees.is_key(leaf) else leaf)
    plain = plain.reshape(plain.shape or (1,))
    below = [plain.nbytes // max(math.prod(plain.shape[: axis + 1]), 1) for axis in range(plain.ndim)]  # of an index
    axis = next((axis for axis, size in enumerate(below) if size <= PIECE_BYTES), plain.ndim - 1)
    rows, rest = max(PIECE_BYTES // max(below[axis], 1), 1), plain.shape[axis + 1 :]
    for lead in np.ndindex(plain.shape[:axis]):
        for start in range(0, plain.shape[axis] if plain.size else 0, rows):
            sizes = (*[1] * axis, min(rows, plain.shape[axis] - start), *rest)
            yield np.asarray(jax.lax.dynamic_slice(plain, (*lead, start, *[0] * len(rest)), sizes))


def restore(
    folder: Path, template: Any, checkpoint: Path, *, spec: BehaviorSpec, settings: Mapping[str, Any]
) -> Any | None:
    """Read the replay in the behavior's folder `folder` in the form of `template`; None: there is none.

    One that does not belong to the checkpoint that the run goes on from is told, and taken. Raises CheckpointError for
    one that is damaged, or of other sizes, sensors or settings.
    """
    checkpoint_info = read_info(checkpoint)
    path = _of(folder, checkpoint_info) or folder / folders.REPLAY
    if not path.exists():
        return None
    try:
        verify(path)
        info = read_info(path)
    except DamagedError as error:
        raise _damaged(path, error.why) from error
    unfit = trees.leaf_mismatches(info.leaves, trees.leaves_of(template))
    if unfit:
        changes = "; ".join(_changes(info, spec, settings) or unfit[:3])
        raise CheckpointError(
            f"{path}: the replay does not fit this run ({changes}): undo this, or delete this folder to go on with an "
            "empty replay."
        )
    if _of(folder, checkpoint_info) is None:
        _log.warning(
            "%s: belongs to the checkpoint of step %d, and the run goes on from another, of step %d: it does not go on "
            "bit for bit.",
            path, info.step, checkpoint_info.step,
        )  # fmt: skip
    try:
        arrays = {
            name: _mapped(path / str(number), entry)
            for number, (name, entry) in enumerate(info.leaves.items())
            if trees.bytes_of(entry)
        }
    except (OSError, ValueError) as error:  # of files that the manifest does not list
        raise _damaged(path, str(error)) from error
    return trees.rebuild(template, arrays, info.leaves)


def _mapped(path: Path, entry: Mapping[str, Any]) -> np.ndarray:
    """Return the array in a file. Raises OSError or ValueError for a file that is none or has another size."""
    with open_regular(path) as file:
        return np.memmap(file, np.uint8, "r").view(jnp.dtype(entry["dtype"])).reshape(entry["shape"])


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: the replay is damaged ({why}). Restore it from a backup, or delete this folder: the run then goes on "
        "with an empty one."
    )


def belongs_to(folder: Path, checkpoint: CheckpointInfo) -> bool:
    """Return whether a replay in a behavior's folder, if there is one, is of the moment of this checkpoint."""
    return _of(folder, checkpoint) is not None or not (folder / folders.REPLAY).exists()


def _of(folder: Path, checkpoint: CheckpointInfo) -> Path | None:
    """Return the folder of the replay of the moment of this checkpoint; None: there is none."""
    for path in (folder / name for name in (folders.REPLAY, folders.REPLAY_BEFORE)):
        with contextlib.suppress(CheckpointError):  # damaged, or none
            info = read_info(path)
            if (info.step, info.created) == (checkpoint.step, checkpoint.created):
                return path
    return None


def _changes(info: CheckpointInfo, spec: BehaviorSpec, settings: Mapping[str, Any]) -> list[str]:
    """Describe in words what the user has changed since."""
    old, new = (flatten(side).get(BUFFER) for side in (info.settings, settings))
    changed = mismatches(info.spec, info.settings, spec, settings)
    return [*changed, f"{BUFFER}: {old} in the checkpoint, {new} now"] if old != new else changed
