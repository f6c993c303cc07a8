"""Builds the tables of a report, as text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.artifacts.metrics.timers import ENV_STEP, EVALUATE, ITERATIONS, LEARNING, UPDATE_POLICY
from jaxrl.tools.report import statistics
from jaxrl.tools.report.events import Curve, final_score
from jaxrl.tools.report.runs import INCIDENTAL, Experiment, Run
from jaxrl.tools.report.statistics import Estimate

SCORES = (tags.GROUP_CUMULATIVE_REWARD, tags.CUMULATIVE_REWARD)
"""Statistics by which experiments are compared."""
MISSING = "–"
LISTED = 8  # seeds of an experiment that are named
PHASES = {"environment": ENV_STEP, "act": EVALUATE, "update": UPDATE_POLICY, "compiled loop": ITERATIONS}


class Table(NamedTuple):
    """A heading, the names of the columns, and rows of as many texts."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def behaviors_of(experiments: Sequence[Experiment]) -> list[str]:
    """Return all behaviors, in order of appearance."""
    return list(dict.fromkeys(name for e in experiments for run in e.runs for name in run.behaviors))


def curves_of(experiments: Sequence[Experiment], behavior: str, tag: str) -> dict[str, list[Curve]]:
    """Return curves of a tag by experiment: those of all seeds that have it; experiments without any are left out."""
    by_label = {e.label: [s.curves[tag] for s in e.seeds(behavior) if tag in s.curves] for e in experiments}
    return {label: curves for label, curves in by_label.items() if curves}


def experiments_table(experiments: Sequence[Experiment]) -> Table:
    """Return the table of runs and seeds of each experiment, their last steps, and the program that made them."""
    rows = []
    for e in experiments:
        names = ", ".join(run.name for run in e.runs)
        seeds = [label for run in e.runs for label in next(iter(run.behaviors.values()))]
        listed = " members of a population" if e.population else ""
        listed += f": {', '.join(seeds)}" if len(seeds) <= LISTED else ""
        steps = sorted({s.last_step for behavior in behaviors_of([e]) for s in e.seeds(behavior)})
        reach = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
        metadata = [(run.timers or {}).get("metadata", {}) for run in e.runs]
        programs = dict.fromkeys(_program(entry) for entry in metadata)
        rows.append((e.label, names, f"{len(seeds)}{listed}", reach, "; ".join(programs)))
    return Table("Experiments", ("experiment", "runs", "seeds", "last step", "program"), rows)


def final_table(experiments: Sequence[Experiment], behavior: str) -> Table:
    """Return final scores of each experiment (mean, interquartile mean) and area under the curve, with intervals.

    Members of a population have no intervals: they learned from each other.
    """
    rows, populations = [], {e.label for e in experiments if e.population}
    for tag in SCORES:
        by_label = curves_of(experiments, behavior, tag)
        if not tells(tag, by_label.values()):
            continue
        every = [curve for curves in by_label.values() for curve in curves]
        last = min(curve.step[-1] for curve in every)
        for label, curves in by_label.items():
            scores = [final_score(curve) for curve in curves]
            areas = [statistics.area_under_curve(curve, 0.0, float(last)) for curve in curves]
            estimates = [statistics.mean(scores), statistics.interquartile_mean([scores]), statistics.mean(areas)]
            if label in populations:
                estimates = [_bare(estimate) for estimate in estimates]
            rows.append((short(tag), label, str(len(scores)), *map(estimate_text, estimates)))
    columns = ("score", "experiment", "seeds", "mean", "interquartile mean", "area under the curve")
    return Table(f"Final performance: {behavior}", columns, rows)


def improvement_table(experiments: Sequence[Experiment], behaviors: Sequence[str]) -> Table:
    """Return P(row's experiment beats the column's), over `behaviors` as strata, by the first score that all have."""
    labels = [e.label for e in experiments]
    rows = []
    for x in experiments:
        cells = [MISSING if x is y else estimate_text(_improvement(x, y, behaviors)) for y in experiments]
        rows.append((x.label, *cells))
    title = f"Probability of improvement: {', '.join(behaviors)}"
    return Table(title, ("row better than column", *labels), rows)


def tells(tag: str, curves: Iterable[Sequence[Curve]]) -> bool:
    """Return whether scores of this tag are meaningful: group rewards are where a team has ever earned one."""
    every = [curve for of_experiment in curves for curve in of_experiment]
    return bool(every) and (tag != tags.GROUP_CUMULATIVE_REWARD or any(curve.value.any() for curve in every))


def time_table(experiments: Sequence[Experiment]) -> Table:
    """Return the speed of each run, and its time by phase, in seconds and as a share of the learning phase."""
    spent = [(run.name, time_of(run)) for e in experiments for run in e.runs]
    shown = [phase for phase in [*PHASES, "other"] if any(split and split.phases[phase] for _, split in spent)]
    rows = []
    for name, split in spent:
        if split is None:
            rows.append((name, *[MISSING] * (len(shown) + 2)))
            continue
        shares = [f"{s:,.1f} s ({s / split.seconds:.0%})" if s else MISSING for s in map(split.phases.get, shown)]
        rows.append((name, number(split.steps_per_second), f"{split.seconds:,.1f} s", *shares))
    return Table("Throughput and time", ("run", "steps/s", "learning", *shown), rows)


def settings_table(experiments: Sequence[Experiment]) -> Table:
    """Return settings in which the experiments differ, one row each."""
    settings_of = [e.runs[0].settings for e in experiments]
    known = [settings for settings in settings_of if settings is not None]
    keys = [key for key in dict.fromkeys(key for settings in known for key in settings) if key not in INCIDENTAL]
    rows = []
    for key in keys:
        values = [MISSING if settings is None else _setting(settings, key) for settings in settings_of]
        if len({_setting(settings, key) for settings in known}) > 1:
            rows.append((key, *values))
    return Table("Settings that differ", ("setting", *(e.label for e in experiments)), rows)


def short(tag: str) -> str:
    """Return a tag without its folder: "Losses/Value Loss" is "Value Loss"."""
    return tag.rpartition("/")[2]


def titles(found: Collection[str]) -> dict[str, str]:
    """Return the heading of each tag's panel: `short`, with the folder where two would be equal."""
    names = [short(tag) for tag in found]
    return {
        tag: name if names.count(name) == 1 else f"{name} ({tag.rpartition('/')[0]})"
        for tag, name in zip(found, names, strict=True)
    }


def number(value: float) -> str:
    """Return four digits, thousands with a comma, a dash for NaN."""
    if not np.isfinite(value):
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def estimate_text(estimate: Estimate) -> str:
    """Return "value [low, high]"; the interval is left out where there is none."""
    if not np.isfinite(estimate.low):
        return number(estimate.value)
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


def _improvement(x: Experiment, y: Experiment, behaviors: Sequence[str]) -> Estimate:
    for tag in SCORES:
        curves = [[curves_of([e], behavior, tag).get(e.label, []) for behavior in behaviors] for e in (x, y)]
        every = [group for side in curves for group in side]
        if all(every) and tells(tag, every):
            scores = [[[final_score(c) for c in group] for group in side] for side in curves]
            estimate = statistics.probability_of_improvement(scores[0], scores[1])
            return _bare(estimate) if x.population or y.population else estimate
    return Estimate(np.nan, np.nan, np.nan)


def _bare(estimate: Estimate) -> Estimate:
    """Return the estimate without its interval."""
    return estimate._replace(low=np.nan, high=np.nan)


def _setting(settings: dict[str, Any], key: str) -> str:
    return str(settings[key]) if key in settings else MISSING


def _program(metadata: dict[str, Any]) -> str:
    if "jaxrl_version" in metadata:
        return f"jaxrl {metadata['jaxrl_version']}, jax {metadata.get('jax_version', '?')}"
    return f"ML-Agents {metadata['mlagents_version']}" if "mlagents_version" in metadata else "unknown"


class TimeSpent(NamedTuple):
    """The learning phase of a run's last session."""

    seconds: float  # wall time
    phases: dict[str, float]  # seconds by phase, with "other" for time that no timer of PHASES covers
    steps_per_second: float  # agent steps of all behaviors and seeds; NaN when no time passed


def time_of(run: Run) -> TimeSpent | None:
    """Return the time of a run's last session; None without timers.json of it (until it ends), or learning phase in it.

    ML-Agents nests the timers (it acts inside env_step); the inner one's time is taken off the outer one's, so that
    the phases add up to the whole. Parallel timers, which ran at the same time in other processes, do not count.
    """
    learning = _find(run.timers or {}, LEARNING)
    seeds = [seed for seeds in run.behaviors.values() for seed in seeds.values()]
    if learning is None or _ended(run) < max(seed.began for seed in seeds):
        return None
    names = {node: phase for phase, node in PHASES.items()}
    phases = dict.fromkeys([*PHASES, "other"], 0.0)
    _add(learning, "other", names, phases)
    seconds = float(learning["total"])
    steps = sum(seed.last_step - seed.begun_at for seed in seeds)
    return TimeSpent(seconds, phases, steps / seconds if seconds else float("nan"))


def _ended(run: Run) -> float:
    """Return the end of the session in timers.json, seconds since the epoch, rounded up; infinity if it is missing."""
    try:
        return float((run.timers or {})["metadata"]["end_time_seconds"]) + 1.0
    except (KeyError, TypeError, ValueError):
        return float("inf")


def _find(tree: dict[str, Any], name: str) -> dict[str, Any] | None:
    children = tree.get("children", {})
    if name in children:
        return children[name]
    nodes = (_find(child, name) for child in children.values())
    return next((node for node in nodes if node is not None), None)


def _add(node: dict[str, Any], phase: str, names: dict[str, str], phases: dict[str, float]) -> None:
    """Add the time of `node` itself to `phase`, and that of its children to their phases."""
    serial = {name: child for name, child in node.get("children", {}).items() if not child.get("is_parallel")}
    phases[phase] += max(0.0, node["total"] - sum(child["total"] for child in serial.values()))
    for name, child in serial.items():
        _add(child, names.get(name, phase), names, phases)
