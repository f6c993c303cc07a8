"""Checks names of runs and behaviors, which become folders: a name that some file system refuses is refused early."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from jaxrl import platforms
from jaxrl.artifacts.files import ArtifactError, nearest_existing

_BAD = re.compile(r'[<>:"/\\|?*\x00-\x1f]|^\.+$|^ |[ .]$')  # that Windows, Linux or macOS refuse for a folder
_TEAM = re.compile(r"[?&]team=(\d+)$")
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)  # on Windows, with any ending
_BEHAVIOR_EXTRA = 80  # bytes: -<step>.onnx, and who writes it while it is unfinished (unfinished.py)
_TAKEN = ("run_logs", "run.lock", "configuration.yaml")  # beside the behaviors' folders
_LONGEST_BELOW = 192  # bytes: files of a checkpoint below its folder, or the name of an event file


class RunFolderError(ArtifactError):
    """The run's folder cannot be used as asked. The text names the folder and the flags that mend it."""


def is_folder_name(name: str) -> bool:
    """Return whether a folder can have this name everywhere: results are copied from one system to another."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:  # bytes of the command line that are no text
        return False
    return bool(name) and not _BAD.search(name) and not _DEVICES.fullmatch(name)


@lru_cache(maxsize=1024)
def behavior_name(behavior_id: str) -> str:
    """Return the behavior's name without its team: "Soccer?team=1" gives "Soccer".

    Raises RunFolderError when no folder of a run can have that name.
    """
    name = behavior_id.partition("?")[0]
    if not is_folder_name(name) or name.lower() in _TAKEN:
        raise RunFolderError(
            f"behavior name {name!r} cannot be the name of a folder. Rename it in Unity (Behavior Parameters) and in "
            'the YAML: letters, digits, blanks, "-", "_" and "." inside are fine.'
        )
    return name


def exploiter_name(behavior: str, place: int) -> str:
    """Return the name of an exploiter of a behavior in the host loop; its events have the folder of this name."""
    return f"{behavior}/exploiter_{place}"


@lru_cache(maxsize=1024)
def team_of(behavior_id: str) -> int:
    """Return the number of a behavior's team: "Soccer?team=1" gives 1. Without a team, or with no number, 0."""
    number = _TEAM.search(behavior_id)
    return 0 if number is None else int(number.group(1))


def check_together(behaviors: Iterable[str]) -> None:
    """Raise RunFolderError where two behaviors of a run would write to one path, on some system at least."""
    taken: dict[str, str] = {}
    for name in dict.fromkeys(map(behavior_name, behaviors)):
        for path in (name.lower(), f"{name}.onnx".lower()):
            if taken.setdefault(path, name) != name:
                raise RunFolderError(
                    f"behaviors {taken[path]!r} and {name!r} would both write to {path!r} in the run's folder (some "
                    "systems do not tell a from A). Rename one in Unity (Behavior Parameters) and in the YAML."
                )


def check_run_names(results_dir: Path, run_id: str) -> None:
    """Raise RunFolderError unless a folder `<results_dir>/<run_id>` can be, and can hold what a run writes.

    `run_id` may lead through folders (`levels/easy`), but never out of `results_dir`.
    """
    names = run_id.split("/")
    if not all(map(is_folder_name, names)):
        raise RunFolderError(
            f"--run-id {run_id!r} cannot be the name of a folder; use letters, digits, - and _, and / for a folder "
            f"below {results_dir}."
        )
    if "\x00" in str(results_dir):
        raise RunFolderError(f"--results-dir {str(results_dir)!r} cannot be a folder: it holds a NUL character.")
    limit = platforms.longest_name(nearest_existing(results_dir))
    longest = max(map(_size, names))
    if longest > limit:
        raise RunFolderError(
            f"--run-id {run_id[:20]}... is {longest} bytes long, this file system takes {limit}. Choose a shorter one."
        )
    _check_path(results_dir, results_dir / run_id)


def check_behavior_size(run: Path, name: str) -> None:
    """Raise RunFolderError unless the file system takes the names of this behavior's checkpoints below `run`."""
    limit = platforms.longest_name(nearest_existing(run)) - _BEHAVIOR_EXTRA
    if _size(name) > limit:
        raise RunFolderError(
            f"behavior name {name[:20]}... is {_size(name)} bytes long, and names of its checkpoints are longer: at "
            f"most {limit} fit into this file system. Rename it in Unity (Behavior Parameters) and in the YAML."
        )
    _check_path(run.parent, run / name / name)


def _check_path(results_dir: Path, path: Path) -> None:
    size, limit = _size(str(path.absolute())) + _LONGEST_BELOW, platforms.longest_path(nearest_existing(results_dir))
    if size > limit:
        raise RunFolderError(
            f"--results-dir {str(results_dir)[:40]}...: paths of the run's files would be up to {size} bytes long, "
            f"this system takes {limit}. Choose a folder with a shorter path."
        )


def _size(text: str) -> int:
    return len(os.fsencode(text))
