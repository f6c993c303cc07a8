"""Draws a report as one picture: learning curves of each behavior, and the time split. Needs matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jaxrl.tools.report import statistics
from jaxrl.tools.report.curves import finite_tags, is_first
from jaxrl.tools.report.events import ReportError
from jaxrl.tools.report.runs import Experiment
from jaxrl.tools.report.tables import PHASES, behaviors_of, curves_of, time_of, titles

COLORS = ("#3182ce", "#dd6b20", "#2f9e6e", "#b8559a", "#b7860b", "#7a6fd0", "#d64545", "#4a9aa5")
"""Colours of medium lightness: they stand out from white and from near-black alike."""
PHASE_COLORS = dict(zip([*PHASES, "other"], (*COLORS[:4], "#a0a0a0"), strict=True))
INK = "#222222"
PANELS, WIDTH, HEIGHT = 3, 3.5, 2.5  # panels per row, and inches of each


def require_matplotlib() -> None:
    """Raise ReportError when it is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ReportError(
            f"A report as .png needs matplotlib ({error}). Install it: pip install 'jaxrl[plots]', or write .html."
        ) from None


def png(experiments: Sequence[Experiment]) -> bytes:
    """Return a picture of all figures below each other, on white."""
    from matplotlib.figure import Figure  # not pyplot: no window system is asked for

    shown = {name: list(filter(is_first, finite_tags(experiments, name))) for name in behaviors_of(experiments)}
    of_time = 1.1 + 0.26 * sum(len(e.runs) for e in experiments)
    heights = [*(_rows(curve_tags) * HEIGHT + 0.7 for curve_tags in shown.values()), of_time]
    with style():
        figure = Figure(figsize=(PANELS * WIDTH, sum(heights)), layout="constrained")
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, (behavior, curve_tags) in zip(parts, shown.items(), strict=False):
            part.suptitle(plain(behavior))
            _draw_curves(part, experiments, behavior, curve_tags)
        _draw_time(parts[-1], experiments)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=150, facecolor="white")
    return file.getvalue()


@contextmanager
def style() -> Iterator[None]:
    """Set the look of jaxrl's figures inside the block."""
    import matplotlib

    colored = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
    with matplotlib.rc_context(
        {
            **dict.fromkeys((*colored, "grid.color"), INK),
            "font.family": "DejaVu Sans",  # comes with matplotlib
            "font.size": 8.5,
            "axes.titlesize": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.7,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "grid.linewidth": 0.5,
            "legend.frameon": False,
        }
    ):
        yield


def _rows(shown: Sequence[str]) -> int:
    return max(1, -(-len(shown) // PANELS))


def _draw_curves(figure: Any, experiments: Sequence[Experiment], behavior: str, shown: Sequence[str]) -> None:
    panels = figure.subplots(_rows(shown), PANELS, squeeze=False).ravel()
    colors = {e.label: COLORS[i % len(COLORS)] for i, e in enumerate(experiments)}
    lines, populations = {}, {e.label for e in experiments if e.population}
    for panel, (tag, title) in zip(panels, titles(shown).items(), strict=False):
        panel.set_title(plain(title), loc="left")
        for label, curves in curves_of(experiments, behavior, tag).items():
            band, color = statistics.band(curves, independent=label not in populations), colors[label]
            marker = "o" if len(band.step) == 1 else None  # a single summary is no line
            (lines[label],) = panel.plot(band.step, band.mean, color=color, linewidth=1.5, marker=marker, markersize=3)
            panel.fill_between(band.step, band.low, band.high, color=color, alpha=0.22, linewidth=0)
        _step_axis(panel)
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    if lines:
        names = [plain(label) for label in lines]
        figure.legend(list(lines.values()), names, loc="outside lower center", ncols=min(4, len(names)))


def _step_axis(panel: Any) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    panel.xaxis.set_major_locator(MaxNLocator(5))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))  # 300k, 2M
    panel.set_xlabel("agent steps")


def _draw_time(figure: Any, experiments: Sequence[Experiment]) -> None:
    """Draw one bar per run with timers, in shares of its learning phase."""
    runs = [run for e in experiments for run in e.runs]
    spent = {i: time_of(run) for i, run in enumerate(runs)}
    known = {i: split for i, split in spent.items() if split is not None and split.seconds > 0}
    if not known:
        return
    panel = figure.subplots()
    left = dict.fromkeys(known, 0.0)
    shown = [phase for phase in [*PHASES, "other"] if any(split.phases[phase] for split in known.values())]
    for phase in shown:
        shares = {i: split.phases[phase] / split.seconds for i, split in known.items()}
        panel.barh(
            list(map(str, known)),
            list(shares.values()),
            left=list(left.values()),
            color=PHASE_COLORS[phase],
            label=phase,
        )
        left = {i: left[i] + share for i, share in shares.items()}
    panel.set_yticks(range(len(known)), [plain(runs[i].name) for i in known])
    panel.invert_yaxis()
    panel.set(xlim=(0.0, 1.0), xlabel="share of the learning phase")
    panel.xaxis.set_major_formatter("{x:.0%}")
    panel.grid(visible=False, axis="y")
    panel.set_axisbelow(True)
    handles, names = panel.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names))


def plain(text: str) -> str:
    """Escape text for matplotlib: "$" would begin a formula, a leading "_" hides a legend entry."""
    return re.sub(r"^_", " _", text).replace("$", r"\$")
