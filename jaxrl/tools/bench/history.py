"""`jaxrl bench history`: shows the numbers over commits, a column each, and changes beyond their noise."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import rich
from rich.table import Table
from rich.text import Text

from jaxrl.tools.bench.compare import ratio_of
from jaxrl.tools.bench.lines import Measured, measured
from jaxrl.tools.bench.table import Key, print_table, shown_all, values_of
from jaxrl.types import JaxrlError


class Cell(NamedTuple):
    """Measurement at one commit."""

    text: str  # empty: it was not measured
    change: float | None  # cost over that of the previous measurement, where they differ beyond the noise


class History(NamedTuple):
    """All measurements on one device, oldest first."""

    device: str
    columns: list[Measured]
    rows: list[tuple[Key, list[Cell]]]


def files_in(places: Sequence[Path]) -> list[Path]:
    """Return the files, and in place of folders their .json and .jsonl files. Raises JaxrlError when there is none."""
    files: list[Path] = []
    for place in places:
        files += sorted([*place.glob("*.json"), *place.glob("*.jsonl")]) if place.is_dir() else [place]
    if not files:
        named = ", ".join(map(str, places))
        raise JaxrlError(f"{named}: holds no .json or .jsonl; give files that `jaxrl bench --json FILE` has written.")
    return files


def histories(paths: Sequence[Path]) -> list[History]:
    """Return histories by device, columns in order of commit (or of measurement). Raises as `read_lines`."""
    devices: dict[str, list[Measured]] = {}
    for group in sorted((group for path in paths for group in measured(path)), key=lambda m: (m.when, m.last.time)):
        devices.setdefault(group.last.device, []).append(group)
    return [_history(device, columns) for device, columns in devices.items()]


def print_history(places: Sequence[Path]) -> None:
    """Print a table per device. Raises JaxrlError if there are no files, and as `read_lines`."""
    for history in histories(files_in(places)):
        if not history.rows:
            rich.get_console().print(f"{history.device}: nothing ended well.", highlight=False, markup=False)
            continue
        table = Table(title=history.device, title_justify="left")
        table.add_column("benchmark")
        table.add_column("case")
        for column in history.columns:
            day = time.strftime("%Y-%m-%d", time.gmtime(column.when))
            table.add_column(Text(f"{column.last.source}\n{day}\n{column.path.stem}"), justify="right")
        for key, cells in history.rows:
            texts = [cell.text + (f" [{cell.change:.2f}]" if cell.change else "") for cell in cells]
            name = f"{key.case}: {key.figure.name}".removeprefix(": ")
            table.add_row(*map(Text, (key.benchmark, name, *texts)))
        print_table(table)
    explained = "[n]: the cost is n times that of the column before, and the ranges do not overlap."
    rich.get_console().print(explained, markup=False, highlight=False, soft_wrap=True)


def _history(device: str, columns: list[Measured]) -> History:
    values = [values_of(column.lines) for column in columns]
    keys = dict.fromkeys(key for numbers in values for key in numbers if key.figure.better)
    return History(device, columns, [(key, _cells(key, [numbers.get(key) for numbers in values])) for key in keys])


def _cells(key: Key, columns: Sequence[list[float] | None]) -> list[Cell]:
    cells: list[Cell] = []
    before: list[float] | None = None
    for values in columns:
        if values is None:
            cells.append(Cell("", None))
            continue
        usable = min(values) > 0.0 and before is not None and min(before) > 0.0
        ratio = ratio_of(key, before, values) if before is not None and usable else None
        changed = ratio is not None and ratio.verdict != "within noise"
        cells.append(Cell(shown_all(values), ratio.median if ratio is not None and changed else None))
        before = values
    return cells
