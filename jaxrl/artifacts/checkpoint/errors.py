"""What can be wrong with a checkpoint."""

from __future__ import annotations

from pathlib import Path

from jaxrl.artifacts.files import ArtifactError


class CheckpointError(ArtifactError):
    """A checkpoint is missing, damaged, cannot be written or does not fit. The text says which and what to do."""


class DamagedError(CheckpointError):
    """What lies on disk is not what was written; `why` says in a few words what differs."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path}: the checkpoint is damaged ({why}). Restore it from a backup, or delete this folder: "
            "a run is then continued from the checkpoint before it."
        )
        self.why = why
