"""A report as one HTML page that needs nothing else: inline figures, no script, no address of another file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from jaxrl.report import tables
from jaxrl.report.figures import curve_svg, time_svg
from jaxrl.report.runs import Experiment
from jaxrl.report.tables import Table

_STYLE = """
:root { color-scheme: light dark; --line: #d5d5d5; --soft: #666; --page: #fff; --ink: #1d1d1f; }
@media (prefers-color-scheme: dark) { :root { --line: #3a3a3d; --soft: #a3a3a8; --page: #161618; --ink: #e6e6e8; } }
body { margin: 2.5rem auto; max-width: 66rem; padding: 0 1.5rem; background: var(--page); color: var(--ink);
       font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
h1 { font-size: 1.5rem; font-weight: 600; margin: 0 0 1.5rem; }
h2 { font-size: 1.1rem; font-weight: 600; margin: 2.5rem 0 .6rem; }
p { color: var(--soft); margin: .4rem 0; max-width: 48rem; }
svg { width: 100%; height: auto; }
svg text { font-family: inherit !important; }
div.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; border-bottom-width: 2px; }
"""

_CURVES = """Mean over seeds; the shaded band is the 95 % bootstrap interval of the mean (none with one seed). Curves
end where the first seed ends."""
_FINAL = """Final score of a seed: mean of its summaries in the last 10 % of its steps. In brackets: 95 % percentile
bootstrap interval over seeds. Interquartile mean: mean of the middle half of the seeds (of all, with fewer than four).
Area under the curve: mean of the score over the steps that all seeds of all experiments reach."""
_IMPROVEMENT = """Probability that a random seed of the row's experiment has a higher final score than one of the
column's; ties count one half, so that 0.5 means no difference. Several behaviors: mean over them, seeds drawn within
each."""
_TIME = """Agent steps of all seeds per second of the learning phase, compilation included, and where its time went. Of
a run that was resumed: its last session. A compiled loop has environment, acting and updates in one program."""


def page(experiments: Sequence[Experiment], remarks: Sequence[str]) -> str:
    """The whole page."""
    behaviors = tables.behaviors_of(experiments)
    title = "Training report: " + ", ".join(behaviors)
    parts = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(remark)}</p>" for remark in remarks)]
    parts.append(_section(tables.experiments_table(experiments)))
    for behavior in behaviors:
        parts += [f"<h2>Learning curves: {escape(behavior)}</h2>", f"<p>{_CURVES}</p>"]
        parts.append(curve_svg(experiments, behavior))
        parts.append(_section(tables.final_table(experiments, behavior), _FINAL, "No episode ended."))
    if len(experiments) > 1:
        groups = [[behavior] for behavior in behaviors] + ([behaviors] if len(behaviors) > 1 else [])
        parts += [_section(tables.improvement_table(experiments, group), _IMPROVEMENT) for group in groups]
    parts += [_section(tables.time_table(experiments), _TIME), time_svg(experiments) or ""]
    parts.append(_section(tables.settings_table(experiments), empty="None: the experiments have equal settings."))
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _section(table: Table, note: str = "", empty: str = "") -> str:
    """Heading, note and table; `empty` instead of a table without rows."""
    lines = [f"<h2>{escape(table.title)}</h2>"]
    if not table.rows:
        return lines[0] + f"\n<p>{escape(empty)}</p>"
    if note:
        lines.append(f"<p>{note}</p>")
    lines.append('<div class="table"><table>')
    lines.append(_row("th", table.columns))
    lines += [_row("td", row) for row in table.rows]
    return "\n".join([*lines, "</table></div>"])


def _row(cell: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in texts) + "</tr>"
