"""The figure of paper.py: learning curves of the four tasks, and the toy regression. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from paper_report import Results, smoothed
from paper_tasks import TASKS, TRAINERS

from jaxrl.tools.report import statistics

STYLES = {"poca": ("#0072B2", "-"), "coma": ("#D55E00", (0, (5, 1.5))), "ppo": ("#009E73", (0, (1.2, 1.2)))}
"""Color and dashes: of Okabe and Ito's palette, told apart by the color-blind, and by dashes in print."""
TOY_STYLES = {"mlp": ("coma", "fully connected"), "attention": ("poca", "attention")}
STYLE: Any = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}
COLORS = 128  # of the picture's palette


def draw(results: Results, toy: Mapping[str, np.ndarray], path: Path) -> None:
    """Write a PNG: a panel for each task with mean and 95 % bootstrap interval over seeds, one for the toy."""
    import matplotlib
    from matplotlib.figure import Figure
    from PIL import Image

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 5.2), dpi=120, layout="constrained")
        panels = figure.subplots(2, 3).ravel()
        lines: dict[str, Any] = {}
        for panel, task in zip(panels, TASKS, strict=False):
            lines |= _task(panel, results, task)
        _toy(panels[4], toy)
        _legend(panels[5], lines)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", facecolor="white")
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(picture).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)


def _task(panel: Any, results: Results, task: str) -> dict[str, Any]:
    """Curves of one task; its lines by trainer."""
    from matplotlib.ticker import EngFormatter

    lines = {}
    for trainer in TRAINERS:
        if (task, trainer) not in results:
            continue
        outcome, (color, dashes) = results[task, trainer], STYLES[trainer]
        band = statistics.band([smoothed(outcome, seed) for seed in range(len(outcome.step))])
        (lines[trainer],) = panel.plot(band.step, band.mean, color=color, linestyle=dashes, linewidth=1.7)
        panel.fill_between(band.step, band.low, band.high, color=color, alpha=0.18, linewidth=0)
    if not lines:
        panel.set_axis_off()
        return lines
    panel.set_title(TASKS[task].title, loc="left")
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.set(xlabel="agent steps", ylabel="group return")
    return lines


def _toy(panel: Any, errors: Mapping[str, np.ndarray]) -> None:
    """Mean test error over seeds; the more absorbing inputs, the stronger the line."""
    cases = sorted({int(case.split("-")[1]) for case in errors})
    for case, found in errors.items():
        name, most = case.split("-")
        style, label = TOY_STYLES[name]
        color, dashes = STYLES[style]
        strength = 0.35 + 0.65 * int(most) / max(cases[-1], 1)
        mean = found.mean(axis=0)
        panel.plot(
            mean,
            color=color,
            linestyle=dashes,
            alpha=strength,
            linewidth=1.3,
            label=label if int(most) == cases[-1] else None,
        )
        if name == "mlp":
            panel.annotate(
                most, (len(mean), mean[-1]), xytext=(3, 0), textcoords="offset points", va="center", color=color, size=7
            )
    panel.set_title("Toy: mean of ten numbers, up to K absorbing", loc="left")
    panel.set(yscale="log", xlabel="epoch", ylabel="test mean squared error")
    if errors:
        panel.legend(loc="upper right", title="faint: K = 0, strong: K = 8")


def _legend(panel: Any, lines: Mapping[str, Any]) -> None:
    panel.set_axis_off()
    if lines:
        panel.legend(
            [lines[trainer] for trainer in TRAINERS if trainer in lines],
            [TRAINERS[trainer] for trainer in TRAINERS if trainer in lines],
            loc="center",
            fontsize=11,
            title="mean over seeds and its\n95 % bootstrap interval",
        )
