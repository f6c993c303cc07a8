"""Reads one run for the live page: its state, its progress, and its curves so far."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tensorboardX.proto.event_pb2 import SessionLog  # pyright: ignore[reportAttributeAccessIssue] made at import

from jaxrl.artifacts import lock, status
from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.lock import Held
from jaxrl.artifacts.run_folder import RunFolder, event_files
from jaxrl.tools.report.curves import is_first, numbers, ordered
from jaxrl.tools.report.events import Curve, Points, ReportError, read_events
from jaxrl.tools.report.films import last_film
from jaxrl.tools.report.runs import places, read_settings
from jaxrl.tools.report.statistics import on_common_steps
from jaxrl.tools.report.tables import SCORES, short, tells, titles

POINTS = 300
"""Largest number of points of a curve: a panel shows no more."""
SILENT = 300.0
"""Seconds without a summary after which a run without a lock of its own, such as ML-Agents', counts as over."""
_SUMMARIES = 6
"""Number of summaries over which the speed is measured."""


class LiveRun:
    """The run in `folder`, called `name`. `refresh` looks at its files again; damage is reported, not raised."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.version = 0  # grows with all data that are read
        self._followers: dict[tuple[str, str], Follower] = {}  # by behavior and seed
        self._settings: dict[str, Any] = {}
        self._settings_at = -1.0
        self._problem: str | None = None

    def refresh(self, deadline: float = math.inf) -> None:
        """Read new data, until `deadline` (monotonic)."""
        inside = self.folder.resolve()
        folders = {
            (behavior, seed): place
            for behavior, seed, place in places(self.folder)
            if place.resolve().is_relative_to(inside)  # no link to somewhere else
        }
        gone = [key for key in self._followers if key not in folders]
        for key in gone:
            del self._followers[key]
        changed = bool(gone)
        for key, place in folders.items():
            follower = self._followers.setdefault(key, Follower(place))
            if time.monotonic() > deadline:
                follower.behind = True
            else:
                changed |= follower.poll(deadline)
        self.version += changed
        self._read_settings()

    @property
    def behind(self) -> bool:
        """There is more to read than the last look had time for."""
        return any(follower.behind for follower in self._followers.values())

    def status(self, now: float) -> dict[str, Any]:
        """Return one row of the table, as JSON values. `now` in seconds since the epoch."""
        ends = self._ends()
        names = dict.fromkeys(key[0] for key in self._followers)
        behaviors = {name: self._behavior(name, ends.get(name, 0)) for name in names}
        last = max((follower.last_time for follower in self._followers.values()), default=0.0)
        age = max(now - last, 0.0) if last else None
        held = lock.look(self.folder)
        state, why = self._state(held, behaviors, ends, age)
        film = last_film(self.folder)
        problems = [follower.problem for follower in self._followers.values() if follower.problem]
        return {
            "name": self.name,
            "state": state,
            "why": why,
            "problem": (problems or [self._problem])[0],
            "age": age,
            "behaviors": behaviors,
            "behind": self.behind,
            "film": None if film is None else film.name,
            "version": self.version,
        }

    def curves(self) -> list[dict[str, Any]]:
        """Return [{behavior, tag, title, first, step, mean, low?, high?}]: mean, lowest and highest of all seeds."""
        curves = []
        for behavior in dict.fromkeys(key[0] for key in self._followers):
            followers = self._of(behavior)
            found_tags = ordered({tag for follower in followers for tag in follower.tags})
            for tag, title in titles(found_tags).items():
                line = spread(_curves(followers, tag))
                if any(value is not None for value in line["mean"]):
                    about = {"behavior": behavior, "tag": tag, "title": title, "first": is_first(tag)}
                    curves.append({**about, **line})
        return curves

    def _of(self, behavior: str) -> list[Follower]:
        return [follower for key, follower in self._followers.items() if key[0] == behavior]

    def _behavior(self, name: str, end: int) -> dict[str, Any]:
        """Return the row of a behavior. `end`: its step in the final checkpoint, used where there was no summary."""
        followers = self._of(name)
        tag = next((tag for tag in SCORES if tells(tag, [_curves(followers, tag)])), None)
        scores = [] if tag is None else [float(curve.value[-1]) for curve in _curves(followers, tag)]
        known = [score for score in scores if math.isfinite(score)]
        speeds = [follower.speed for follower in followers if follower.speed is not None]
        return {
            "step": max(follower.step for follower in followers) or end,
            "max_steps": self._max_steps(name),
            "seeds": len(followers),
            "speed": sum(speeds) if speeds else None,
            "score": sum(known) / len(known) if known else None,
            "score_tag": None if tag is None else short(tag),
        }

    def _max_steps(self, behavior: str) -> int | None:
        for place in (f"behaviors.{behavior}", "default_settings"):
            value = self._settings.get(f"{place}.max_steps")
            if isinstance(value, int | float) and math.isfinite(value):
                return int(value)
        return None

    def _state(
        self, held: Held | None, behaviors: dict[str, Any], ends: dict[str, int], age: float | None
    ) -> tuple[str, str]:
        """Return the state in a word, and its reason."""
        if held is not None and held.held is not False:
            who = "" if held.owner is None else str(held.owner)
            if held.held is None:
                return "elsewhere", f"on another machine: {who}"
            return ("running" if behaviors else "starting"), who
        if held is not None:
            return "died", f"its process is gone, but not its lock: {held.owner}"
        if not behaviors:
            return "empty", "no summary was written"
        last = {name: max(behavior["step"], ends.get(name, 0)) for name, behavior in behaviors.items()}
        if all(
            behavior["max_steps"] is not None and behavior["max_steps"] <= last[name]
            for name, behavior in behaviors.items()
        ):
            return "finished", "all behaviors have reached max_steps"
        if RunFolder(self.folder.parent, self.folder.name).timers.exists():
            return "stopped", "it ended in order before max_steps"
        if age is not None and age < SILENT:
            return "running", "no run.lock: written by another program"
        return "died", "it has no lock and did not end in order"

    def _ends(self) -> dict[str, int]:
        """Return the step of each behavior in its final checkpoint."""
        try:
            path = RunFolder(self.folder.parent, self.folder.name).status
            saved = status.read(path) if path.is_file() else {}
        except (ArtifactError, OSError):
            return {}
        finals = {name: entry.get(status.FINAL) for name, entry in saved.items()}
        steps = {name: final.get("steps") for name, final in finals.items() if isinstance(final, dict)}
        return {name: number for name, number in steps.items() if isinstance(number, int)}

    def _read_settings(self) -> None:
        path = self.folder / "configuration.yaml"
        try:
            written_at = path.stat().st_mtime
        except OSError:
            return
        if written_at != self._settings_at:
            self._settings_at = written_at
            try:
                self._settings, self._problem = read_settings(path) or {}, None
            except ReportError as error:
                self._settings, self._problem = {}, str(error)


def spread(curves: Sequence[Curve]) -> dict[str, Any]:
    """Return mean, lowest and highest of S curves on the steps that all cover; the bounds only where S > 1."""
    steps, values = on_common_steps(curves, POINTS)
    line: dict[str, Any] = {"step": steps.tolist(), "mean": numbers(values.mean(0), 6)}
    if len(curves) > 1:
        line |= {"low": numbers(values.min(0), 6), "high": numbers(values.max(0), 6)}
    return line


def _curves(followers: Sequence[Follower], tag: str) -> list[Curve]:
    return [follower.curve(tag) for follower in followers if tag in follower.tags]


class _Place(NamedTuple):
    """The part of a file that has been read."""

    inode: int
    end: int  # in bytes


class Follower(Points):
    """The scalars in `folder`. `poll` reads on; values read before stay when a file is damaged (`problem`)."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.problem: str | None = None
        self.behind = False  # there is more to read than the last poll had time for
        self.last_time = 0.0  # seconds since the epoch, of the last summary
        self._begin()

    def _begin(self) -> None:
        self._by_tag.clear()
        self._places: dict[Path, _Place] = {}
        self._recent: deque[tuple[float, int]] = deque(maxlen=_SUMMARIES)  # time and step of summaries of one session

    def poll(self, deadline: float = math.inf) -> bool:
        """Read data written since the last call, until `deadline` (monotonic); return whether there were any.

        A file that became shorter, or was replaced by another, means that the run began anew: everything is read again.
        """
        try:
            sizes = {path: path.stat() for path in event_files(self.folder) if not path.is_symlink()}
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
        for path, stat in sorted(sizes.items(), key=lambda item: item[0].name):  # names begin with the time
            known = self._places.get(path, _Place(stat.st_ino, 0))
            if stat.st_size > known.end and not self.behind:
                changed |= self._read_on(path, known, stat.st_size, deadline)
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
        if event.session_log.status == SessionLog.START:  # a resumed run: points after its checkpoint are void
            self.drop_from(event.step)
            self._recent.clear()
        timed = math.isfinite(event.wall_time)
        for value in event.summary.value:
            if value.HasField("simple_value"):
                self.add(value.tag, event.step, value.simple_value)
                self.last_time = event.wall_time if timed else self.last_time
                if timed and (not self._recent or self._recent[-1][1] != event.step):
                    self._recent.append((event.wall_time, event.step))

    @property
    def speed(self) -> float | None:
        """Agent steps per second between the last few summaries; None before the second one."""
        if len(self._recent) < 2:
            return None
        (begin, first), (end, last) = self._recent[0], self._recent[-1]
        return (last - first) / (end - begin) if end > begin else None
