"""`jaxrl report`: compares finished runs in one file."""

from __future__ import annotations

import argparse
import contextlib
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxrl.cli.leaving import leaving_tidily
from jaxrl.types import JaxrlError

if TYPE_CHECKING:
    from jaxrl.tools.report.films import Film

FILM_STEPS = 200
"""Largest number of decisions in a film of --films: some 200 kB."""
_log = logging.getLogger(__name__)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add RUN [RUN ...], --out and --films."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="results folder of a run, such as results/first; runs that differ only in the seed are one experiment",
    )
    parser.add_argument(
        "--out",
        default="report.html",
        metavar="FILE",
        help="file to write: .html with figures and tables, or .png with the figures (default: report.html)",
    )
    parser.add_argument(
        "--films",
        action="store_true",
        help="play an episode of each run whose environment `jaxrl watch` can show, and put its film into the page "
        "(without: the last film of a run's videos/)",
    )
    parser.add_argument("--trust", action="store_true", help="import code that the folders of runs name, for --films")


def run(given: argparse.Namespace) -> None:
    """Write the report. Raises ReportError or ArtifactError, which say what to do."""
    import rich

    from jaxrl.artifacts.metrics.console import setup_logging
    from jaxrl.tools.report.events import ReportError
    from jaxrl.tools.report.report import check_out, write_report

    setup_logging(rich.get_console(), debug=getattr(given, "debug", False))
    if given.films and check_out(given.out).suffix.lower() != ".html":
        raise ReportError(f"--films: {given.out} is a picture, which holds no films. Give a file that ends with .html.")
    with leaving_tidily(), tempfile.TemporaryDirectory(prefix="jaxrl-report-") as folder:
        films = _films(given.runs, Path(folder), given.trust) if given.films else {}
        remarks = write_report(given.runs, given.out, films)
    for remark in remarks:
        _log.warning("%s", remark)
    _log.info("Wrote %s.", given.out)


def _films(runs: Sequence[str], folder: Path, trust: bool) -> dict[Path, Film]:
    """Return a film of an episode of each run, played on the CPU; warn of a run that cannot be played."""
    from jaxrl.cli.device import compute_on_cpu
    from jaxrl.tools.report.films import Film
    from jaxrl.tools.report.runs import NoCurvesError, read_run
    from jaxrl.tools.report.sweep import expanded

    folders = [folder for run in runs for folder in expanded(Path(run))]
    for run in folders:
        with contextlib.suppress(NoCurvesError):
            read_run(run)  # raises for a folder that is no run before anything is played
    compute_on_cpu()
    from jaxrl.tools.watch.film import watch

    films = {}
    for number, path in enumerate(dict.fromkeys(folders)):
        try:
            shown = watch(None, run=path, out=folder / f"{number}.gif", steps=FILM_STEPS, trust=trust)
        except JaxrlError as error:
            _log.warning("%s: no film: %s", path, error)
            continue
        reward = " : ".join(f"{team:.2f}" for team in shown.returns[0])
        words = f"{path.resolve().name}: {shown.policy}, reward {reward}, {shown.steps} steps"
        films[path] = Film(shown.out, words, stays=False)
    return films
