"""Write the statistics of a run to event files and the writers of `record_settings`, by behavior and seed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.metrics.episode_figures import CUSTOM
from jaxrl.artifacts.metrics.statistics import INTERNAL, Summary
from jaxrl.artifacts.metrics.writers import OfRun, Place, StatisticsWriter, asked_for, hang_up, open_writers
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import RECORDS, TrainingStatus
from jaxrl.settings import RunSettings
from jaxrl.training.errors import LostWrites


class StatisticsFiles:
    """Writers of one run. If one cannot write, its data is lost with a message, and the run goes on.

    Args:
      status: stores the names under which services know the run.
      lost: counts failed writes.
    """

    def __init__(self, settings: RunSettings, folder: RunFolder, status: TrainingStatus, lost: LostWrites) -> None:
        self._settings, self._folder, self._status, self._lost = settings, folder, status, lost
        self._writers: dict[str, list[list[StatisticsWriter]]] = {}  # by behavior, by event file
        self._told: set[str] = set()  # services with a message that statistics could not be sent
        self._of_run = OfRun(settings, {})

    def open(self, name: str, events: Sequence[Path], described: Mapping[str, Any], step: int) -> None:
        """Open the writers of a behavior and write its settings, as plain values.

        Args:
          events: folders of its event files.
          step: trainer step that it starts at; a resumed run's points after it are dropped.
        """
        opened = self._writers[name] = []
        resumed = self._settings.checkpoint_settings.resume
        for folder in events:
            place = self._place(name, folder, step if resumed else None)
            opened.append(open_writers(self._settings.record_settings, place))
        self._write([partial(writer.hyperparameters, described, step) for writer in self._of(name)])

    def summaries(self, name: str, step: int, taken: Sequence[Mapping[str, Summary]]) -> None:
        """Write the summaries of this step, one mapping per event file."""
        writes = []
        for writers, summaries in zip(self._writers[name], taken, strict=False):  # no files in an evaluation
            public = {tag: summary for tag, summary in summaries.items() if tag not in INTERNAL}
            writes += [partial(writer.summaries, step, public) for writer in writers]
        self._write(writes)

    def images(self, name: str, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Write pictures uint8 [H, W, 3] under `Custom/<name>` to every event file of the behavior."""
        pictures = {CUSTOM.format(name=image): pixels for image, pixels in images.items()}
        self._write([partial(writer.images, step, pictures) for writer in self._of(name)])

    def last_steps(self) -> list[Callable[[], object]]:
        """Return the steps that close all writers."""
        every = [writer for name in self._writers for writer in self._of(name)]
        return [partial(hang_up, every), *(writer.close for writer in every)]

    def _of(self, name: str) -> Iterator[StatisticsWriter]:
        return (writer for writers in self._writers[name] for writer in writers)

    def _write(self, writes: Sequence[Callable[[], None]]) -> None:
        """Run all writes; count those that fail as lost."""
        if writes:
            self._folder.keep()
        errors = []
        for write in writes:
            try:
                write()
            except ArtifactError as error:
                errors.append(error)
        if errors:
            self._lost.failed("summary", errors[0])
        else:
            self._lost.worked("summary")

    def _place(self, name: str, folder: Path, resume_step: int | None) -> Place:
        """Return the description of one event file for its writers."""
        behavior = name.partition("/")[0]  # main behavior of an exploiter, see `exploiter_name`
        seed = "" if folder == self._folder.behavior(behavior) else folder.name
        return Place(
            run_id=self._folder.run_id,
            behavior=behavior,
            seed=seed,
            folder=folder,
            logs=self._folder.logs,
            resume_step=resume_step,
            identity=self._identity(behavior, seed) if asked_for(self._settings.record_settings) else "",
            configuration=self._settings.model_dump(mode="json", exclude={"default_settings", "behaviors"}),
            told=self._told,
            run=self._of_run,
        )

    def _identity(self, name: str, seed: str) -> str:
        known = self._status.get(name, RECORDS, {})
        if seed not in known:
            known = {**known, seed: uuid.uuid4().hex[:16]}
            self._status.set(name, RECORDS, known)
        return known[seed]
