"""What the runs of paper.py say: numbers over seeds and their tables in Markdown.

Statistics are those of `jaxrl report` (`jaxrl.tools.report.statistics`): 95 % percentile bootstrap over seeds. Of
each seed: the final return, the mean of its points in the last 10 % of training, and the area under its curve divided
by the agent steps, which is the mean return over training. P(MA-POCA better) is the probability that a random seed of
MA-POCA has more than a random seed of the other trainer, ties counting one half.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from paper_tasks import TASKS, TRAINERS
from paper_toy import NETWORKS
from paper_training import Outcome

from jaxrl.tools.report import statistics
from jaxrl.tools.report.events import Curve, final_score
from jaxrl.tools.report.statistics import Estimate

WINDOW = 0.05
"""Share of the training over which a drawn curve is averaged."""
GRID = 100
"""Points of a drawn curve."""
TOY_LAST, TOY_GOAL = 10, 1e-3

Results = Mapping[tuple[str, str], Outcome]
"""By task and trainer."""


def final_returns(outcome: Outcome) -> list[float]:
    """Of each seed: mean group return in the last 10 % of training."""
    return [final_score(outcome.curve(seed)) for seed in range(len(outcome.step))]


def mean_returns(outcome: Outcome) -> list[float]:
    """Of each seed: ∫ group return d step / steps, the normalised area under the curve."""
    return [statistics.area_under_curve(outcome.curve(seed), 0, outcome.limit) for seed in range(len(outcome.step))]


def smoothed(outcome: Outcome, seed: int) -> Curve:
    """Mean group return of the episodes that ended within WINDOW / 2 of each of GRID steps; left out where none did.

    Between two points of the outcome their episodes are taken to end evenly.
    """
    step, episodes, total = outcome.until_limit(seed)
    grid = np.linspace(0, outcome.limit, GRID + 1)[1:]
    half = WINDOW / 2 * outcome.limit
    ends = [np.clip(grid + sign * half, 0, outcome.limit) for sign in (-1, 1)]
    known = np.concatenate([[0], step])
    counts, sums = (
        np.subtract(*(np.interp(end, known, np.concatenate([[0], np.cumsum(x)])) for end in reversed(ends)))
        for x in (episodes, total)
    )
    ended = counts > 0
    return Curve(grid[ended], sums[ended] / counts[ended])


def table(results: Results) -> str:
    """Markdown: one row per task and trainer, in the order of TASKS and TRAINERS."""
    lines = [
        "| task | trainer | seeds | agent steps | return, last 10 % | return, mean over training "
        "| P(MA-POCA better), last 10 % | P(MA-POCA better), mean |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task, trainer in [(task, trainer) for task in TASKS for trainer in TRAINERS if (task, trainer) in results]:
        outcome = results[task, trainer]
        poca = results.get((task, "poca")) if trainer != "poca" else None
        cells = [TASKS[task].title, TRAINERS[trainer], str(len(outcome.step)), f"{outcome.limit:,}"]
        cells += [shown(statistics.mean(scores(outcome))) for scores in (final_returns, mean_returns)]
        cells += [_better(poca, outcome, scores) for scores in (final_returns, mean_returns)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _better(poca: Outcome | None, other: Outcome, scores) -> str:
    if poca is None:
        return ""
    return shown(statistics.probability_of_improvement([scores(poca)], [scores(other)]))


def shown(estimate: Estimate) -> str:
    """ "value [low, high]" with about three digits; the value alone where one seed gives no interval."""
    digits = 3 if abs(estimate.value) < 2 else 2 if abs(estimate.value) < 20 else 1
    value, low, high = (f"{number:.{digits}f}" for number in estimate)
    return value if np.isnan(estimate.low) else f"{value} [{low}, {high}]"


def toy_table(errors: Mapping[str, np.ndarray]) -> str:
    """Markdown: the test errors of `paper_toy.run`, one row per K and one column per network and figure."""
    lines = [
        f"| absorbing inputs | {' | '.join(f'{name}: MSE, last {TOY_LAST} epochs' for name in NETWORKS)} "
        f"| {' | '.join(f'{name}: epochs to MSE {TOY_GOAL:g}' for name in NETWORKS)} |",
        f"|---|{'---|' * 2 * len(NETWORKS)}",
    ]
    for most in sorted({int(case.split("-")[1]) for case in errors}):
        found = [errors[f"{name}-{most}"] for name in NETWORKS]
        cells = [f"0 to {most}" if most else "0", *map(_last_error, found), *map(_epochs_to_goal, found)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _last_error(errors: np.ndarray) -> str:
    value, low, high = statistics.mean(list(errors[:, -TOY_LAST:].mean(axis=1)))
    return f"{value:.1e} [{low:.1e}, {high:.1e}]"


def _epochs_to_goal(errors: np.ndarray) -> str:
    """Of the mean error over seeds."""
    reached = np.flatnonzero(errors.mean(axis=0) < TOY_GOAL)
    return str(reached[0]) if len(reached) else f"more than {errors.shape[1] - 1}"
