"""The curves of a report as plain data, which its page draws, shows under the pointer and exports as CSV and JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.tools.report import statistics
from jaxrl.tools.report.events import Curve
from jaxrl.tools.report.runs import Experiment
from jaxrl.tools.report.tables import behaviors_of, curves_of, titles

TAGS = (
    tags.GROUP_CUMULATIVE_REWARD,
    tags.CUMULATIVE_REWARD,
    tags.EPISODE_LENGTH,
    tags.ELO,
    tags.ENTROPY,
    tags.POLICY_LOSS,
    tags.VALUE_LOSS,
    tags.BASELINE_LOSS,
    tags.PRETRAINING_LOSS,
)
"""Tags that are drawn first, in this order, where a run has them; evaluations and other losses follow."""
FIRST_FOLDERS = ("Evaluation/", "Losses/")
POINTS = 200_000
"""Largest number of values of single seeds in a page; above it there are means and intervals alone."""


def finite_tags(experiments: Sequence[Experiment], behavior: str) -> list[str]:
    """Return tags with a finite value in at least one seed: those of TAGS and FIRST_FOLDERS, then the rest by name."""
    names = {
        tag
        for e in experiments
        for seed in e.seeds(behavior)
        for tag, curve in seed.curves.items()
        if np.isfinite(curve.value).any()
    }
    return ordered(names)


def ordered(found: Collection[str]) -> list[str]:
    """Return tags in the order in which they are shown."""
    return [tag for tag in TAGS if tag in found] + sorted(
        set(found) - {*TAGS}, key=lambda tag: (not is_first(tag), tag)
    )


def left_out(experiments: Sequence[Experiment], behavior: str) -> list[str]:
    """Return tags that have no panel: all of their values are infinite or NaN."""
    every = {tag for e in experiments for seed in e.seeds(behavior) for tag in seed.curves}
    return sorted(every - set(finite_tags(experiments, behavior)))


def page_data(experiments: Sequence[Experiment]) -> dict[str, Any]:
    """Return all data that the page's script needs, as JSON values (null for NaN and infinities).

    `points` are all values of all seeds as they stand in the event files, None where there are more than POINTS.
    """
    labels = [e.label for e in experiments]
    behaviors = []
    for behavior in behaviors_of(experiments):
        panels = []
        for tag, title in titles(finite_tags(experiments, behavior)).items():
            curves = [
                _band(place, group, independent=not experiments[place].population)
                for label, group in curves_of(experiments, behavior, tag).items()
                for place in [labels.index(label)]
            ]
            panels.append({"tag": tag, "title": title, "first": is_first(tag), "curves": curves})
        behaviors.append({"name": behavior, "panels": panels})
    return {"experiments": labels, "behaviors": behaviors, "points": _points(experiments)}


def is_first(tag: str) -> bool:
    """Return whether a tag is drawn without being asked for."""
    return tag in TAGS or tag.startswith(FIRST_FOLDERS)


def _band(experiment: int, curves: Sequence[Curve], *, independent: bool) -> dict[str, Any]:
    band = statistics.band(curves, independent=independent)
    bounds = {"low": numbers(band.low, 6), "high": numbers(band.high, 6)} if np.isfinite(band.low).any() else {}
    step = [int(step) for step in band.step]
    return {"experiment": experiment, "seeds": len(curves), "step": step, "mean": numbers(band.mean, 6), **bounds}


def _points(experiments: Sequence[Experiment]) -> list[dict[str, Any]] | None:
    entries = [
        {"experiment": place, "run": run.name, "behavior": behavior, "seed": seed, "tag": tag, "curve": curve}
        for place, e in enumerate(experiments)
        for run in e.runs
        for behavior, seeds in run.behaviors.items()
        for seed, events in seeds.items()
        for tag, curve in events.curves.items()
    ]
    if sum(len(entry["curve"].step) for entry in entries) > POINTS:
        return None
    for entry in entries:
        curve = entry.pop("curve")
        entry |= {"step": curve.step.tolist(), "value": numbers(curve.value, 9)}  # a float32 has nine digits
    return entries


def numbers(values: Iterable[float], digits: int) -> list[float | None]:
    """Return values rounded to so many digits, None for NaN and infinities, which JSON does not have."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]
