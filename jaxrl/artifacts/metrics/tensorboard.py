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
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue] made at import
from tensorboardX.proto.summary_pb2 import Summary as SummaryProto  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import make_histogram, text

from jaxrl.artifacts import files
from jaxrl.artifacts.metrics.statistics import INTERNAL, MetricsError, Summary

_POSITIVE = 1e-12 * 1.1 ** np.arange(700)  # up to 9e16; TensorBoard's own spacing, so that buckets agree over time
_BINS = np.concatenate([[-np.finfo(np.float64).max], -_POSITIVE[::-1], [0.0], _POSITIVE, [np.finfo(np.float64).max]])
_count = itertools.count()


class TensorBoardWriter:
    """Appends the summaries of one behavior to a new event file in `<run>/<Behavior>/`.

    TensorBoard joins the files of a folder. With `resume_step` it also drops older points at or after that step: they
    were written between the checkpoint that is continued and the end of the interrupted run. Creates the folder. All
    methods raise ArtifactError when the disk is full.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        stamp = f"{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{next(_count):04d}"
        self.path = folder / f"events.out.tfevents.{stamp}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._records = RecordWriter(str(self.path))
        except OSError as error:
            raise files.write_error(self.path, error) from error
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resume_step is not None:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time.time(), step=resume_step, session_log=start))
        self._flush()

    def summaries(self, step: int, summaries: Mapping[str, Summary]) -> None:
        """Write a scalar per tag, and a histogram `<tag>_hist` where there is one, labelled with `step`; flush."""
        for tag, summary in summaries.items():
            if tag in INTERNAL:
                continue
            self._add(step, SummaryProto.Value(tag=tag, simple_value=summary.value))
            histogram = None if summary.histogram is None else summary.histogram[np.isfinite(summary.histogram)]
            if histogram is not None and histogram.size:
                self._add(step, SummaryProto.Value(tag=f"{tag}_hist", histo=make_histogram(histogram, _BINS)))
        self._flush()

    def images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Write pictures uint8 [H, W, 3] by tag; flush. Raises MetricsError for anything else."""
        for tag, pixels in images.items():
            array = np.asarray(pixels)
            if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
                raise MetricsError(f"{tag}: got {array.dtype} {list(array.shape)}, expected a picture, uint8 [H, W, 3]")
            png = io.BytesIO()
            Image.fromarray(array).save(png, "PNG")
            height, width, colors = array.shape
            shown = SummaryProto.Image(
                height=height, width=width, colorspace=colors, encoded_image_string=png.getvalue()
            )
            self._add(step, SummaryProto.Value(tag=tag, image=shown))
        self._flush()

    def hyperparameters(self, listing: str, step: int = 0) -> None:
        """Write the behavior's settings as the text entry "Hyperparameters" (indented, so that Markdown keeps it)."""
        markdown = "\n".join(f"    {line}" for line in listing.splitlines())
        self._write(Event(wall_time=time.time(), step=step, summary=text("Hyperparameters", markdown)))
        self._flush()

    def close(self) -> None:
        """Flush and close the file; may be called twice."""
        try:
            self._records.close()
        except OSError as error:
            raise files.write_error(self.path, error) from error

    def _add(self, step: int, value: SummaryProto.Value) -> None:
        self._write(Event(wall_time=time.time(), step=step, summary=SummaryProto(value=[value])))

    def _write(self, event: Event) -> None:
        try:
            self._records.write(event.SerializeToString())
        except OSError as error:
            raise files.write_error(self.path, error) from error

    def _flush(self) -> None:
        try:
            self._records.flush()
        except OSError as error:
            raise files.write_error(self.path, error) from error
