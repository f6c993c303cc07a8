"""Reads the scalars of TensorBoard event files: jaxrl's own, and those that ML-Agents wrote.

The files are parsed here, with tensorboardX's message class, which already writes them. TensorBoard's own reader
(EventAccumulator) would do the same, but the package is large, is used for nothing else at run time, and drops points
of long runs at random unless told otherwise. The framing takes ten lines.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue] made at import
from tensorboardX.record_writer import masked_crc32c

from jaxrl.artifacts.run_folder import EVENTS
from jaxrl.types import JaxrlError

FINAL_SHARE = 0.1
"""The last part of a run's steps whose summaries make its final score."""


class ReportError(JaxrlError):
    """The report cannot be made as asked. The text names the file or flag and what to do."""


class Curve(NamedTuple):
    """One statistic of one seed."""

    step: np.ndarray  # int64 [K], ascending, no step twice
    value: np.ndarray  # float64 [K]


def final_score(curve: Curve) -> float:
    """Mean of the summaries in the last FINAL_SHARE of the steps from 0 to the last one."""
    return float(curve.value[curve.step >= (1.0 - FINAL_SHARE) * curve.step[-1]].mean())


class SeedEvents(NamedTuple):
    """All scalars in one folder of event files."""

    curves: dict[str, Curve]  # by tag
    begun_at: int  # step at which the last session began: 0, or that of the checkpoint it continued

    @property
    def last_step(self) -> int:
        """Step of the last summary, 0 without any."""
        return max((int(curve.step[-1]) for curve in self.curves.values()), default=0)


def read_folder(folder: Path) -> SeedEvents:
    """Join the event files directly in `folder`, as TensorBoard does.

    A session that continues a checkpoint (SessionLog START at its step) drops the older points at or after that step;
    of two values at one step the later counts. Raises ReportError for a damaged file.
    """
    sessions = sorted((_events(path) for path in sorted(folder.glob(EVENTS))), key=_begin)
    points: dict[str, dict[int, float]] = {}
    begun_at = 0
    for session in sessions:
        begun_at = max((step for old in points.values() for step in old), default=0)  # ML-Agents writes no START
        for event in session:
            if event.session_log.status == SessionLog.START:
                begun_at = event.step
                points = {tag: {s: v for s, v in old.items() if s < begun_at} for tag, old in points.items()}
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    points.setdefault(value.tag, {})[event.step] = value.simple_value
    return SeedEvents({tag: _curve(found) for tag, found in points.items() if found}, begun_at)


def _begin(session: list[Any]) -> float:
    return session[0].wall_time if session else 0.0


def _curve(points: dict[int, float]) -> Curve:
    steps = sorted(points)
    return Curve(np.array(steps, np.int64), np.array([points[step] for step in steps], np.float64))


def _events(path: Path) -> list[Any]:
    try:
        return [event for event, _ in events_from(path, path.read_bytes())]
    except OSError as error:
        raise _unreadable(path, error) from error


def events_from(path: Path, data: bytes, offset: int = 0) -> Iterator[tuple[Any, int]]:
    """Events in `data`, which stands in the file from byte `offset` on, each with the place in the file where it ends.

    Records are framed as [size u64][checksum u32][bytes][checksum u32]. An incomplete last record ends the events
    quietly: the run is still going on, or was killed while it wrote. Raises ReportError for a damaged one.
    """
    at = 0
    while at + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        _check(path, data[at : at + 8], data, at + 8, offset)
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


def _check(path: Path, content: bytes, data: bytes, at: int, offset: int) -> None:
    (checksum,) = struct.unpack_from("<I", data, at)
    if checksum != masked_crc32c(content):
        raise ReportError(
            f"{path}: wrong checksum at byte {offset + at}, the file is damaged. Restore it from a backup or delete it."
        )
