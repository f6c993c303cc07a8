"""Reads the scalars of TensorBoard event files, of jaxrl and of ML-Agents.

The files are parsed here, with tensorboardX's message class, which already writes them. TensorBoard's own reader
(EventAccumulator) would do the same, but the package is large, is used for nothing else at run time, and drops points
of long runs at random unless told otherwise. The framing takes ten lines.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue] made at import
from tensorboardX.record_writer import masked_crc32c

from jaxrl.artifacts.run_folder import event_files
from jaxrl.regular_files import open_regular
from jaxrl.types import JaxrlError

FINAL_SHARE = 0.1
"""Last part of a run's steps; the mean of its summaries is the final score."""

CHUNK = 2**18
"""Number of bytes that are read at once, some thousand summaries."""
LARGEST = 2**26
"""Largest size of a record in bytes; a summary with pictures has some hundred thousand."""


class ReportError(JaxrlError):
    """The report cannot be made as requested. The text names the file or flag and what to do."""


class Curve(NamedTuple):
    """Statistic of one seed."""

    step: np.ndarray  # int64 [K], ascending, no step twice
    value: np.ndarray  # float64 [K]


def final_score(curve: Curve) -> float:
    """Return the mean of the summaries in the last FINAL_SHARE of the steps from 0 to the last one."""
    return float(curve.value[curve.step >= (1.0 - FINAL_SHARE) * curve.step[-1]].mean())


class SeedEvents(NamedTuple):
    """All scalars in one folder of event files."""

    curves: dict[str, Curve]  # by tag
    begun_at: int  # step at which the last session began: 0, or that of the checkpoint it continued
    began: float  # its beginning in seconds since the epoch

    @property
    def last_step(self) -> int:
        """Step of the last summary, 0 without any."""
        return max((int(curve.step[-1]) for curve in self.curves.values()), default=0)


def read_folder(folder: Path) -> SeedEvents:
    """Join the event files directly in `folder`, as TensorBoard does.

    A session that continues a checkpoint (SessionLog START one step after it) drops the older points from there on; of
    two values at one step the later counts. Raises ReportError for a damaged file.
    """
    points = Points()
    begun_at, sessions = 0, sorted((_begin(path), path) for path in event_files(folder))
    for _, path in sessions:
        begun_at = points.step  # ML-Agents writes no START
        for event, _ in read_events(path):
            if event.session_log.status == SessionLog.START:
                begun_at = event.step - 1
                points.drop_from(event.step)
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    points.add(value.tag, event.step, value.simple_value)
    return SeedEvents({tag: points.curve(tag) for tag in points.tags}, begun_at, sessions[-1][0] if sessions else 0.0)


class Points:
    """Steps and values by tag in the order in which they come: 16 bytes a point."""

    def __init__(self) -> None:
        self._by_tag: dict[str, tuple[array[int], array[float]]] = {}

    def add(self, tag: str, step: int, value: float) -> None:
        """Append one value."""
        if tag not in self._by_tag:
            self._by_tag[tag] = (array("q"), array("d"))
        steps, values = self._by_tag[tag]
        steps.append(step)
        values.append(value)

    @property
    def tags(self) -> list[str]:
        """Names of all tags that have a value."""
        return list(self._by_tag)

    @property
    def step(self) -> int:
        """Largest step, 0 without any."""
        return max((max(steps) for steps, _ in self._by_tag.values()), default=0)

    def drop_from(self, step: int) -> None:
        """Drop points at this step or after it."""
        for tag, (steps, values) in list(self._by_tag.items()):
            before = np.asarray(steps) < step
            del self._by_tag[tag]
            for s, v in zip(np.asarray(steps)[before].tolist(), np.asarray(values)[before].tolist(), strict=True):
                self.add(tag, s, v)

    def curve(self, tag: str) -> Curve:
        """Return the curve by step, with the later of two values at a step. Raises KeyError without values."""
        steps, values = self._by_tag[tag]
        step, order = np.asarray(steps, np.int64), np.arange(len(steps))
        newest = np.lexsort((order, step))
        newest = newest[np.append(np.diff(step[newest]) > 0, True)]
        return Curve(step[newest], np.asarray(values, np.float64)[newest])


def _begin(path: Path) -> float:
    """Return the time at which the session in a file began."""
    return next((event.wall_time for event, _ in read_events(path)), 0.0)


def read_events(path: Path, start: int = 0) -> Iterator[tuple[Any, int]]:
    """Yield events from byte `start` of a file on, each with the place of its end; reads the file in parts, on demand.

    Raises ReportError for a file that is damaged, cannot be read, or is none.
    """
    size = CHUNK
    try:
        with open_regular(path) as file:
            while True:
                file.seek(start)
                data, before = file.read(size), start
                for event, start in events_from(path, data, before):
                    yield event, start
                if len(data) < size:  # the end of the file
                    return
                size = CHUNK if start > before else 2 * size  # a record longer than that
    except OSError as error:
        raise _unreadable(path, error) from error


def events_from(path: Path, data: bytes, offset: int = 0) -> Iterator[tuple[Any, int]]:
    """Yield events in `data`, which begins at byte `offset` of the file, each with the place of its end in the file.

    Records are framed as [size u64][checksum u32][bytes][checksum u32]. An incomplete last record ends the events
    quietly: the run is still going on, or was killed while it wrote. Raises ReportError for a damaged record.
    """
    at = 0
    while at + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        _check(path, data[at : at + 8], data, at + 8, offset)
        if size > LARGEST:
            raise _damaged(path, f"a record of {size:,} bytes", offset + at)
        body = data[at + 12 : at + 12 + size]
        if at + 16 + size > len(data):
            return
        _check(path, body, data, at + 12 + size, offset)
        at += 16 + size
        try:
            yield Event.FromString(body), offset + at
        except DecodeError as error:
            raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ReportError:
    return ReportError(f"{path}: cannot be read ({error}). Restore the file from a backup or delete it.")


def _damaged(path: Path, what: str, at: int) -> ReportError:
    return ReportError(f"{path}: {what} at byte {at}, the file is damaged. Restore it from a backup or delete it.")


def _check(path: Path, content: bytes, data: bytes, at: int, offset: int) -> None:
    (checksum,) = struct.unpack_from("<I", data, at)
    if checksum != masked_crc32c(content):
        raise _damaged(path, "wrong checksum", offset + at)
