"""`jaxrl bench compare`: finds costs that differ between two files of numbers by more than their noise.

A number that is better when higher is inverted into a cost. For two sets of repetitions the table shows the ratio of
the medians, the ratio of the best (other load on a machine only adds), and a band: from the best of the second over
the worst of the first to the worst of the second over the best of the first. The two differ beyond the noise where
the band does not contain 1, so where the ranges do not overlap. A single measurement has no range; a remark says so.
Among many numbers on a busy machine some ranges miss each other by chance, so --fail-above wants the whole band above
its factor: then even the best of the second is that much slower than the worst of the first.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import rich
from rich.table import Table
from rich.text import Text

from jaxrl.tools.bench.lines import Line, Measured, latest
from jaxrl.tools.bench.table import Key, print_table, shown_all, title_of, values_of
from jaxrl.types import JaxrlError

_BUSY = 0.5  # load per core


class Ratio(NamedTuple):
    """Cost of the second over the first; above 1 is slower."""

    median: float
    best: float
    low: float  # of the band
    high: float

    @property
    def verdict(self) -> str:
        """Result of the comparison in a word."""
        if self.low > 1.0:
            return "slower"
        return "faster" if self.high < 1.0 else "within noise"

    def above(self, limit: float) -> bool:
        """Return whether the cost rose by more than the factor `limit`, even with all noise taken off."""
        return self.low > limit


class Row(NamedTuple):
    """Measurement that both files hold."""

    key: Key
    first: Sequence[float]
    second: Sequence[float]
    ratio: Ratio


def ratio_of(key: Key, first: Sequence[float], second: Sequence[float]) -> Ratio:
    """Return the ratio of the costs of two sets of repetitions."""
    a, b = ([1.0 / x if key.figure.better == "higher" else x for x in values] for values in (first, second))
    return Ratio(
        median=statistics.median(b) / statistics.median(a),
        best=min(b) / min(a),
        low=min(b) / max(a),
        high=max(b) / min(a),
    )


def comparison(first: Measured, second: Measured) -> tuple[list[Row], list[str]]:
    """Return rows of all numbers that are in both files and have a better side, and remarks on doubtful comparisons.

    Raises JaxrlError if one was measured with --quick and the other without, or if no number is in both.
    """
    if first.last.quick != second.last.quick:
        quick, full = (first, second) if first.last.quick else (second, first)
        raise JaxrlError(
            f"{quick.path} was measured with --quick and {full.path} without: sizes differ; measure both the same way."
        )
    before, later = ({k: v for k, v in values_of(m.lines).items() if _comparable(k, v)} for m in (first, second))
    rows = [Row(key, old, later[key], ratio_of(key, old, later[key])) for key, old in before.items() if key in later]
    if not rows:
        raise JaxrlError(f"{first.path} and {second.path} have no benchmark in common that ended well in both.")
    alone = sorted({key.benchmark for key in before.keys() ^ later.keys()} - {row.key.benchmark for row in rows})
    remarks = [*_differences(first.last, second.last), *_busy(first), *_busy(second)]
    remarks += [f"in one file alone: {', '.join(alone)}"] if alone else []
    if any(min(len(row.first), len(row.second)) < 2 for row in rows):
        remarks.append("some were measured once, so nothing is known of their noise: measure with --repeat 3")
    return rows, remarks


def compare(first: Path, second: Path, fail_above: float | None) -> bool:
    """Print the comparison of the last measurements of each file; return whether none exceeds `fail_above`.

    Raises JaxrlError: as `read_lines` and `comparison`.
    """
    a, b = latest(first), latest(second)
    rows, remarks = comparison(a, b)
    console = rich.get_console()
    for name, group in (("A", a), ("B", b)):
        console.print(f"{name}: {group.path}: {title_of(group.last)}", highlight=False, markup=False, soft_wrap=True)
    print_table(_table(rows))
    for remark in remarks:
        console.print(f"Beware: {remark}.", highlight=False, markup=False, soft_wrap=True)
    if fail_above is None:
        return True
    slower = [row for row in rows if row.ratio.above(fail_above)]
    for row in slower:
        name = ", ".join(filter(None, (row.key.benchmark, row.key.case, row.key.figure.name)))
        text = f"slower by more than {fail_above:g}: {name}: {row.ratio.low:.2f} to {row.ratio.high:.2f} times"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    return not slower


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="B over A, as costs: above 1 is slower", title_justify="left")
    for column in ("benchmark", "case", "A", "B"):
        table.add_column(column)
    for column in ("median", "best", "noise band"):
        table.add_column(column, justify="right")
    table.add_column("B is")
    before = ("", "")
    for row in rows:
        place = row.key.benchmark, row.key.case
        names = ("" if place[0] == before[0] else place[0], "" if place == before else place[1])
        before, ratio = place, row.ratio
        texts = (row.key.figure.text.format(shown_all(values)) for values in (row.first, row.second))
        band = f"{ratio.low:.2f} to {ratio.high:.2f}" if ratio.low != ratio.high else "?"
        table.add_row(*map(Text, (*names, *texts, f"{ratio.median:.2f}", f"{ratio.best:.2f}", band, ratio.verdict)))
    return table


def _comparable(key: Key, values: Sequence[float]) -> bool:
    return bool(key.figure.better) and min(values) > 0.0


def _differences(first: Line, second: Line) -> list[str]:
    pairs = [
        ("machines", first.machine.cpu, second.machine.cpu),
        ("numbers of cores", first.machine.cores, second.machine.cores),
        ("devices", *(f"{x.machine.accelerator.count} x {x.machine.accelerator.kind}" for x in (first, second))),
        ("versions of jax", first.versions.get("jax_version"), second.versions.get("jax_version")),
        ("versions of Python", first.versions.get("python_version"), second.versions.get("python_version")),
    ]
    return [f"different {what}: {a} and {b}" for what, a, b in pairs if a != b]


def _busy(one: Measured) -> list[str]:
    loads = [line.load for line in one.lines if line.load is not None]
    worst = max(loads, default=0.0)
    if worst <= _BUSY * one.last.machine.cores:
        return []
    return [f"{one.path} was measured beside other work (load up to {worst:.1f} on {one.last.machine.cores} cores)"]
