"""What is the first difference between two runs, or two checkpoints: settings, versions, statistics, parameters.

Runs that ought to be equal are compared from the outside in: other settings explain other numbers, other versions of a
package may, the first statistic that differs says when it began, the first parameter where.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.artifacts import files
from jaxrl.artifacts.checkpoint.folder import METADATA, behaviors_of, checkpoints, latest
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.settings.section import flatten
from jaxrl.tools.report.events import ReportError, read_folder
from jaxrl.tools.report.runs import INCIDENTAL, SEED, places, read_settings

SAME_SETTINGS = frozenset(INCIDENTAL) - {SEED, "env_settings.seeds"}
"""Settings that may differ: how a run was named and started."""


class Compared(NamedTuple):
    """One kind of thing of both."""

    what: str  # "settings", "versions", "statistics" or "parameters"
    difference: str | None  # the first one, of both sides in order; None: there is none


class Pair(NamedTuple):
    """Two results folders, or two checkpoints."""

    first: Path
    second: Path
    runs: bool


def pair_of(first: Path, second: Path) -> Pair:
    """What the two paths name. Raises ReportError unless both are results folders, or both checkpoints."""
    kinds = [_is_run(path) for path in (first, second)]
    if kinds[0] != kinds[1]:
        run, checkpoint = (first, second) if kinds[0] else (second, first)
        raise ReportError(f"{run} is a run and {checkpoint} a checkpoint: give two runs or two checkpoints.")
    return Pair(first, second, kinds[0])


def compare_files(pair: Pair) -> list[Compared]:
    """Settings, versions and statistics. Raises ReportError or ArtifactError for files that cannot be read."""
    found = [
        Compared("settings", _of_mappings(*(_settings(path, pair.runs) for path in pair[:2]))),
        Compared("versions", _of_mappings(*(_versions(path, pair.runs) for path in pair[:2]))),
    ]
    if pair.runs:
        found.append(Compared("statistics", _of_statistics(pair.first, pair.second)))
    return found


def compare_parameters(pair: Pair) -> Compared:
    """Every array of the checkpoints that both have, oldest first. Imports JAX. Raises CheckpointError."""
    if not pair.runs:
        return Compared("parameters", _of_checkpoints(pair.first, pair.second))
    texts = (_of_behavior(pair, name) for name in sorted({*behaviors_of(pair.first), *behaviors_of(pair.second)}))
    return Compared("parameters", next((text for text in texts if text is not None), None))


def _is_run(path: Path) -> bool:
    if (path / METADATA).is_file():
        return False
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise ReportError(
            f"{path} {what}. Give results folders of runs, such as results/my-run, or checkpoints in them."
        )
    if not RunFolder(path.parent, path.name).configuration.exists() and not places(path) and not behaviors_of(path):
        raise ReportError(f"{path} is neither the results folder of a run nor a checkpoint (a folder with {METADATA}).")
    return True


def _settings(path: Path, is_run: bool) -> Mapping[str, Any]:
    if not is_run:
        return flatten(files.read_json(path / METADATA).get("settings", {}))
    written = read_settings(RunFolder(path.parent, path.name).configuration) or {}
    return {name: value for name, value in written.items() if name not in SAME_SETTINGS}


def _versions(path: Path, is_run: bool) -> Mapping[str, Any]:
    """As the newest checkpoint of the first behavior tells them."""
    newest = [latest(path / name) for name in behaviors_of(path)[:1]] if is_run else [path]
    return files.read_json(newest[0] / METADATA).get("versions", {}) if newest and newest[0] is not None else {}


def _of_mappings(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """The first key, in the order of the first mapping, whose values differ, and how many more there are."""
    names = [name for name in [*first, *(set(second) - set(first))] if first.get(name) != second.get(name)]
    if not names:
        return None
    name, more = names[0], f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{name}: {_shown(first, name)} / {_shown(second, name)}{more}"


def _shown(values: Mapping[str, Any], name: str) -> str:
    return str(values[name]) if name in values else "not there"


def _of_statistics(first: Path, second: Path) -> str | None:
    """Of the first behavior and seed with a difference: the first step, and the first tag in it."""
    curves = [{place[:2]: read_folder(place[2]).curves for place in places(path)} for path in (first, second)]
    for key in sorted(set(curves[0]) | set(curves[1])):
        points = [_points(of_run.get(key, {})) for of_run in curves]
        for step, tag in sorted(set(points[0]) | set(points[1])):
            values = [of_run.get((step, tag)) for of_run in points]
            shown = " / ".join("not there" if value is None else f"{value:.9g}" for value in values)
            if values[0] != values[1] and shown != "nan / nan":
                seed = f", seed {key[1]}" if key[1] else ""
                return f"{key[0]}{seed}: first at step {step}, {tag}: {shown}"
    return None


def _points(curves: Mapping[str, Any]) -> dict[tuple[int, str], float]:
    return {
        (int(step), tag): float(value)
        for tag, curve in curves.items()
        for step, value in zip(curve.step, curve.value, strict=True)
    }


def _of_behavior(pair: Pair, name: str) -> str | None:
    saved = [{item.step: item.path for item in checkpoints(run / name)} for run in pair[:2]]
    for step in sorted(set(saved[0]) & set(saved[1])):
        text = _of_checkpoints(saved[0][step], saved[1][step])
        if text is not None:
            return f"{name}-{step}: {text}"
    last = [max(steps, default=None) for steps in saved]
    if last[0] == last[1]:
        return None
    shown = " / ".join("not there" if step is None else str(step) for step in last)
    equal = sorted(set(saved[0]) & set(saved[1]))
    return f"{name}: last step {shown}" + (f", equal at step {equal[-1]}" if equal else "")


def _of_checkpoints(first: Path, second: Path) -> str | None:
    """The first array that differs, the largest difference of any, and how many differ."""
    from jaxrl.artifacts.checkpoint.store import read_arrays, read_info

    for path in (first, second):
        read_info(path)  # raises for what is none, or damaged
    arrays = read_arrays(first), read_arrays(second)
    shapes = _of_mappings(*({name: f"{x.dtype}{list(x.shape)}" for name, x in of_run.items()} for of_run in arrays))
    if shapes is not None:
        return shapes
    unequal = [name for name, x in arrays[0].items() if x.tobytes() != arrays[1][name].tobytes()]
    if not unequal:
        return None
    largest = max(_largest(arrays[0][name], arrays[1][name]) for name in unequal)
    return f"{unequal[0]}: largest difference {largest:.3g}, {len(unequal)} of {len(arrays[0])} arrays differ"


def _largest(first: np.ndarray, second: np.ndarray) -> float:
    """Infinite where one has a NaN and the other has none."""
    with np.errstate(invalid="ignore"):
        difference = np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64))
    both = np.isnan(np.asarray(first, np.float64)) & np.isnan(np.asarray(second, np.float64))
    return float(np.nan_to_num(np.where(both, 0.0, difference), nan=np.inf).max(initial=0.0))
