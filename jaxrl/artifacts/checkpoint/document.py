"""`checkpoint.json`: a description of the arrays beside it. Checked strictly, since users open and edit it. No JAX."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jaxrl import trust
from jaxrl.artifacts import files
from jaxrl.artifacts.checkpoint import manifest
from jaxrl.artifacts.checkpoint.notes import Notes
from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.versions import versions as current
from jaxrl.settings.section import dotted

METADATA = "checkpoint.json"
FORMAT = 2

_NUMBER_BYTES = 32
"""Bytes in all files for one number of an array: the widest dtype, which the array store may write twice."""
_LEAF_BYTES = 2**14
_SLACK_BYTES = 2**25  # of checkpoint.json, and of what the array store notes about itself
_Size = Annotated[int, Field(ge=0)]
_Axis = Literal["unspecified", "none", "translational_equivariance", "variable_size"]
_DTYPE = r"^(bool|int|float|bfloat16|u?int(2|4|8|16|32|64)|float(8_\w+|16|32|64)|complex(64|128))$"


class CheckpointError(ArtifactError):
    """A checkpoint is missing, damaged, cannot be written or does not fit. The text says which and what to do."""


class DamagedError(CheckpointError):
    """A file on disk differs from the file that was written; `why` says in a few words how."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path}: the checkpoint is damaged ({why}). Restore it from a backup, or delete this folder: "
            "a run is then continued from the checkpoint before it."
        )
        self.why = why


class CheckpointInfo(NamedTuple):
    """Contents of checkpoint.json: a description of the arrays beside it."""

    behavior: str
    step: int
    spec: Mapping[str, Any]  # observations and action sizes, as `spec_to_json` writes them; empty when not given
    settings: Mapping[str, Any]  # the behavior's resolved settings
    versions: Mapping[str, str]
    created: float  # seconds since 1970
    leaves: Mapping[str, Mapping[str, Any]]  # `tree.Leaves`, under the names that they were written with


class _Leaf(BaseModel):
    dtype: Annotated[str, Field(pattern=_DTYPE)]
    shape: list[_Size]
    key: str | None = None


class _Sensor(BaseModel):
    name: str
    shape: list[_Size]
    type: Literal["default", "goal_signal"]
    dtype: Annotated[str, Field(pattern=_DTYPE)] = "float32"
    dimension_property: list[_Axis] = []


class _Spec(BaseModel):
    observations: list[_Sensor]
    continuous_actions: _Size
    discrete_branches: list[_Size]


class _Nothing(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Document(BaseModel):
    format: int
    behavior: str
    step: _Size
    spec: _Spec | _Nothing
    settings: Notes
    versions: dict[str, str]
    created: float
    leaves: dict[str, _Leaf]
    manifest: Literal["manifest.json"]


def verify(path: Path) -> None:
    """Raise DamagedError unless every byte of the checkpoint at `path` is as it was written.

    Raises CheckpointError for a newer format.
    """
    shapes = [leaf["shape"] for leaf in _read(path)["leaves"].values()]
    largest = _SLACK_BYTES + sum(_LEAF_BYTES + _NUMBER_BYTES * math.prod(shape) for shape in shapes)
    difference = manifest.difference(path, largest)
    if difference is not None:
        raise DamagedError(path, difference)


def read_info(path: Path) -> CheckpointInfo:
    """Read the description of the checkpoint at `path`.

    Raises DamagedError when its checkpoint.json is not what jaxrl writes, CheckpointError for a newer format.
    """
    document = _read(path)
    return CheckpointInfo(**{name: document[name] for name in CheckpointInfo._fields})


def written_by(versions: Mapping[str, str]) -> str:
    """Return a sentence to append to an error, " It was ...", if another version of jaxrl wrote the file; else ""."""
    theirs, ours = versions.get("jaxrl_version"), current()["jaxrl_version"]
    return f" It was written by jaxrl {theirs}, this is {ours}." if theirs and theirs != ours else ""


def _read(path: Path) -> dict[str, Any]:
    """Read and check the document of the checkpoint at `path`."""
    try:
        document = files.read_json(path / METADATA)
    except ArtifactError as error:
        gone = not (path / METADATA).exists()
        raise DamagedError(path, f"{METADATA} {'is missing' if gone else 'cannot be read'}") from error
    written = document.get("format")
    if isinstance(written, int) and written > FORMAT:
        versions = document.get("versions")
        version = versions.get("jaxrl_version") if isinstance(versions, dict) else "unknown"
        raise CheckpointError(
            f"{path}: checkpoint format {written}, this jaxrl reads format {FORMAT}. "
            f"It was written by jaxrl {version}: install that version."
        )
    if written != FORMAT:
        raise DamagedError(path, f"{METADATA}: format is {written!r:.40}")
    try:
        _Document.model_validate(document, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        text = f"{METADATA}: {dotted(first['loc'])}: {first['msg']}"
        raise DamagedError(path, text) from error
    trust.note(document["settings"], path / METADATA)
    return document
