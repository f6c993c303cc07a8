"""Interface of a writer of statistics, and the description of the place that it writes for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxrl.artifacts.metrics.statistics import Summary
from jaxrl.settings import RunSettings
from jaxrl.types import JaxrlError


class RecordError(JaxrlError):
    """Statistics cannot be written as asked. The text names the key of the settings and what to do."""


class OfRun(NamedTuple):
    """Data that the places of a run share."""

    settings: RunSettings
    kept: dict[str, Any]  # objects of writers that serve all of the places


class Place(NamedTuple):
    """Place with statistics of its own: one behavior of a run, or one seed of it where a run has several."""

    run_id: str
    behavior: str
    seed: str  # "seed_7", the name of its folder; "" where the behavior has no others
    folder: Path  # of its event files
    logs: Path  # folder for files that only helpers of a writer read
    resume_step: int | None  # trainer step of the checkpoint that the run continues from; None: it is a new run
    identity: str  # shared by a run and its continuations, and by no other run
    configuration: Mapping[str, Any]  # all settings of the run as plain values
    told: set[str]  # faults that the writers of the run have reported already; they share it
    target: str = ""  # where to write, from the settings
    run: OfRun | None = None

    @property
    def title(self) -> str:
        """Run, behavior and seed, for people."""
        return "/".join(part for part in (self.run_id, self.behavior, self.seed) if part)


class StatisticsWriter(Protocol):
    """Writes the statistics of one place.

    A method may raise ArtifactError where a disk is full: only the data of that call are lost. A writer that writes
    to a network neither raises nor waits (see background.py).
    """

    def hyperparameters(self, settings: Mapping[str, Any], step: int) -> None:
        """Write the behavior's settings, plain values; called first, at the trainer step that the run starts at."""
        ...

    def summaries(self, step: int, summaries: Mapping[str, Summary]) -> None:
        """Write one value per tag, at a trainer step."""
        ...

    def images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Write pictures uint8 [H, W, 3] by tag; a writer that has no place for them inherits this."""

    def close(self) -> None:
        """Finish writing; may be called twice."""
        ...
