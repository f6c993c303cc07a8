"""Lines of numbers as values by benchmark, case and figure: what the tables, comparisons and histories are made of."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.tools.bench.catalogue import BENCHMARKS, Benchmark, Figure
from jaxrl.tools.bench.lines import Line


class Key(NamedTuple):
    """What a number is of."""

    benchmark: str
    case: str  # such as "poca, 3 members"; empty where a benchmark has only one
    figure: Figure


def values_of(lines: Iterable[Line], benchmarks: Sequence[Benchmark] = BENCHMARKS) -> dict[Key, list[float]]:
    """The numbers of all lines that ended well, one per repetition, in the order of `benchmarks`.

    Figures that say nothing on the device of a line are left out, and so are benchmarks that are not in the list.
    """
    by_name: dict[str, list[Line]] = {}
    for line in lines:
        if line.state == "ok":
            by_name.setdefault(line.benchmark, []).append(line)
    found: dict[Key, list[float]] = {}
    for benchmark in benchmarks:
        for line in by_name.get(benchmark.name, ()):
            for result in line.results:
                flat = _flatten(result)
                case = ", ".join(_with_unit(key, result[key]) for key in benchmark.case if key in result)
                for figure in benchmark.figures:
                    if _says_something(figure, line) and _is_number(flat.get(figure.key)):
                        found.setdefault(Key(benchmark.name, case, figure), []).append(float(flat[figure.key]))
    return found


def shown(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def shown_all(values: Sequence[float]) -> str:
    """The median, and between what the values lie where there are several."""
    middle = shown(statistics.median(values))
    return f"{middle} ({shown(min(values))} to {shown(max(values))})" if len(values) > 1 else middle


def _says_something(figure: Figure, line: Line) -> bool:
    kind = "cpu" if line.machine.accelerator.backend == "cpu" else "accelerator"
    return figure.on in ("", kind)


def _with_unit(key: str, value: Any) -> str:
    return f"{shown(value)} {key}" if _is_number(value) else str(value)


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, below in value.items():
        flat |= _flatten(below, f"{prefix}{key}.") if isinstance(below, Mapping) else {f"{prefix}{key}": below}
    return flat


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # no NaN
