"""`run_logs/manifest.json`: source, packages and machine with which a run was made.

    {"starts": [{"time": ..., "command": [...], "working_directory": {"commit": ..., "changed": false}, ...}]}

One entry for each time that the run was started; the last one has written what came last. No JAX.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jaxrl
from jaxrl import platforms
from jaxrl.artifacts import files
from jaxrl.artifacts.files import ArtifactError

MANIFEST = "manifest.json"
_SECONDS = 5.0
"""Longest wait for git; a clone of a large game may take longer, and is then left out."""
_NO_HELPERS = ("-c", "core.fsmonitor=false", "--no-optional-locks")  # asks nobody, writes nothing


def write(logs: Path, devices: Sequence[str], *, resume: bool) -> None:
    """Note a start of the run whose `run_logs` these are; a resumed one stands below those before it.

    Raises ArtifactError when it cannot be written.
    """
    path = logs / MANIFEST
    files.write_json(path, {"starts": [*(_starts(path) if resume else []), start(devices)]})


def start(devices: Sequence[str]) -> dict[str, Any]:
    """Describe source, packages and machine of this process, as plain values.

    `working_directory` and `jaxrl` are the clones of git in which the run was started and in which jaxrl lies, None
    where they are none; `changed`: whether a file of it differs from its commit. `packages`: all that are installed.
    """
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": sys.argv,
        "working_directory": git_state(Path.cwd()),
        "jaxrl": git_state(Path(jaxrl.__file__).parent, tracked="__init__.py"),
        "host": platform.node(),
        "platform": platform.platform(),
        "processor": platforms.processor(),
        "cores": os.cpu_count(),
        "devices": list(devices),
        "python": platform.python_version(),
        "packages": packages(),
    }


def packages() -> dict[str, str]:
    """Return the versions of all installed packages by name, in alphabetical order."""
    versions = dict(_name_and_version(package) for package in metadata.distributions())
    return dict(sorted(((name, value) for name, value in versions.items() if name), key=lambda entry: entry[0].lower()))


def _name_and_version(package: metadata.Distribution) -> tuple[str, str]:
    """Read name and version in the first lines: `package.name` parses the whole description, 0.1 s for 180 packages."""
    head = (package.read_text("METADATA") or package.read_text("PKG-INFO") or "").partition("\n\n")[0]
    fields = dict(line.split(": ", 1) for line in head.splitlines() if line.startswith(("Name: ", "Version: ")))
    return fields.get("Name", ""), fields.get("Version", "")


def git_state(folder: Path, tracked: str | None = None) -> dict[str, Any] | None:
    """Return the commit of the clone with `folder`, and whether tracked files differ from it; None without a clone.

    `tracked`: a file in the folder that the clone must track; an installed package inside a clone is not tracked.
    """
    try:
        if tracked is not None:
            _git(folder, "ls-files", "--error-unmatch", tracked)
        commit = _git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _starts(path: Path) -> list[Any]:
    """Read the starts noted so far; none if the run noted none, or its file is damaged."""
    try:
        manifest = files.read_json(path)
    except ArtifactError:
        return []
    starts = manifest.get("starts")
    return starts if isinstance(starts, list) else []


def _git(folder: Path, *words: str) -> str:
    command = ("git", "-C", str(folder), *_NO_HELPERS, *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    return done.stdout.strip()
