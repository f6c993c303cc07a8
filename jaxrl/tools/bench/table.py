"""The table that `jaxrl bench` prints, and how a table is printed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import rich
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from jaxrl.tools.bench.catalogue import Benchmark
from jaxrl.tools.bench.lines import Line
from jaxrl.tools.bench.values import shown_all, values_of


def print_table(table: Table) -> None:
    """As wide as it needs where no terminal limits it: a file is read with other means than the eye."""
    console = rich.get_console()
    if not console.is_terminal:
        wide = console.options.update(width=10_000)
        console = Console(width=max(Measurement.get(console, wide, table).maximum, console.width), highlight=False)
    console.print(table)


def print_run(benchmarks: Sequence[Benchmark], lines: Sequence[Line]) -> None:
    """One row per case; where it was measured above."""
    table = Table(title=title_of(lines[-1]), title_justify="left")
    for column in ("benchmark", "case", "result"):
        table.add_column(column)
    table.add_column("seconds", justify="right")
    for benchmark in benchmarks:
        own = [line for line in lines if line.benchmark == benchmark.name]
        first = (benchmark.name, f"{statistics.median(line.seconds for line in own):.1f}")
        for case, result in rows_of(benchmark, own):
            table.add_row(*map(Text, (first[0], case, result, first[1])))
            first = ("", "")
    print_table(table)


def rows_of(benchmark: Benchmark, lines: Sequence[Line]) -> list[tuple[str, str]]:
    """(case, result): a row per case, or one that says why there is none."""
    bad = next((line for line in lines if line.state != "ok"), None)
    if bad is not None:
        return [("", f"{bad.state}: {bad.message.splitlines()[-1]}")]
    rows: dict[str, list[str]] = {}
    for key, values in values_of(lines, [benchmark]).items():
        rows.setdefault(key.case, []).append(key.figure.text.format(shown_all(values)))
    return [(case, ", ".join(texts)) for case, texts in rows.items()]


def title_of(line: Line) -> str:
    """Machine, device, JAX and source in one line."""
    load = f"; load {line.load:.1f}" if line.load is not None else ""
    changed = " with changes" if line.commit and line.commit.changed else ""
    source = f"commit {line.commit.hash[:10]}{changed}" if line.commit else line.source
    return f"{line.device}; jax {line.versions.get('jax_version')}; {source}{load}"
