"""Builds a report as one self-contained HTML page: it holds data, style and script, and loads no other file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from jaxrl.tools.report import tables
from jaxrl.tools.report.curves import POINTS, left_out, page_data
from jaxrl.tools.report.figures import COLORS, PHASE_COLORS
from jaxrl.tools.report.runs import Experiment, Run
from jaxrl.tools.report.tables import Table, TimeSpent, time_of

_HERE = Path(__file__).parent
_LONG = 40  # rows; a longer table is folded
_CURVES = """Mean over seeds; the shaded band is the 95 % bootstrap interval of the mean (none with one seed). Curves
end where the first seed ends. Point at a curve, touch it or use the arrow keys for its values."""
_FINAL = """Final score of a seed: mean of its summaries in the last 10 % of its steps. In brackets: 95 % percentile
bootstrap interval over seeds. Interquartile mean: mean of the middle half of the seeds (of all, with fewer than four).
Area under the curve: mean of the score over the steps that all seeds of all experiments reach."""
_IMPROVEMENT = """Probability that a random seed of the row's experiment has a higher final score than one of the
column's; ties count one half, so that 0.5 means no difference. Several behaviors: mean over them, seeds drawn within
each."""
_TIME = """Agent steps of all seeds per second of the learning phase, compilation included, and where its time went. Of
a run that was resumed: its last session. A compiled loop has environment, acting and updates in one program."""


def source(name: str) -> str:
    """Return the text of a style sheet or script beside this file; the live page serves some of them too."""
    return (_HERE / name).read_text(encoding="utf-8")


def page(experiments: Sequence[Experiment], remarks: Sequence[str], films: str = "") -> str:
    """Return the whole page; `films` is a section of it, see `films_html`."""
    behaviors = tables.behaviors_of(experiments)
    data = {**page_data(experiments), "colors": COLORS}
    title = "Training report: " + ", ".join(behaviors)
    parts = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(remark)}</p>" for remark in remarks), _downloads(data)]
    parts.append(_section(tables.experiments_table(experiments)))
    for place, behavior in enumerate(behaviors):
        parts += _curves(place, behavior, data["behaviors"][place]["panels"], left_out(experiments, behavior))
        parts.append(_section(tables.final_table(experiments, behavior), _FINAL, "No episode ended."))
    if len(experiments) > 1:
        groups = [[behavior] for behavior in behaviors] + ([behaviors] if len(behaviors) > 1 else [])
        compared = [tables.improvement_table(experiments, group) for group in groups]
        known = [table for table in compared if any(cell != tables.MISSING for row in table.rows for cell in row[1:])]
        parts += [_section(table, _IMPROVEMENT) for table in known]
    parts += [films, _section(tables.time_table(experiments), _TIME), _time_bars(experiments)]
    parts.append(_section(tables.settings_table(experiments), empty="None: the experiments have equal settings."))
    written = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts.append(f'<script type="application/json" id="data">{written}</script>')
    parts.append(f"<script>{source('chart.js')}{source('report.js')}</script>")
    return document(title, source("style.css"), "\n".join(part for part in parts if part))


def document(title: str, style: str, body: str) -> str:
    """Return an HTML document that also fits on a telephone."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style>'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _downloads(data: dict[str, object]) -> str:
    what = "every summary of every seed" if data["points"] else f"means and intervals (more than {POINTS:,} values)"
    return (
        '<div class="tools"><button id="csv" type="button">Data as CSV</button>'
        f'<button id="json" type="button">Data as JSON</button><span>{what}</span></div>'
        "<noscript><p>Curves and downloads need JavaScript; the tables do not.</p></noscript>"
    )


def _curves(place: int, behavior: str, panels: Sequence[dict[str, object]], empty: Sequence[str]) -> list[str]:
    """Return headings and the elements into which the script puts its panels; none where there is nothing to draw."""
    parts = [
        f"<h2>Learning curves: {escape(behavior)}</h2>",
        f"<p>{_CURVES}</p>",
        f'<div class="tools" id="tools-{place}"></div>',
    ]
    first = [panel for panel in panels if panel["first"]]
    if first:
        parts.append(f'<div class="panels" id="panels-{place}-first"></div>')
    if len(first) < len(panels):
        more = f'<div class="panels" id="panels-{place}-more"></div>'
        parts.append(f"<details><summary>{len(panels) - len(first)} more statistics</summary>{more}</details>")
    if empty:
        parts.append(f"<p>Left out, as they have no finite value: {escape(', '.join(empty))}.</p>")
    return parts


def _time_bars(experiments: Sequence[Experiment]) -> str:
    """Return one bar per run with timers, in shares of its learning phase; empty without any."""
    known = [(run, spent) for e in experiments for run in e.runs if (spent := time_of(run)) and spent.seconds > 0]
    if not known:
        return ""
    shown = [phase for phase in PHASE_COLORS if any(spent.phases[phase] for _, spent in known)]
    swatches = "".join(f'<span><i style="background:{PHASE_COLORS[p]}"></i>{p}</span>' for p in shown)
    rows = "".join(_bar(run, spent, shown) for run, spent in known)
    return f'<div class="bars">{rows}</div><div class="legend">{swatches}</div>'


def _bar(run: Run, spent: TimeSpent, shown: Sequence[str]) -> str:
    shares = {phase: spent.phases[phase] / spent.seconds for phase in shown}
    pieces = "".join(
        f'<span title="{phase}: {share:.0%}" style="width:{share:.2%};background:{PHASE_COLORS[phase]}"></span>'
        for phase, share in shares.items()
        if share
    )
    return f'<span>{escape(run.name)}</span><div class="bar">{pieces}</div>'


def _section(table: Table, note: str = "", empty: str = "") -> str:
    """Return heading, note and table; `empty` instead of a table without rows."""
    lines = [f"<h2>{escape(table.title)}</h2>"]
    if not table.rows:
        return lines[0] + f"\n<p>{escape(empty)}</p>"
    if note:
        lines.append(f"<p>{note}</p>")
    rows = [_row("th", table.columns), *(_row("td", row) for row in table.rows)]
    shown = "\n".join(['<div class="table"><table>', *rows, "</table></div>"])
    long = len(table.rows) > _LONG
    lines.append(f"<details><summary>{len(table.rows)} rows</summary>{shown}</details>" if long else shown)
    return "\n".join(lines)


def _row(cell: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in texts) + "</tr>"
