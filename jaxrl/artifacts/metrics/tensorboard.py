"""TensorBoard event files with ML-Agents' tags.

The events are built from tensorboardX's message classes but written here, because its SummaryWriter (1) replaces the
blanks in tags ("Environment/Cumulative Reward") by underscores, which would empty ML-Agents users' dashboards, and
(2) writes from a thread behind a bounded queue: a full disk kills the thread and then blocks the training for ever.
"""

from __future__ import annotations

import io
import itertools
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue] made at import
from tensorboardX.proto.summary_pb2 import Summary as SummaryProto  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import make_histogram, make_image, text

from jaxrl.artifacts.appended import AppendedFile
from jaxrl.artifacts.metrics.console import listing
from jaxrl.artifacts.metrics.statistics import Summary
from jaxrl.artifacts.metrics.writers.interface import Place
from jaxrl.types import JaxrlError

_POSITIVE = 1e-12 * 1.1 ** np.arange(700)  # up to 9e16; TensorBoard's own spacing, so that buckets agree over time
_BINS = np.concatenate([[-np.finfo(np.float64).max], -_POSITIVE[::-1], [0.0], _POSITIVE, [np.finfo(np.float64).max]])
_count = itertools.count()


def open_writer(place: Place) -> TensorBoardWriter:
    """Open a new event file in the place's folder."""
    return TensorBoardWriter(place.folder, place.resume_step)


class TensorBoardWriter:
    """Appends the summaries of one behavior to a new event file in `<run>/<Behavior>/`.

    TensorBoard joins the files of a folder. With `resume_step` it also drops older points after that step: they were
    written between the checkpoint that is continued and the end of the interrupted run. A summary of that very step
    came before the checkpoint, and is not written again. Folder and file are made with the first thing written.

    `summaries` and `hyperparameters` raise ArtifactError when the disk is full. What they were to write is lost then,
    all of it, and the file is as before: half a record would hide whatever follows it.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        stamp = f"{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{next(_count):04d}"
        self.path = folder / f"events.out.tfevents.{stamp}"
        self._file = AppendedFile(self.path, self._opened)
        self._head = [Event(wall_time=time.time(), file_version="brain.Event:2")]
        if resume_step is not None:
            start = SessionLog(status=SessionLog.START)  # TensorBoard drops points at its step or later
            self._head.append(Event(wall_time=time.time(), step=resume_step + 1, session_log=start))

    def summaries(self, step: int, summaries: Mapping[str, Summary]) -> None:
        """Write a scalar per tag, and a histogram `<tag>_hist` where there is one, labelled with `step`; flush."""
        values = []
        for tag, summary in summaries.items():
            values.append(SummaryProto.Value(tag=tag, simple_value=summary.value))
            histogram = None if summary.histogram is None else summary.histogram[np.isfinite(summary.histogram)]
            if histogram is not None and histogram.size:
                values.append(SummaryProto.Value(tag=f"{tag}_hist", histo=make_histogram(histogram, _BINS)))
        now = time.time()
        self._append([Event(wall_time=now, step=step, summary=SummaryProto(value=[value])) for value in values])

    def images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Write pictures uint8 [H, W, 3] by tag; flush. Raises JaxrlError for anything else."""
        events = []
        for tag, pixels in images.items():
            array = np.asarray(pixels)
            if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
                raise JaxrlError(f"{tag}: got {array.dtype} {list(array.shape)}, expected a picture, uint8 [H, W, 3]")
            value = SummaryProto.Value(tag=tag, image=make_image(array))
            events.append(Event(wall_time=time.time(), step=step, summary=SummaryProto(value=[value])))
        self._append(events)

    def hyperparameters(self, settings: Mapping[str, Any], step: int = 0) -> None:
        """Write the behavior's settings as the text entry "Hyperparameters"."""
        self._append([Event(wall_time=time.time(), step=step, summary=text("Hyperparameters", listing(settings)))])

    def close(self) -> None:
        """Close the file; may be called twice. Raises ArtifactError."""
        self._file.close()

    def _append(self, events: Sequence[Event]) -> None:
        """Hand whole events to the system, or none of them. A summary is not worth waiting for the disk."""
        self._file.append(b"".join(map(_record, events if self._file.end else [*self._head, *events])))

    def _opened(self) -> io.FileIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.path.open("wb", buffering=0)


def _record(event: Event) -> bytes:
    """Encode an event as it stands in the file: length and content, each with its checksum."""
    content = event.SerializeToString()
    length = struct.pack("<Q", len(content))
    checksums = [struct.pack("<I", masked_crc32c(part)) for part in (length, content)]
    return length + checksums[0] + content + checksums[1]
