"""`metrics.csv` beside the event files: one line for each value, `step,wall_time,tag,value`.

The long format, because tags come and go: a line never has to be changed once it is written. pandas makes a table of it
with `frame.pivot(index="step", columns="tag", values="value")`.
"""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxrl.artifacts import files
from jaxrl.artifacts.appended import AppendedFile
from jaxrl.artifacts.metrics.statistics import Summary
from jaxrl.artifacts.metrics.writers.interface import Place, StatisticsWriter
from jaxrl.artifacts.run_folder import METRICS_TABLE
from jaxrl.regular_files import open_regular

_LONGEST = 2**16  # bytes of a line
_STEP = re.compile(rb"([0-9]{1,18}),")
HEADER = "step,wall_time,tag,value\n"


def open_writer(place: Place) -> CsvWriter:
    """Open the table in the folder of the event files."""
    return CsvWriter(place.folder, place.resume_step)


class CsvWriter(StatisticsWriter):
    """Appends lines to `<folder>/metrics.csv`, all of a summary or none of them.

    With `resume_step` the lines after that step are dropped first, as TensorBoard drops such points; so is what a
    killed run has left of a line. Every method raises ArtifactError when the disk is full; the next one tries again.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        self.path = folder / METRICS_TABLE
        self._resume_step = resume_step
        self._file = AppendedFile(self.path, self._opened)

    def hyperparameters(self, settings: Mapping[str, Any], step: int) -> None:
        """Create the file; settings stand in configuration.yaml."""
        self._file.append(b"")

    def summaries(self, step: int, summaries: Mapping[str, Summary]) -> None:
        """Write a line per tag; wall time in seconds since 1970."""
        lines, now = io.StringIO(), f"{time.time():.3f}"
        table = csv.writer(lines, lineterminator="\n")
        for tag, summary in summaries.items():
            table.writerow((step, now, " ".join(tag.split("\n")), repr(float(summary.value))))
        self._file.append(lines.getvalue().encode())

    def close(self) -> None:
        """Close the file; may be called twice. Raises ArtifactError."""
        self._file.close()

    def _opened(self) -> io.FileIO:
        old_lines = self._kept() if self._resume_step is not None and self.path.is_file() else ()
        with files.writing(self.path) as new:
            new.write(HEADER.encode())
            new.writelines(old_lines)
        opened = self.path.open("r+b", buffering=0)
        opened.seek(0, io.SEEK_END)
        return opened

    def _kept(self) -> Iterator[bytes]:
        """Yield the whole lines up to the step that is continued from; what has no end is not read to its end."""
        assert self._resume_step is not None
        with open_regular(self.path) as file:
            while (line := file.readline(_LONGEST)).endswith(b"\n"):
                step = _STEP.match(line)
                if step is not None and int(step[1]) <= self._resume_step:
                    yield line
