"""Reads the file of numbers: a JSON line per benchmark and repetition, with the machine that measured it.

Lines that earlier versions wrote lack the fields with a default here; unknown fields of later versions are ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from jaxrl.types import JaxrlError


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Accelerator(_Part):
    """Devices on which JAX computes, named as JAX names them."""

    backend: str  # cpu, gpu or tpu
    kind: str
    count: int


class Machine(_Part):
    """The computer."""

    cpu: str
    cores: int  # that the process could use
    platform: str
    accelerator: Accelerator


class Commit(_Part):
    """Commit of the source."""

    hash: str
    changed: bool  # files differed from it
    time: float | None = None  # when it was committed, seconds since 1970


class Line(_Part):
    """Run of one benchmark."""

    benchmark: str
    state: Literal["ok", "failed", "skipped"]
    seconds: float  # wall time of the process
    results: tuple[dict[str, Any], ...]  # objects that the script wrote, one per case
    message: str  # reason of a failure or a skip
    time: float  # of the end, seconds since 1970
    quick: bool
    machine: Machine
    versions: dict[str, str]
    commit: Commit | None
    load: float | None = None  # average number of busy processes in the minute before the start

    @property
    def source(self) -> str:
        """Commit or version, in words."""
        if self.commit is None:
            return f"jaxrl {self.versions.get('jaxrl_version', 'of an unknown version')}"
        return self.commit.hash[:8] + ("+" if self.commit.changed else "")

    @property
    def device(self) -> str:
        """Name of the machine and device; with --quick, since its sizes differ."""
        accelerator, quick = self.machine.accelerator, ", --quick" if self.quick else ""
        return f"{self.machine.cpu}, {self.machine.cores} cores; {accelerator.count} x {accelerator.kind}{quick}"


class Measured(NamedTuple):
    """The lines of one source on one device in one file."""

    path: Path
    lines: tuple[Line, ...]

    @property
    def last(self) -> Line:
        """Latest line."""
        return self.lines[-1]

    @property
    def when(self) -> float:
        """Time in seconds since 1970, of the commit where it is known, else of the measurement."""
        committed = self.last.commit.time if self.last.commit else None
        return committed if committed is not None else self.last.time


def read_lines(path: Path) -> list[Line]:
    """Return all lines of a file. Raises JaxrlError if it is unreadable, empty, or not written by `jaxrl bench`."""
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise JaxrlError(f"{path}: cannot be read ({reason}); give a file that `jaxrl bench` has written.") from None
    lines = [_line(path, number, text) for number, text in enumerate(texts, 1) if text.strip()]
    if not lines:
        raise JaxrlError(f"{path}: holds no numbers; give a file that `jaxrl bench` has written.")
    return lines


def _line(path: Path, number: int, text: str) -> Line:
    try:
        return Line.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole line"
        raise JaxrlError(
            f"{path}, line {number}: no line of `jaxrl bench` ({where}: {first['msg'].lower()}); measure again with "
            "this version, or delete the line."
        ) from None


def measured(path: Path) -> list[Measured]:
    """Return the file's lines by source, device and version of JAX, ordered by their latest line. As `read_lines`."""
    groups: dict[Any, list[Line]] = {}
    for line in read_lines(path):
        key = line.source, line.device, line.versions.get("jax_version")
        groups[key] = [*groups.pop(key, ()), line]
    return [Measured(path, tuple(lines)) for lines in groups.values()]


def latest(path: Path) -> Measured:
    """Return the group that the file ends with. Raises as `read_lines`."""
    return measured(path)[-1]
