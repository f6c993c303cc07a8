"""Follows the event files of one behavior and seed while they grow: each poll reads what is new."""

from __future__ import annotations

import math
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tensorboardX.proto.event_pb2 import SessionLog  # pyright: ignore[reportAttributeAccessIssue] made at import

from jaxrl.artifacts.run_folder import EVENTS
from jaxrl.tools.report.events import Curve, ReportError, read_events

_SUMMARIES = 6
"""So many summaries tell the speed."""


class _Place(NamedTuple):
    """How far a file is read."""

    inode: int
    end: int  # in bytes


class Follower:
    """The scalars in `folder`. `poll` reads on; what it has found stays when a file is damaged (`problem`)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem: str | None = None
        self.behind = False  # there is more to read than the last poll had time for
        self.last_time = 0.0  # seconds since the epoch, of the last summary
        self._begin()

    def _begin(self) -> None:
        self._places: dict[Path, _Place] = {}
        self._points: dict[str, dict[int, float]] = {}
        self._recent: deque[tuple[float, int]] = deque(maxlen=_SUMMARIES)  # time and step of summaries of one session

    def poll(self, deadline: float = math.inf) -> bool:
        """Read what was written since the last time, until `deadline` (monotonic); whether there was anything.

        A file that has become shorter, or another one under its name, means that the run began anew: all is read again.
        """
        try:
            sizes = {path: path.stat() for path in sorted(self.folder.glob(EVENTS)) if not path.is_symlink()}
        except OSError:  # deleted at this moment
            sizes = {}
        anew = any(
            path not in sizes or sizes[path].st_ino != place.inode or sizes[path].st_size < place.end
            for path, place in self._places.items()
        )
        if anew:
            self._begin()
        changed = anew
        self.problem, self.behind = None, False
        for path, found in sorted(sizes.items(), key=lambda item: item[0].name):  # names begin with the time
            known = self._places.get(path, _Place(found.st_ino, 0))
            if found.st_size > known.end and not self.behind:
                changed |= self._read_on(path, known, found.st_size, deadline)
        return changed

    def _read_on(self, path: Path, place: _Place, size: int, deadline: float) -> bool:
        end = place.end
        if end == 0:  # a new session; ML-Agents writes no START
            self._recent.clear()
        try:
            for event, reached in read_events(path, end):
                self._take(event)
                end = reached
                self.behind = reached < size and time.monotonic() > deadline
                if self.behind:
                    break
        except ReportError as error:
            self.problem = str(error)
        self._places[path] = _Place(place.inode, end)
        return end > place.end

    def _take(self, event: Any) -> None:
        if event.session_log.status == SessionLog.START:  # a resumed run: what came after its checkpoint is void
            kept = {tag: {s: v for s, v in old.items() if s < event.step} for tag, old in self._points.items()}
            self._points = {tag: old for tag, old in kept.items() if old}
            self._recent.clear()
        told = math.isfinite(event.wall_time)
        for value in event.summary.value:
            if value.HasField("simple_value"):
                self._points.setdefault(value.tag, {})[event.step] = value.simple_value
                self.last_time = event.wall_time if told else self.last_time
                if told and (not self._recent or self._recent[-1][1] != event.step):
                    self._recent.append((event.wall_time, event.step))

    @property
    def tags(self) -> list[str]:
        """All that have a value."""
        return list(self._points)

    @property
    def step(self) -> int:
        """Of the last summary, 0 without any."""
        return max((max(points) for points in self._points.values()), default=0)

    @property
    def speed(self) -> float | None:
        """Agent steps per second between the last few summaries; None before the second one."""
        if len(self._recent) < 2:
            return None
        (begin, first), (end, last) = self._recent[0], self._recent[-1]
        return (last - first) / (end - begin) if end > begin else None

    def curve(self, tag: str) -> Curve | None:
        """All values of a tag; None: there are none."""
        points = self._points.get(tag)
        if not points:
            return None
        steps = sorted(points)
        return Curve(np.array(steps, np.int64), np.array([points[step] for step in steps], np.float64))

    def last(self, tag: str) -> float | None:
        """The value of the last summary of a tag."""
        points = self._points.get(tag)
        return points[max(points)] if points else None
