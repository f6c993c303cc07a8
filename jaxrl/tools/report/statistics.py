"""Computes statistics over seeds, after Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice".

Intervals are 95 % percentile bootstrap intervals from scipy with fixed random numbers: the same runs give the same
report. rliable (1.2.0), the library of that paper, was tried: its dependency arch (7.2.0) fails to import beside pandas
3.1. Its definitions are kept; a stratum is one task.

Letters: S seeds of one experiment, K points of a curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import integrate, stats

from jaxrl.tools.report.events import Curve

CONFIDENCE = 0.95
TRIMMED = 0.25
"""Share of the scores that the interquartile mean leaves out at each end."""
TIE = 1e-5
"""Relative difference below which scores are equal: at a ceiling, float32 sums of equal rewards differ as much."""
POINTS = 400
"""Largest number of points of a curve: a figure shows no more."""
_RESAMPLES, _CURVE_RESAMPLES, _BATCH = 5000, 1000, 250


class Estimate(NamedTuple):
    """A number and its 95 % interval; NaN bounds where there are too few seeds for one."""

    value: float
    low: float
    high: float


class Band(NamedTuple):
    """Mean over seeds and its 95 % interval at each of K steps; NaN bounds with one seed."""

    step: np.ndarray  # float64 [K]
    mean: np.ndarray  # float64 [K]
    low: np.ndarray  # float64 [K]
    high: np.ndarray  # float64 [K]


def band(curves: Sequence[Curve], *, independent: bool = True) -> Band:
    """Return the mean over S curves on the steps that all cover, with a bootstrap interval if `independent`."""
    steps, values = on_common_steps(curves, POINTS)
    mean, low, high = values.mean(0), np.full(len(steps), np.nan), np.full(len(steps), np.nan)
    known = np.isfinite(values).all(0)
    if independent and len(curves) > 1 and known.any():
        low[known], high[known] = _interval((values[:, known],), np.mean, _CURVE_RESAMPLES)
    return Band(steps.astype(np.float64), mean, low, high)


def on_common_steps(curves: Sequence[Curve], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return at most so many steps [K] that all S curves cover, and their values there [S, K].

    Values between a curve's points are interpolated. Curves that share no step are drawn over all steps of the
    longest one, each held at its border value.
    """
    steps = np.unique(np.concatenate([curve.step for curve in curves]))
    first, last = max(curve.step[0] for curve in curves), min(curve.step[-1] for curve in curves)
    if first <= last:
        steps = steps[(steps >= first) & (steps <= last)]
    if len(steps) > most:
        steps = steps[np.linspace(0, len(steps) - 1, most).round().astype(int)]
    return steps, np.stack([np.interp(steps, curve.step, curve.value) for curve in curves])


def area_under_curve(curve: Curve, first: float, last: float) -> float:
    """Return ∫ value d step / (last - first) by trapezoids: the mean over training, in the unit of the value.

    Outside the curve's own points its border value holds; NaN when the range is empty.
    """
    if last <= first:
        return float("nan")
    inside = curve.step[(curve.step > first) & (curve.step < last)]
    steps = np.concatenate([[first], inside, [last]])
    values = np.interp(steps, curve.step, curve.value)
    return float(integrate.trapezoid(values, steps)) / (last - first)


def mean(scores: Sequence[float]) -> Estimate:
    """Return the mean of S scores."""
    return _estimate([np.asarray(scores)], np.mean)


def interquartile_mean(strata: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean of the middle half of all scores, S of each stratum; seeds are resampled within each stratum."""

    def pooled(*samples: np.ndarray, axis: int) -> np.ndarray:
        return stats.trim_mean(np.concatenate(samples, axis=axis), TRIMMED, axis=axis)

    return _estimate([np.asarray(scores) for scores in strata], pooled)


def probability_of_improvement(x: Sequence[Sequence[float]], y: Sequence[Sequence[float]]) -> Estimate:
    """Return P(X > Y) + 0.5 P(X = Y) for a random seed of X and one of Y, the Mann-Whitney U over its maximum.

    x and y hold one list of scores per stratum; the result is the mean over strata. 0.5: no difference.
    """

    def share(*samples: np.ndarray, axis: int) -> np.ndarray:
        del axis  # always the last one
        return np.mean([_wins(a, b) for a, b in zip(samples[::2], samples[1::2], strict=True)], axis=0)

    return _estimate([np.asarray(scores) for pair in zip(x, y, strict=True) for scores in pair], share)


def _wins(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compare [..., S] with [..., S']: the share of pairs [...] that a wins, ties (see TIE) counting one half."""
    a, b = a[..., :, None], b[..., None, :]
    difference = np.where(np.abs(a - b) <= TIE * np.maximum(np.abs(a), np.abs(b)), 0.0, a - b)
    return (0.5 + 0.5 * np.sign(difference)).mean((-2, -1))


def _estimate(samples: list[np.ndarray], statistic: Callable[..., Any]) -> Estimate:
    if not all(len(sample) and np.isfinite(sample).all() for sample in samples):
        return Estimate(np.nan, np.nan, np.nan)
    value = float(statistic(*samples, axis=-1))
    if min(len(sample) for sample in samples) < 2:  # one seed says nothing about the spread
        return Estimate(value, np.nan, np.nan)
    low, high = _interval(tuple(sample[:, None] for sample in samples), statistic, _RESAMPLES)
    return Estimate(value, float(low[0]), float(high[0]))


def _interval(samples: tuple[np.ndarray, ...], statistic: Callable[..., Any], resamples: int) -> tuple[Any, Any]:
    """Return bounds over axis 0 of samples [S, K]; each sample is resampled on its own."""
    result = stats.bootstrap(
        samples,
        statistic,
        axis=0,
        n_resamples=resamples,
        batch=_BATCH,
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return result.confidence_interval.low, result.confidence_interval.high
