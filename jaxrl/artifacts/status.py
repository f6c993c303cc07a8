"""`training_status.json`: checkpoints, lessons and versions of a run, in ML-Agents' format.

{"<Behavior>": {"checkpoints": [...], "final_checkpoint": {...}},
 "<parameter>": {"lesson_num": 2},
 "metadata": {"stats_format_version": "0.3.0", "jaxrl_version": ..., ...}}
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from jaxrl import unfinished
from jaxrl.artifacts import files
from jaxrl.artifacts.checkpoint.notes import EpisodeNotes, Number, SumAndCount
from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.versions import versions
from jaxrl.settings.section import dotted
from jaxrl.types import Identity

FORMAT = "0.3.0"
METADATA = "metadata"
CHECKPOINTS = "checkpoints"
FINAL = "final_checkpoint"
LESSON = "lesson_num"
ELO = "elo"
"""Entry of a behavior with self_play: the learner's rating."""
GROUP_REWARDS = "group_rewards"
"""Entry of a behavior whose team had a group reward: from then on group rewards are shown, also where they are 0."""
STOP = "stop"
"""Entry of a behavior with stop rules: by tag, how often the value was reached, by seed."""
BEST_CHECKPOINT = "best_checkpoint"
"""Entry of a behavior with keep_best: like one of CHECKPOINTS, with the statistic, its value and whose seed it was."""
RECORDS = "records"
"""Entry of a behavior with records elsewhere (W&B, MLflow): what continuations are known by there, by seed."""
IDENTITY = "identity"
"""Entry of a behavior of somebody else's environment: name and spaces of its agents (`jaxrl.types.Identity`)."""
DAMAGED = ".damaged"
"""Ending of the name under which a file that cannot be read is kept."""

_log = logging.getLogger(__name__)


class _Saved(BaseModel):
    steps: Annotated[int, Field(ge=0)]


class _Best(_Saved):
    statistic: str
    value: float


class _Identity(BaseModel, extra="forbid"):
    name: str
    spaces: str


class _Rule(BaseModel):
    value: float
    patience: int
    in_a_row: list[int]
    reached: list[bool]


class _Entries(BaseModel):
    """Entries of one behavior or environment parameter that are read again; others are kept as they are."""

    checkpoints: list[_Saved] = []
    lesson_num: Annotated[int, Field(ge=0)] | list[Annotated[int, Field(ge=0)]] | None = None  # a list: by seed
    smoothed: Number = 0.0  # of an environment parameter, as `since_look`, see jaxrl.training.lessons
    since_look: SumAndCount = [0.0, 0]
    lessons: EpisodeNotes | None = None
    seed: Annotated[int, Field(ge=0)] | None = None
    best_checkpoint: _Best | None = None
    records: dict[str, str] = {}
    elo: float | None = None
    identity: _Identity | None = None
    group_rewards: bool = False
    stop: dict[str, _Rule] = {}  # see jaxrl.training.judging


_DOCUMENT = TypeAdapter(dict[str, _Entries])


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Read the entries of the file by behavior, environment parameter and METADATA.

    Raises ArtifactError when it is not what jaxrl or ML-Agents writes; the text says what is wrong.
    """
    values = files.read_json(path)
    try:
        _DOCUMENT.validate_python(values, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ArtifactError(f"{path}: {dotted(first['loc'])}: {first['msg']}") from error
    return values


def identities(path: Path) -> dict[str, Identity]:
    """Return who the behaviors of a run are, by name; nothing where there is no status that can be read."""
    try:
        values = read(path) if path.is_file() else {}
    except ArtifactError:
        return {}
    return {name: Identity(**entries[IDENTITY]) for name, entries in values.items() if IDENTITY in entries}


class TrainingStatus:
    """Status of one run; every change is kept in memory until `write`. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values: dict[str, dict[str, Any]] = {}
        self._lock = threading.RLock()

    def resume(self) -> None:
        """Go on from what the file tells of the run before; nothing has been set yet.

        A missing file leaves the status empty, with a warning, a damaged one as well: it is kept as `<name>.damaged`.
        Other versions than this program's give a warning each. Raises ArtifactError when nothing can be written.
        """
        path = self.path
        if not path.exists():
            _log.warning("%s does not exist: lesson numbers and the list of checkpoints start from scratch.", path)
            return
        try:
            values = read(path)
            if METADATA not in values:
                raise ArtifactError(f"{path}: the entry {METADATA!r} is missing, so it is no training status file")
        except ArtifactError as error:
            _set_aside(path, error)
            return
        noted = values.pop(METADATA)
        _compare_versions(path, noted)
        named = {key: value for key, value in noted.items() if key not in _metadata()}  # a parameter of that name
        with self._lock:
            self._values = values | ({METADATA: named} if named else {})

    def get(self, category: str, key: str, default: Any = None) -> Any:
        """Return one value, for example get("wall_height", LESSON, 0)."""
        with self._lock:
            return self._values.get(category, {}).get(key, default)

    def set(self, category: str, key: str, value: Any) -> None:
        """Set one value of a behavior or an environment parameter (plain JSON values)."""
        with self._lock:
            self._values.setdefault(category, {})[key] = value

    def add_checkpoint(
        self, behavior: str, step: int, onnx: Path, reward: float | None, auxiliary: Sequence[Path] = (), keep: int = 0
    ) -> None:
        """Note a checkpoint and forget the oldest beyond `keep` (<= 0 keeps all); the same step is replaced.

        Neither forgotten nor counted are those of later steps, behind which the run went back: they are still there.
        `reward` is the mean episode return since the last update, None (or NaN) when no episode ended: what the same
        step has had before stays then. `auxiliary` are the other files of the checkpoint. The files themselves are
        removed by checkpoint_folder.prune.
        """
        with self._lock:
            known = self.get(behavior, CHECKPOINTS, [])
            entry = _entry(step, onnx, reward, auxiliary)
            if entry["reward"] is None:
                entry["reward"] = next((item.get("reward") for item in known if item["steps"] == step), None)
            entries = [*(item for item in known if item["steps"] < step), entry]
            later = [item for item in known if item["steps"] > step]
            self.set(behavior, CHECKPOINTS, [*(entries[-keep:] if keep > 0 else entries), *later])

    def note(
        self,
        behavior: str,
        key: str,
        step: int,
        onnx: Path,
        reward: float | None,
        auxiliary: Sequence[Path] = (),
        **more: str | float | None,
    ) -> None:
        """Record the ONNX file of the final save (FINAL), or the checkpoint that `keep_best` keeps (BEST_CHECKPOINT).

        `more`: why that checkpoint is the best: statistic, value and seed.
        """
        self.set(behavior, key, {**_entry(step, onnx, reward, auxiliary), **more})

    def write(self) -> None:
        """Write the file atomically. Raises ArtifactError when it cannot be written."""
        with self._lock:
            files.write_json(self.path, self._values | {METADATA: self._values.get(METADATA, {}) | _metadata()})


def _set_aside(path: Path, error: ArtifactError) -> None:
    """Rename a status file that cannot be read, to make room for a new one."""
    damaged = path.with_name(path.name + DAMAGED)
    with files.reported(damaged):
        unfinished.replace(path, damaged)
    _log.warning(
        "%s. It is kept as %s; lesson numbers and the list of checkpoints start from scratch.",
        str(error).rstrip("."), damaged.name,
    )  # fmt: skip


def _metadata() -> dict[str, str]:
    return {"stats_format_version": FORMAT, **versions()}


def _entry(step: int, onnx: Path, reward: float | None, auxiliary: Sequence[Path]) -> dict[str, Any]:
    return {
        "steps": int(step),
        "file_path": onnx.as_posix(),
        "reward": None if reward is None or not math.isfinite(reward) else float(reward),
        "creation_time": time.time(),
        "auxillary_file_paths": [path.as_posix() for path in auxiliary],
    }


def _compare_versions(path: Path, saved: dict[str, Any]) -> None:
    """Warn about each version that differs from this program's, as far as both note it."""
    for name, current in _metadata().items():
        if name in saved and saved[name] != current:
            _log.warning("%s: %s was %s when the run was saved, now it is %s.", path, name, saved[name], current)
