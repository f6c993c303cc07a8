"""`manifest.json` of a checkpoint: size and SHA-256 of every other file in its folder, written last. No JAX.

{"files": {"checkpoint.json": {"size": 4711, "sha256": "9f86..."}, "arrays/d/...": {...}}}
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from jaxrl.artifacts import files
from jaxrl.artifacts.files import ArtifactError

MANIFEST = "manifest.json"


class _File(BaseModel):
    size: int
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Manifest(BaseModel):
    files: dict[str, _File]


def write(folder: Path) -> None:
    """Describe every file below `folder` as it lies there. Raises OSError or ArtifactError."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    described: dict[str, Any] = {}
    for name in names:
        size, digest = _measured(folder / name)
        described[name] = {"size": size, "sha256": digest}
    files.write_json(folder / MANIFEST, {"files": described})


def difference(folder: Path, largest: int) -> str | None:
    """Describe in words how `folder` differs from its manifest; None when all is as it was written.

    The manifest itself must be there. Files that it does not list are the user's own. `largest`: bytes that those
    together may have, which are read.
    """
    try:
        listed = _Manifest.model_validate(files.read_json(folder / MANIFEST), strict=True).files
    except (ArtifactError, ValidationError):
        return f"{MANIFEST} cannot be read"
    total = sum(entry.size for entry in listed.values())
    if total > largest:
        return f"its files have {total:,} bytes, and its arrays {largest:,} at most"
    texts = [text for name, entry in listed.items() if (text := _difference(folder, name, entry)) is not None]
    if not texts:
        return None
    return texts[0] if len(texts) == 1 else f"{texts[0]}, and {len(texts) - 1} more of its files differ"


def require_files(folder: Path) -> None:
    """Raise OSError where something below `folder` is neither a folder nor a file: opening a pipe would wait."""
    for path in folder.rglob("*"):
        if not (path.is_file() or path.is_dir()):
            raise OSError(f"{path.relative_to(folder)} is no file")


def _difference(folder: Path, name: str, entry: _File) -> str | None:
    path = folder / name
    if not path.is_file():
        return f"{name} is missing"
    try:
        size = path.stat().st_size
        if size != entry.size:
            return f"{name} has {size} bytes instead of {entry.size}"
        return None if _measured(path)[1] == entry.sha256 else f"the content of {name} has changed"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror or error}"


def _measured(path: Path) -> tuple[int, str]:
    """Return size in bytes and SHA-256 in hexadecimal digits."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()
