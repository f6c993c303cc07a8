"""Writers of statistics: one file per kind of writer, and the one table of them.

Each file has `open_writer(place)`, and `check(target)` where a package may be missing. TensorBoard's event files
and metrics.csv are always written; the others if `record_settings` has a key of their name, whose value is the target.
There are also a user's own writers (`record_settings.writers`), and those of ML-Agents' plugins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType

from jaxrl.artifacts.metrics.writers import mlagents, own
from jaxrl.artifacts.metrics.writers.background import BackgroundWriter
from jaxrl.artifacts.metrics.writers.interface import OfRun, Place, RecordError, StatisticsWriter
from jaxrl.registry import Registry
from jaxrl.settings import RecordSettings

__all__ = [
    "ALWAYS", "WRITERS", "OfRun", "Place", "RecordError", "StatisticsWriter",
    "asked_for", "check_writers", "hang_up", "open_writers", "targets",
]  # fmt: skip

WRITERS: Mapping[str, ModuleType] = Registry({
    "tensorboard": "jaxrl.artifacts.metrics.tensorboard",
    "csv": "jaxrl.artifacts.metrics.writers.csv_file",
    "wandb": "jaxrl.artifacts.metrics.writers.weights_and_biases",
    "mlflow": "jaxrl.artifacts.metrics.writers.mlflow_run",
})  # fmt: skip
"""Module of each writer by name; a writer that is not asked for is not imported."""
ALWAYS = ("tensorboard", "csv")
"""Writers that every run has, whose files stand in its folder."""


def targets(settings: RecordSettings | None) -> dict[str, str]:
    """Return the targets, by name, of writers that are asked for beside those that every run has."""
    asked = {} if settings is None else settings.model_dump()
    return {name: target for name, target in asked.items() if name in WRITERS and target is not None}


def asked_for(settings: RecordSettings | None) -> bool:
    """Return whether there is any writer beside those that every run has."""
    return bool(targets(settings)) or (settings is not None and bool(settings.writers))


def check_writers(settings: RecordSettings | None) -> None:
    """Raise RecordError if a writer that is asked for cannot be. Nothing is written, and no network is asked."""
    for name, target in targets(settings).items():
        WRITERS[name].check(target)
    for index, name in enumerate(() if settings is None else settings.writers):
        own.check(index, name)


def open_writers(settings: RecordSettings | None, place: Place) -> list[StatisticsWriter]:
    """Open the writers of one place. Files of an earlier run are changed with the first thing written."""
    asked = dict.fromkeys(ALWAYS, "") | targets(settings)
    writers = [WRITERS[name].open_writer(place._replace(target=target)) for name, target in asked.items()]
    named = enumerate(() if settings is None else settings.writers)
    writers += [own.open_writer(index, name, place) for index, name in named]
    return [*writers, *mlagents.open_plugins(place)]


def hang_up(writers: Iterable[StatisticsWriter]) -> None:
    """Tell all writers that wait for a network that nothing more comes, so that they end side by side."""
    for writer in writers:
        if isinstance(writer, BackgroundWriter | mlagents.PluginWriter):
            writer.hang_up()
