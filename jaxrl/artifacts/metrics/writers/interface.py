"""What a writer of statistics is, and what it is told of the place that it writes for."""

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
    """What the places of a run have in common."""

    settings: RunSettings
    kept: dict[str, Any]  # by writers that serve all of them


class Place(NamedTuple):
    """One behavior of a run, or one seed of it where a run has several: what has statistics of its own."""

    run_id: str
    behavior: str
    seed: str  # "seed_7", the name of its folder; "" where the behavior has no others
    folder: Path  # of its event files
    logs: Path  # folder for what only helpers of a writer read
    resume_step: int | None  # trainer step of the checkpoint that the run continues from; None: it is a new run
    identity: str  # the same for a run and for its continuations, and nowhere else
    configuration: Mapping[str, Any]  # all settings of the run as plain values
    told: set[str]  # what the writers of the run have said already; they share it
    target: str = ""  # where to, as the settings have it
    run: OfRun | None = None

    @property
    def title(self) -> str:
        """For people: run, behavior and seed."""
        return "/".join(part for part in (self.run_id, self.behavior, self.seed) if part)


class StatisticsWriter(Protocol):
    """Writes the statistics of one place.

    A method may raise ArtifactError where a disk is full: what it was to write is lost, and only that. One that writes
    to a network neither raises nor waits (see background.py).
    """

    def hyperparameters(self, settings: Mapping[str, Any], step: int) -> None:
        """The behavior's settings as plain values; called first, at the trainer step that the run starts at."""
        ...

    def summaries(self, step: int, summaries: Mapping[str, Summary]) -> None:
        """One value per tag, at a trainer step."""
        ...

    def images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Pictures uint8 [H, W, 3] by tag; a writer that has no place for them inherits this."""

    def close(self) -> None:
        """Nothing more will be written; may be called twice."""
        ...
