"""Writes the results of a sweep: a table, and `sweep.json` beside its runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxrl.artifacts.files import write_text
from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.artifacts.names import is_folder_name
from jaxrl.regular_files import read_regular
from jaxrl.settings.sweep import Point
from jaxrl.tools.report.events import Curve, ReportError, SeedEvents, final_score
from jaxrl.tools.report.runs import read_run
from jaxrl.tools.report.tables import tells

FILE = "sweep.json"
OfSeeds = Mapping[str, Mapping[str, SeedEvents]]
"""Events of behaviors by name, by number of the seed."""


class Result(NamedTuple):
    """Scores of one sweep point."""

    point: Point
    runs: list[str]  # names of their folders
    scores: dict[str, float]  # by seed; empty where it has no summary yet
    steps: int

    @property
    def mean(self) -> float:
        """Mean score over the seeds; NaN where there are none."""
        return float(np.mean([*self.scores.values()])) if self.scores else float("nan")


def write_results(folder: Path, points: Sequence[tuple[Point, Sequence[str]]]) -> list[str]:
    """Read the runs of a sweep, write `sweep.json`, and return a table, best first, as lines of text.

    `points` come with the names of their runs. A score is the report's: the mean of the last summaries of a seed, of
    the group reward where all points have one, and over its behaviors. Raises ArtifactError if writing fails.
    """
    seeds = [seeds_of(folder / name for name in names) for _, names in points]
    tag, judged = curves_of(seeds)
    results = [_result(*columns) for columns in zip(points, seeds, judged, strict=True)]
    results.sort(key=lambda result: -np.inf if np.isnan(result.mean) else result.mean, reverse=True)
    write_text(folder / FILE, _document(results, tag))
    return _table(results, tag, folder)


def expanded(folder: Path) -> list[Path]:
    """Return the runs of a sweep's folder, in the order of its points; any other folder itself. Raises ReportError."""
    path = folder / FILE
    if not path.is_file():
        return [folder]
    try:
        points = json.loads(read_regular(path))["points"]
        names = [name for point in points if point["scores"] for name in point["runs"]]
        for name in names:
            if not isinstance(name, str) or not is_folder_name(name):
                raise ValueError(f"{name!r:.200} is no folder in it")
        return [folder / name for name in names]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReportError(f"{path}: cannot be read ({error!r}). Give the runs in its folder one by one.") from error


def seeds_of(folders: Iterable[Path]) -> OfSeeds:
    """Return the seeds in some runs' folders; none of a run without a summary yet."""
    seeds: dict[str, dict[str, SeedEvents]] = {}
    for folder in folders:
        with contextlib.suppress(ReportError):
            for name, by_seed in read_run(folder).behaviors.items():
                for number, events in by_seed.items():
                    seeds.setdefault(number, {})[name] = events
    return seeds


def curves_of(points: Sequence[OfSeeds]) -> tuple[str, list[dict[str, list[Curve]]]]:
    """Return the statistic by which seeds are compared, and for each point its curves by seed, one of each behavior.

    A seed without curves of some behavior is left out.
    """
    every = [seed for seeds in points for seed in seeds.values()]
    names = dict.fromkeys(name for seed in every for name in seed)
    chosen = {name: score_of(seed[name] for seed in every if name in seed) for name in names}

    def curves(of: Mapping[str, SeedEvents]) -> list[Curve]:
        return [of[name].curves[tag] for name, tag in chosen.items() if name in of and tag in of[name].curves]

    charts = [{number: curves(of) for number, of in seeds.items()} for seeds in points]
    text = " and ".join(dict.fromkeys(chosen.values())) or tags.CUMULATIVE_REWARD
    text += f", mean over {', '.join(chosen)}" if len(chosen) > 1 else ""
    return text, [{number: lines for number, lines in seeds.items() if len(lines) == len(chosen)} for seeds in charts]


def worth(curves: Iterable[Curve]) -> float:
    """Return the score of a seed, from the curves of its behaviors."""
    return float(np.mean([final_score(curve) for curve in curves]))


def score_of(seeds: Iterable[SeedEvents]) -> str:
    """Return the statistic that compares seeds: the group reward where all have one, and any has earned it."""
    curves = [seed.curves.get(tags.GROUP_CUMULATIVE_REWARD) for seed in seeds]
    known = [curve for curve in curves if curve is not None]
    grouped = len(known) == len(curves) and tells(tags.GROUP_CUMULATIVE_REWARD, [known])
    return tags.GROUP_CUMULATIVE_REWARD if grouped else tags.CUMULATIVE_REWARD


def _result(of: tuple[Point, Sequence[str]], seeds: OfSeeds, judged: Mapping[str, list[Curve]]) -> Result:
    point, names = of
    scores = {number: worth(curves) for number, curves in judged.items()}
    steps = (events.last_step for behaviors in seeds.values() for events in behaviors.values())
    return Result(point, list(names), scores, min(steps, default=0))


def _document(results: Sequence[Result], tag: str) -> str:
    points = [
        {
            "point": r.point.name,
            "values": dict(r.point.values),
            "runs": r.runs,
            "scores": r.scores,
            "mean": r.mean if r.scores else None,
            "steps": r.steps,
        }
        for r in results
    ]
    return json.dumps({"statistic": tag, "points": points}, indent=2) + "\n"


def _table(results: Sequence[Result], tag: str, folder: Path) -> list[str]:
    width = max(len(result.point.name) for result in results)
    lines = [f"{'point':<{width}}  {'mean':>9}  {'std':>9}  seeds  last summary   ({tag})"]
    for r in results:
        spread = float(np.std([*r.scores.values()], ddof=1)) if len(r.scores) > 1 else float("nan")
        numbers = [f"{x:9.3f}" if np.isfinite(x) else f"{'–':>9}" for x in (r.mean, spread)]
        lines.append(f"{r.point.name:<{width}}  {'  '.join(numbers)}  {len(r.scores):>5}  {r.steps:>12,}")
    return [*lines, f"Compare the curves: jaxrl report {folder} --out report.html"]
