"""`jaxrl report`: compare finished runs in one file."""

from __future__ import annotations

import argparse
import logging

_log = logging.getLogger(__name__)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """RUN [RUN ...] and --out."""
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


def run(given: argparse.Namespace) -> None:
    """Write the report. Raises ReportError or ArtifactError, which tell what to do."""
    import rich

    from jaxrl.artifacts.metrics.console import setup_logging
    from jaxrl.report.report import write_report

    setup_logging(rich.get_console(), debug=getattr(given, "debug", False))
    for remark in write_report(given.runs, given.out):
        _log.warning("%s", remark)
    _log.info("Wrote %s.", given.out)
