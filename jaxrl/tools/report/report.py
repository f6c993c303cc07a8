"""`jaxrl report`: writes one self-contained file about results folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxrl.artifacts import files
from jaxrl.artifacts.files import ArtifactError
from jaxrl.tools.report.events import ReportError
from jaxrl.tools.report.figures import png, require_matplotlib
from jaxrl.tools.report.films import Film, films_html, films_of
from jaxrl.tools.report.page import page
from jaxrl.tools.report.runs import Experiment, NoCurvesError, Run, group, read_run
from jaxrl.tools.report.sweep import expanded
from jaxrl.tools.report.tables import time_of

ENDINGS = (".html", ".png")


def write_report(runs: Sequence[str | Path], out: str | Path, films: Mapping[Path, Film] | None = None) -> list[str]:
    """Compare the runs in these results folders, write `out`, and return remarks on the data for the reader.

    The ending decides: .html has curves, tables, films and the data, .png the figures alone. Runs that differ only in
    their seeds are one experiment. A folder given twice counts once; a sweep's folder stands for its runs. A run
    without summaries is left out with a remark if others have some.
    `films`, by folder as given, are shown in place of the last one in a run's videos/.

    Raises ReportError: unknown ending, matplotlib missing (.png), a folder missing, no run with summaries, a
    damaged file, or `out` cannot be written. Raises ArtifactError for a damaged timers.json.
    """
    path = check_out(out)
    folders = {folder.resolve(): folder for run in runs for folder in expanded(Path(run))}
    read, remarks = _with_curves(list(folders.values()))
    experiments = group(read)
    remarks += remarks_on(experiments)
    if path.suffix.lower() == ".html":
        content = page(experiments, remarks, films_html(films_of(experiments, films or {}), path.parent)).encode()
    else:
        content = png(experiments)
    try:
        with files.writing(path.resolve()) as file:
            file.write(content)
    except ArtifactError as error:
        why = getattr(error.__cause__, "strerror", None) or error
        raise ReportError(f"--out {path}: cannot be written ({why}). Choose another file.") from error
    return remarks


def _with_curves(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs that have curves, and a remark on each other one. Raises ReportError where none has."""
    runs, without = [], []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except NoCurvesError as error:
            without.append(error)
    if not runs:
        raise without[0]
    return runs, [f"Left out, it has no curves: {error}" for error in without]


def check_out(out: str | Path) -> Path:
    """Return `out` as a path. Raises ReportError: unknown ending, a folder, or a .png without matplotlib."""
    path = Path(out)
    if path.suffix.lower() not in ENDINGS:
        raise ReportError(f"--out {path}: got the ending {path.suffix!r}, expected {' or '.join(ENDINGS)}.")
    if path.is_dir():
        raise ReportError(f"--out {path} is a folder. Give the name of a file in it, such as {path / 'report.html'}.")
    if path.suffix.lower() == ".png":
        require_matplotlib()
    return path


def remarks_on(experiments: Sequence[Experiment]) -> list[str]:
    """Return limits of the comparison: missing files, seeds that ended early, and seeds of a population."""
    remarks = []
    for run in [run for e in experiments for run in e.runs]:
        if run.settings is None:
            remarks.append(f"{run.name}: no configuration.yaml, so it is compared as an experiment of its own.")
        if run.without_curves:
            remarks.append(f"{run.name}: has no curves of {', '.join(run.without_curves)}, only empty event files.")
        if time_of(run) is None:
            text = "no timers.json of its last session, so its time is not known. Did the run end by itself?"
            remarks.append(f"{run.name}: {text}")
    for e in experiments:
        if e.population:
            remarks.append(
                f"{e.label}: its seeds are members of a population, which learned from each other: they are no "
                "independent seeds, and no interval is shown. Compare several populations, each by its best member."
            )
        for behavior in dict.fromkeys(name for run in e.runs for name in run.behaviors):
            ends = [seed.last_step for seed in e.seeds(behavior)]
            if min(ends) < 0.9 * max(ends):
                remarks.append(
                    f"{e.label}, {behavior}: seeds end between step {min(ends):,} and {max(ends):,}; "
                    "curves show the steps that all of them cover."
                )
    return remarks
