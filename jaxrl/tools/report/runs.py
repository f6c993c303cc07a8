"""Reads the subjects of a report: results folders, the seeds in them, and which of them are one experiment.

<run>/<Behavior>/events.out.tfevents.*            a run of one seed
<run>/<Behavior>/seed_<n>/events.out.tfevents.*   a run of many seeds
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from jaxrl.artifacts import files
from jaxrl.artifacts.run_folder import EVENTS, POPULATION, RunFolder
from jaxrl.settings import SettingsError
from jaxrl.settings.reading import read_yaml
from jaxrl.settings.section import dotted, flatten
from jaxrl.tools.report.events import ReportError, SeedEvents, read_folder

SEED = "env_settings.seed"
INCIDENTAL = (
    SEED,
    "env_settings.seeds",
    "env_settings.base_port",
    "env_settings.listen",
    "checkpoint_settings.run_id",
    "checkpoint_settings.results_dir",
    "checkpoint_settings.resume",
    "checkpoint_settings.force",
    "checkpoint_settings.load_model",
    "checkpoint_settings.train_model",
    "record_settings.wandb",
    "record_settings.mlflow",
    "debug",
)
"""Settings in which seeds of one experiment may differ: names of places, and the start of the run."""

_NUMBERED = re.compile(r"[-_. ]*(seed)?[-_. ]*\d*$")  # the end of a name that distinguishes seeds


class NoCurvesError(ReportError):
    """A run whose folder holds no summary of any behavior."""


class Run(NamedTuple):
    """Results folder."""

    name: str
    settings: dict[str, Any] | None  # configuration.yaml with dotted keys; None: there is none
    timers: dict[str, Any] | None  # timers.json; None: there is none
    behaviors: dict[str, dict[str, SeedEvents]]  # by behavior, then by seed ("7")
    folder: Path
    without_curves: tuple[str, ...] = ()  # behaviors whose event files hold no summary
    population: bool = False  # its seeds are members that learned from each other, so they are not independent


class Experiment(NamedTuple):
    """Runs that differ in nothing but their seeds."""

    label: str
    runs: tuple[Run, ...]

    @property
    def population(self) -> bool:
        """Seeds in it are members of a population, for which no interval over seeds is valid."""
        return any(run.population for run in self.runs)

    def seeds(self, behavior: str) -> list[SeedEvents]:
        """Return all seeds of a behavior, over all runs."""
        return [seed for run in self.runs for seed in run.behaviors.get(behavior, {}).values()]


def read_run(path: Path) -> Run:
    """Read a results folder.

    Raises NoCurvesError when no behavior has a summary, ReportError when there is no run or a file is damaged.
    """
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise ReportError(f"{path} {what}. Give the results folder of a run, such as results/my-run.")
    folder = RunFolder(path.parent, path.name)
    settings = read_settings(folder.configuration)
    seed = "?" if settings is None else str(settings.get(SEED, "?"))
    behaviors: dict[str, dict[str, SeedEvents]] = {}
    folders = places(path)
    for behavior, number, place in folders:
        events = read_folder(place)
        if events.curves:
            behaviors.setdefault(behavior, {})[number or seed] = events
    if not behaviors:
        kind = ReportError if settings is None and not folders else NoCurvesError
        raise kind(f"{path} holds no summaries of training.{_hint(path)}")
    empty = tuple(dict.fromkeys(behavior for behavior, _, _ in folders if behavior not in behaviors))
    population = (path / POPULATION).is_file()
    return Run(path.resolve().name, settings, _timers(folder.timers), behaviors, path, empty, population)


class _Timer(BaseModel):
    """Fields of a timer that are read; the rest is kept as it is."""

    total: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    children: dict[str, _Timer] = {}
    metadata: dict[str, Any] = {}


def _timers(path: Path) -> dict[str, Any] | None:
    """Return the timers of a run; None: there are none. Raises ArtifactError if no run writes such a file."""
    if not path.exists():
        return None
    written = files.read_json(path)
    try:
        _Timer.model_validate(written, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        text = f"{path}: {dotted(first['loc'])}: {first['msg']}; the file is damaged: restore or delete it"
        raise files.ArtifactError(text) from error
    return written


def group(runs: Sequence[Run]) -> list[Experiment]:
    """Return the experiments, in the order of their first run.

    A run joins those with equal settings unless its seed is among theirs: a repeated run is no second seed, but perhaps
    one of another version of the program. A run without configuration.yaml stays alone.
    """
    groups: list[list[Run]] = []
    for run in runs:
        home = next((members for members in groups if _belongs(run, members)), None)
        if home is None:
            groups.append([run])
        else:
            home.append(run)
    labels = [_label(members) for members in groups]
    count, seen = Counter(labels), Counter()
    experiments = []
    for label, members in zip(labels, groups, strict=True):
        seen[label] += 1
        unique = f"{label} #{seen[label]}" if count[label] > 1 else label
        experiments.append(Experiment(unique, tuple(members)))
    return experiments


def places(run: Path) -> list[tuple[str, str, Path]]:
    """Return (behavior, seed or "" for the run's, folder) of all event files, in natural order."""
    event_places = {(path.parent.name, "", path.parent) for path in run.glob(f"*/{EVENTS}")}
    many = {path.parent for path in run.glob(f"*/seed_*/{EVENTS}")}
    event_places |= {(folder.parent.name, folder.name.removeprefix("seed_"), folder) for folder in many}
    return sorted(event_places, key=lambda place: (place[0], len(place[1]), place[1]))


def read_settings(path: Path) -> dict[str, Any] | None:
    """Return a configuration.yaml with dotted keys; None if there is none. Raises ReportError if it cannot be read."""
    if not path.exists():
        return None
    try:
        written = read_yaml(path)
    except SettingsError as error:
        raise ReportError(
            f"{path}: cannot be read ({error}). Restore the file from a backup or delete it; the report does without."
        ) from error
    return flatten(written)


def _hint(path: Path) -> str:
    inside = sorted(folder.name for folder in path.iterdir() if folder.is_dir() and places(folder))
    if inside:
        runs = ", ".join(str(path / name) for name in inside[:3])
        return f" It holds runs: give those, such as {runs}."
    return " Expected <Behavior>/events.out.tfevents.* in it: did training get as far as its first summary_freq?"


def _essential(run: Run) -> dict[str, Any]:
    return {key: value for key, value in (run.settings or {}).items() if key not in INCIDENTAL}


def _belongs(run: Run, members: list[Run]) -> bool:
    if run.settings is None or members[0].settings is None or _essential(run) != _essential(members[0]):
        return False
    taken = {(behavior, seed) for member in members for behavior, seeds in member.behaviors.items() for seed in seeds}
    return taken.isdisjoint((behavior, seed) for behavior, seeds in run.behaviors.items() for seed in seeds)


def _label(runs: list[Run]) -> str:
    """Return the run's name; for several runs their common name without numbers (poca-1, poca-2: "poca")."""
    names = [run.name for run in runs]
    stems = {_NUMBERED.sub("", name) for name in names}
    if len(names) > 1 and len(stems) == 1 and stems != {""}:
        return stems.pop()
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
