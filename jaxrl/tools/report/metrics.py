"""Reads the event files of a run as arrays: `jaxrl.read_metrics(run)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxrl.artifacts.metrics.statistics import CUMULATIVE_REWARD
from jaxrl.envs.address import unknown
from jaxrl.tools.report.events import Curve, ReportError
from jaxrl.tools.report.runs import read_run

if TYPE_CHECKING:
    from pandas import DataFrame  # pyright: ignore[reportMissingImports] an extra

_COLUMNS = ("behavior", "tag", "seed", "step", "value")


@dataclass(frozen=True)
class RunMetrics:
    """All scalars of one run: by behavior, then by tag, then by seed, a curve of steps [K] and values [K]."""

    run: str
    curves: Mapping[str, Mapping[str, Mapping[str, Curve]]]

    @property
    def behaviors(self) -> tuple[str, ...]:
        """Names of the behaviors."""
        return tuple(self.curves)

    @property
    def tags(self) -> tuple[str, ...]:
        """TensorBoard tags of all behaviors, in alphabetical order."""
        return tuple(sorted({tag for of_behavior in self.curves.values() for tag in of_behavior}))

    def by_seed(self, tag: str, behavior: str | None = None) -> Mapping[str, Curve]:
        """Return the curve of each seed by its number ("7", or "?" where the run does not record it).

        `behavior`: None if the run has one. Raises ReportError for an unknown tag or behavior; it names the nearest.
        """
        if behavior is None and len(self.curves) > 1:
            raise ReportError(f"{self.run}: has several behaviors, say which: {', '.join(self.curves)}")
        name = next(iter(self.curves)) if behavior is None else behavior
        if name not in self.curves:
            raise ReportError(unknown(self.run, name, self.curves, what=f"has no behavior {name}", there_are="it has"))
        curves = self.curves[name]
        if tag not in curves:
            raise ReportError(unknown(self.run, tag, curves, what=f"{name} has no {tag}", there_are="it has"))
        return curves[tag]

    def array(self, tag: str = CUMULATIVE_REWARD, behavior: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return one statistic of all seeds: ascending steps int64 [K], values float64 [S, K], NaN without a value.

        Seeds are in the order of `by_seed`, whose errors are raised here too.
        """
        curves = list(self.by_seed(tag, behavior).values())
        steps = np.unique(np.concatenate([curve.step for curve in curves]))
        values = np.full((len(curves), len(steps)), np.nan)
        for row, curve in zip(values, curves, strict=True):
            row[np.searchsorted(steps, curve.step)] = curve.value
        return steps, values

    def frame(self) -> DataFrame:
        """Return a pandas frame with columns behavior, tag, seed, step, value: a row for each number.

        Raises ReportError where pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ModuleNotFoundError as error:
            raise ReportError(f"frame: needs pandas ({error}): pip install pandas, or use by_seed and array") from None
        return pandas.DataFrame(list(self._rows()), columns=list(_COLUMNS))

    def to_parquet(self, path: str | Path) -> None:
        """Write the rows of `frame` as a Parquet file: behavior, tag, seed, step int64, value float64.

        Raises ReportError where pyarrow is not installed, or the file cannot be written.
        """
        try:
            arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        except ModuleNotFoundError as error:
            raise ReportError(f"to_parquet: needs pyarrow ({error}): pip install 'jaxrl[parquet]'") from None
        columns = zip(*self._rows(), strict=True)
        table = arrow.table(dict(zip(_COLUMNS, map(list, columns), strict=True)))
        try:
            parquet.write_table(table, Path(path))
        except OSError as error:
            raise ReportError(f"{path}: cannot be written: {error}; choose a folder that you may write to") from None

    def _rows(self) -> Iterator[tuple[str, str, str, int, float]]:
        for behavior, tags in self.curves.items():
            for tag, seeds in tags.items():
                for seed, curve in seeds.items():
                    for step, value in zip(curve.step.tolist(), curve.value.tolist(), strict=True):
                        yield behavior, tag, seed, step, value


def read_metrics(run: str | Path) -> RunMetrics:
    """Return the scalars that a run of jaxrl or ML-Agents wrote for TensorBoard, also of a run that is going on.

        steps, values = jaxrl.read_metrics("results/first").array("Environment/Group Cumulative Reward")

    Raises ReportError if there is no such folder, nothing was written yet, or a file is damaged.
    """
    folder = read_run(Path(run))
    curves: dict[str, dict[str, dict[str, Curve]]] = {}
    for behavior, seeds in folder.behaviors.items():
        for seed, events in seeds.items():
            for tag, curve in sorted(events.curves.items()):
                curves.setdefault(behavior, {}).setdefault(tag, {})[seed] = curve
    return RunMetrics(folder.name, curves)
