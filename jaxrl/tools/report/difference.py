"""Finds the first difference between two runs or two checkpoints: settings, versions, statistics, parameters.

Runs that ought to be equal are compared from the outside in: other settings explain other numbers, other versions of a
package may; the first statistic that differs says when the difference began, the first parameter where. Runs of
ML-Agents, whose checkpoints are files of PyTorch, are compared likewise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.artifacts import files
from jaxrl.artifacts.checkpoint.folder import METADATA, behaviors_of, checkpoints, latest
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import METADATA as STATUS_METADATA
from jaxrl.settings.section import flatten
from jaxrl.tools.report.events import ReportError, read_folder
from jaxrl.tools.report.runs import INCIDENTAL, SEED, places, read_settings

ReadTorch = Callable[[Path], Mapping[str, np.ndarray]]
TIMES = "Time/"
"""Prefix of the tags of measured times, which differ between equal runs."""
SAME_SETTINGS = frozenset(INCIDENTAL) - {SEED, "env_settings.seeds"}
"""Settings that may differ: name and start of a run."""


class Compared(NamedTuple):
    """The comparison of one kind of content."""

    what: str  # "settings", "versions", "statistics" or "parameters"
    difference: str | None  # the first one, as "first / second"; None: there is none
    is_there: bool = True  # False: neither side has this content


class Pair(NamedTuple):
    """Two results folders, or two checkpoints."""

    first: Path
    second: Path
    runs: bool


def pair_of(first: Path, second: Path) -> Pair:
    """Return the two paths as a pair. Raises ReportError unless both are results folders, or both checkpoints."""
    kinds = [_is_run(path) for path in (first, second)]
    if kinds[0] != kinds[1]:
        run, checkpoint = (first, second) if kinds[0] else (second, first)
        raise ReportError(f"{run} is a run and {checkpoint} a checkpoint: give two runs or two checkpoints.")
    return Pair(first, second, kinds[0])


def compare_files(pair: Pair) -> list[Compared]:
    """Compare settings, versions and statistics. Raises ReportError or ArtifactError for files that cannot be read."""
    settings = [_settings(path, pair.runs) for path in pair[:2]]
    versions = [_versions(path, pair.runs) for path in pair[:2]]
    comparisons = [
        Compared("settings", _of_mappings(*settings), any(settings)),
        Compared("versions", _of_mappings(*versions), any(versions)),
    ]
    if pair.runs:
        comparisons.append(_of_statistics(pair))
    return comparisons


def compare_parameters(pair: Pair, read_torch: ReadTorch) -> Compared:
    """Compare every array of the checkpoints that both have, oldest first. Imports JAX.

    `read_torch` reads arrays of an ML-Agents file. Runs without a checkpoint do not count as equal.

    Raises ArtifactError.
    """
    if not pair.runs:
        return Compared("parameters", _of_checkpoints(pair.first, pair.second, read_torch))
    names = {path.name for run in pair[:2] for path in run.iterdir() if path.is_dir() and _saved(path)}
    if not names:
        return Compared("parameters", "none were compared, neither run has a checkpoint", is_there=False)
    texts = (_of_behavior(pair, name, read_torch) for name in sorted(names))
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
    """Return versions in the newest checkpoint of the first behavior, else in training_status.json."""
    newest = [latest(path / name) for name in behaviors_of(path)[:1]] if is_run else [path]
    if newest and newest[0] is not None:
        return files.read_json(newest[0] / METADATA).get("versions", {})
    status = RunFolder(path.parent, path.name).status
    return files.read_json(status).get(STATUS_METADATA, {}) if status.is_file() else {}


def _of_mappings(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Return the first key, in the order of the first mapping, whose values differ, and how many more there are."""
    names = [name for name in [*first, *(set(second) - set(first))] if first.get(name) != second.get(name)]
    if not names:
        return None
    name, more = names[0], f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{name}: {_shown(first, name)} / {_shown(second, name)}{more}"


def _shown(values: Mapping[str, Any], name: str) -> str:
    return str(values[name]) if name in values else "not there"


def _of_statistics(pair: Pair) -> Compared:
    curves = [{place[:2]: read_folder(place[2]).curves for place in places(path)} for path in pair[:2]]
    known = [any(of_run.values()) for of_run in curves]
    if any(known) and not all(known):
        return Compared("statistics", f"{pair[known.index(False)]} has no curves")
    return Compared("statistics", _first_point(pair, curves), any(known))


def _first_point(pair: Pair, curves: Sequence[Mapping[tuple[str, str], Mapping[str, Any]]]) -> str | None:
    """Return the first differing behavior and seed with its first step, and the first tag in that step."""
    for key in sorted(set(curves[0]) | set(curves[1])):
        points = [_points(of_run.get(key, {})) for of_run in curves]
        seed = f", seed {key[1]}" if key[1] else ""
        without = [path for path, of_run in zip(pair[:2], points, strict=True) if not of_run]
        if len(without) == 1:
            return f"{key[0]}{seed}: {without[0]} has no curves of it"
        for step, tag in sorted(set(points[0]) | set(points[1])):
            values = [of_run.get((step, tag)) for of_run in points]
            shown = " / ".join("not there" if value is None else f"{value:.9g}" for value in values)
            if values[0] != values[1] and shown != "nan / nan":
                return f"{key[0]}{seed}: first at step {step}, {tag}: {shown}"
    return None


def _points(curves: Mapping[str, Any]) -> dict[tuple[int, str], float]:
    return {
        (int(step), tag): float(value)
        for tag, curve in curves.items()
        if not tag.startswith(TIMES)
        for step, value in zip(curve.step, curve.value, strict=True)
    }


def _saved(folder: Path) -> dict[int, Path]:
    """Return a behavior's checkpoints by step: folders of jaxrl, else files of ML-Agents."""
    pattern = re.compile(re.escape(folder.name) + r"-(\d{1,15})\.pt")
    files_of = ((pattern.fullmatch(path.name), path) for path in folder.glob("*.pt"))
    folders_of = {item.step: item.path for item in checkpoints(folder)}
    return {int(match[1]): path for match, path in files_of if match} | folders_of


def _of_behavior(pair: Pair, name: str, read_torch: ReadTorch) -> str | None:
    saved = [_saved(run / name) for run in pair[:2]]
    for step in sorted(set(saved[0]) & set(saved[1])):
        text = _of_checkpoints(saved[0][step], saved[1][step], read_torch)
        if text is not None:
            return f"{name}-{step}: {text}"
    last = [max(steps, default=None) for steps in saved]
    if last[0] == last[1]:
        return None
    shown = " / ".join("not there" if step is None else str(step) for step in last)
    equal = sorted(set(saved[0]) & set(saved[1]))
    return f"{name}: last step {shown}" + (f", equal at step {equal[-1]}" if equal else "")


def _of_checkpoints(first: Path, second: Path, read_torch: ReadTorch) -> str | None:
    """Return the first array that differs, the largest difference of any, and how many differ."""
    kinds = ["a checkpoint of jaxrl" if path.is_dir() else "one of ML-Agents" for path in (first, second)]
    if kinds[0] != kinds[1]:
        return " / ".join(kinds)
    arrays = [_arrays(path) if path.is_dir() else read_torch(path) for path in (first, second)]
    shapes = _of_mappings(*({name: f"{x.dtype}{list(x.shape)}" for name, x in of_run.items()} for of_run in arrays))
    if shapes is not None:
        return shapes
    unequal = [name for name, x in arrays[0].items() if x.tobytes() != arrays[1][name].tobytes()]
    if not unequal:
        return None
    largest = max(_largest(arrays[0][name], arrays[1][name]) for name in unequal)
    return f"{unequal[0]}: largest difference {largest:.3g}, {len(unequal)} of {len(arrays[0])} arrays differ"


def _arrays(path: Path) -> Mapping[str, Any]:
    from jaxrl.artifacts.checkpoint.store import read_arrays

    return read_arrays(path)


def _largest(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest absolute difference; infinite where one has a NaN and the other has none."""
    with np.errstate(invalid="ignore"):
        difference = np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64))
    both = np.isnan(np.asarray(first, np.float64)) & np.isnan(np.asarray(second, np.float64))
    return float(np.nan_to_num(np.where(both, 0.0, difference), nan=np.inf).max(initial=0.0))
