"""What can be wrong with a file that PyTorch should have written."""

from __future__ import annotations

from pathlib import Path

from jaxrl.artifacts.files import ArtifactError


class TorchFileError(ArtifactError):
    """The file is none of PyTorch's, is damaged, or holds more than arrays. The text says which and what to do."""


def refused(path: Path, name: str) -> TorchFileError:
    """A file that names something else than arrays. Nothing of it has been run."""
    return TorchFileError(
        f"{path}: asks for {name}, which is not an array; nothing of it was run. Expected a checkpoint (.pt) that "
        "ML-Agents wrote: arrays and numbers alone"
    )


def damaged(path: Path, why: str) -> TorchFileError:
    """A file that does not hold what it should."""
    return TorchFileError(
        f"{path}: the file is damaged ({why}). Copy it anew, or take another: ML-Agents keeps several "
        "<Behavior>-<step>.pt in the behavior's folder"
    )
