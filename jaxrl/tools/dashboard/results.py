"""Finds the runs below a results folder anew at each look: they begin, end and are deleted while the page is open."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxrl.artifacts import lock
from jaxrl.tools.dashboard.live_run import LiveRun
from jaxrl.tools.report.films import FOLDER, last_film
from jaxrl.tools.report.runs import places
from jaxrl.types import JaxrlError

_DEEP = 3
"""Depth of folders below the results folder in which runs are looked for: those of sweeps lie deeper than others."""
_SECONDS = 1.0
"""Time for reading in one look: many long runs are read over several looks, so that the page stays responsive."""
_MARKS = ("configuration.yaml", "run_logs", lock.NAME)


class Results:
    """Answers to requests of the page. Names of runs are looked up among the runs there are, never made into paths.

    Links are not followed: nothing outside the folder is read. Threads may share it.

    Raises JaxrlError if `root` is no folder.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            what = "is a file, not a folder" if root.exists() else "does not exist"
            raise JaxrlError(
                f"{root} {what}. Give the folder that holds results of runs, such as results; `jaxrl train` makes it."
            )
        self.root = root.resolve()
        self._runs: dict[str, LiveRun] = {}
        self._lock = threading.Lock()

    def table(self) -> list[dict[str, Any]]:
        """Return one row per run, the one that wrote last on top."""
        with self._lock:
            alone = _is_run(self.root)
            folders = {self.root.name: self.root} if alone else dict(self._below(self.root, _DEEP))
            self._runs = {name: self._runs.get(name) or LiveRun(path, name) for name, path in folders.items()}
            now, rows, deadline = time.time(), [], time.monotonic() + _SECONDS
            for run in sorted(self._runs.values(), key=lambda run: run.behind):  # a long one does not hold up others
                if (row := _row(run, now, deadline)) is not None:
                    rows.append(row)
        return sorted(rows, key=lambda row: (row["age"] is not None, row["age"] or 0.0))

    def curves(self, name: str, known: int) -> dict[str, Any] | None:
        """Return curves of a run, left out where nothing is new since version `known`; None: there is no such run."""
        with self._lock:
            run = self._runs.get(name)
            if run is None:
                return None
            new = {} if run.version == known else {"curves": run.curves()}
            return {"name": name, "version": run.version, **new}

    def film(self, name: str) -> Path | None:
        """Return the last film of a run; None: there is no such run, or it has none."""
        run = self._runs.get(name)
        if run is None or (run.folder / FOLDER).is_symlink():
            return None
        film = last_film(run.folder)
        return film if film is not None and film.is_file() and not film.is_symlink() else None

    def _below(self, folder: Path, deep: int) -> Iterator[tuple[str, Path]]:
        try:
            inside = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
        except OSError:  # deleted, or not ours to read
            return
        for name in inside:
            path = folder / name
            if _is_run(path):
                yield path.relative_to(self.root).as_posix(), path
            elif deep > 1:
                yield from self._below(path, deep - 1)


def _row(run: LiveRun, now: float, deadline: float) -> dict[str, Any] | None:
    """Return the row of a run; None for a deleted one. Any fault of its files is reported in the row."""
    try:
        run.refresh(deadline)
        row = run.status(now)
        json.dumps(row, allow_nan=False)
        return row
    except Exception as error:
        if not run.folder.is_dir():
            return None
        problem = f"its files cannot be shown ({type(error).__name__}: {error})"
        damaged = {"name": run.name, "state": "damaged", "why": "", "problem": problem, "version": run.version}
        return {**damaged, "age": None, "behaviors": {}, "behind": False, "film": None}


def _is_run(folder: Path) -> bool:
    try:
        return any((folder / mark).exists() for mark in _MARKS) or bool(places(folder))
    except OSError:
        return False
