"""The table that `jaxrl bench` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import rich
from rich.table import Table
from rich.text import Text

from benchmarks.runner.script import Benchmark, Outcome


def print_table(benchmarks: Sequence[Benchmark], outcomes: Sequence[Outcome], origin: Mapping[str, Any]) -> None:
    """One row per case; `origin` as `jaxrl bench` writes it beside the numbers."""
    table = Table(title=_title(origin), title_justify="left")
    for column in ("benchmark", "case", "result"):
        table.add_column(column)
    table.add_column("seconds", justify="right")
    for benchmark, outcome in zip(benchmarks, outcomes, strict=True):
        first = (outcome.benchmark, f"{outcome.seconds:.1f}")
        for case, result in rows_of(benchmark, outcome):
            table.add_row(*map(Text, (first[0], case, result, first[1])))
            first = ("", "")
    rich.get_console().print(table)


def rows_of(benchmark: Benchmark, outcome: Outcome) -> list[tuple[str, str]]:
    """(case, result): a row per object that the script wrote, or one that says why there is none."""
    if outcome.state != "ok":
        return [("", f"{outcome.state}: {outcome.message.splitlines()[-1]}")]
    rows = []
    for found in outcome.results:
        flat = {key: value for key, value in _flatten(found).items() if key not in benchmark.case}
        shown = benchmark.figures or {f"{key} {{}}": key for key, value in flat.items() if _is_number(value)}
        case = ", ".join(_with_unit(key, found[key]) for key in benchmark.case if key in found)
        rows.append((case, ", ".join(text.format(_number(flat[key])) for text, key in shown.items() if key in flat)))
    return rows


def _title(origin: Mapping[str, Any]) -> str:
    found, commit = origin["machine"], origin["commit"]
    changed = " with changes" if commit and commit["changed"] else ""
    source = f"commit {commit['hash'][:10]}{changed}" if commit else "no commit"
    devices = f"{found['accelerator']['count']} x {found['accelerator']['kind']}"
    return f"{found['cpu']}, {found['cores']} cores; {devices}; jax {origin['versions']['jax_version']}; {source}"


def _with_unit(key: str, value: Any) -> str:
    return f"{_number(value)} {key}" if _is_number(value) else str(value)


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, below in value.items():
        flat |= _flatten(below, f"{prefix}{key}.") if isinstance(below, Mapping) else {f"{prefix}{key}": below}
    return flat


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> str:
    if isinstance(value, float) and abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if _is_number(value) else str(value)
