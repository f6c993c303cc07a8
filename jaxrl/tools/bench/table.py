"""Prints tables, among them that of `jaxrl bench`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import rich
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from jaxrl.settings.section import flatten
from jaxrl.tools.bench.catalogue import BENCHMARKS, Benchmark, Figure
from jaxrl.tools.bench.lines import Line


def print_table(table: Table) -> None:
    """Print a table, as wide as it needs where no terminal limits it: a file may be searched instead of viewed."""
    console = rich.get_console()
    if not console.is_terminal:
        wide = console.options.update(width=10_000)
        console = Console(width=max(Measurement.get(console, wide, table).maximum, console.width), highlight=False)
    console.print(table)


def print_run(benchmarks: Sequence[Benchmark], lines: Sequence[Line]) -> None:
    """Print one row per case; the machine stands above."""
    table = Table(title=title_of(lines[-1]), title_justify="left")
    for column in ("benchmark", "case", "result"):
        table.add_column(column)
    table.add_column("seconds", justify="right")
    for benchmark in benchmarks:
        benchmark_lines = [line for line in lines if line.benchmark == benchmark.name]
        first = (benchmark.name, f"{statistics.median(line.seconds for line in benchmark_lines):.1f}")
        for case, result in rows_of(benchmark, benchmark_lines):
            table.add_row(*map(Text, (first[0], case, result, first[1])))
            first = ("", "")
    print_table(table)


def rows_of(benchmark: Benchmark, lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Return (case, result): a row per case, or one that says why there is none."""
    bad = next((line for line in lines if line.state != "ok"), None)
    if bad is not None:
        return [("", f"{bad.state}: {bad.message.splitlines()[-1]}")]
    rows: dict[str, list[str]] = {}
    for key, values in values_of(lines, [benchmark]).items():
        rows.setdefault(key.case, []).append(key.figure.text.format(shown_all(values)))
    return [(case, ", ".join(texts)) for case, texts in rows.items()]


def title_of(line: Line) -> str:
    """Return machine, device, JAX and source in one line."""
    load = f"; load {line.load:.1f}" if line.load is not None else ""
    changed = " with changes" if line.commit and line.commit.changed else ""
    source = f"commit {line.commit.hash[:10]}{changed}" if line.commit else line.source
    return f"{line.device}; jax {line.versions.get('jax_version')}; {source}{load}"


class Key(NamedTuple):
    """Identity of a number."""

    benchmark: str
    case: str  # such as "poca, 3 members"; empty where a benchmark has only one
    figure: Figure


def values_of(lines: Iterable[Line], benchmarks: Sequence[Benchmark] = BENCHMARKS) -> dict[Key, list[float]]:
    """Return the numbers of all lines that ended well, one per repetition, in the order of `benchmarks`.

    Figures without meaning on the device of a line are left out, and so are benchmarks that are not in the list.
    """
    by_name: dict[str, list[Line]] = {}
    for line in lines:
        if line.state == "ok":
            by_name.setdefault(line.benchmark, []).append(line)
    numbers: dict[Key, list[float]] = {}
    for benchmark in benchmarks:
        for line in by_name.get(benchmark.name, ()):
            for result in line.results:
                flat = flatten(result)
                case = ", ".join(_with_unit(key, result[key]) for key in benchmark.case if key in result)
                for figure in benchmark.figures:
                    if _says_something(figure, line) and _is_number(flat.get(figure.key)):
                        numbers.setdefault(Key(benchmark.name, case, figure), []).append(float(flat[figure.key]))
    return numbers


def shown(value: float) -> str:
    """Return the number with three digits, or with all before the point."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def shown_all(values: Sequence[float]) -> str:
    """Return the median, and the range where there are several values."""
    middle = shown(statistics.median(values))
    return f"{middle} ({shown(min(values))} to {shown(max(values))})" if len(values) > 1 else middle


def _says_something(figure: Figure, line: Line) -> bool:
    kind = "cpu" if line.machine.accelerator.backend == "cpu" else "accelerator"
    return figure.on in ("", kind)


def _with_unit(key: str, value: Any) -> str:
    return f"{shown(value)} {key}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # no NaN
