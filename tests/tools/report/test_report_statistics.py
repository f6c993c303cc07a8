"""Statistics over seeds, with the arithmetic in sight."""

import numpy as np
import pytest
from scipy import stats

from jaxrl.tools.report import statistics
from jaxrl.tools.report.events import Curve, final_score


def curve(points):
    return Curve(np.array(list(points), np.int64), np.array(list(points.values()), np.float64))


def test_interquartile_mean():
    estimate = statistics.interquartile_mean([[1, 2, 3, 4, 5, 6, 7, 800]])
    assert estimate.value == (3 + 4 + 5 + 6) / 4  # a quarter of 8 is cut at each end
    assert 2.0 < estimate.low < estimate.value < estimate.high < 800.0


def test_the_bootstrap_draws_within_each_stratum():
    # Each draw has four 0 and four 1, whose middle half has mean 0.5; draws from all eight would vary.
    assert statistics.interquartile_mean([[0.0] * 4, [1.0] * 4]) == (0.5, 0.5, 0.5)


def test_probability_of_improvement():
    estimate = statistics.probability_of_improvement([[1, 2, 3]], [[2, 2, 5]])
    # 1: no win. 2: two ties, one loss. 3: two wins, one loss. (0 + 2 * 0.5 + 2) / 9
    assert estimate.value == pytest.approx(3 / 9)
    assert 0.0 <= estimate.low < estimate.value < estimate.high <= 1.0
    x, y = np.random.default_rng(0).integers(0, 5, (2, 9))
    expected = stats.mannwhitneyu(x, y).statistic / 81
    assert statistics.probability_of_improvement([x], [y]).value == pytest.approx(expected)
    assert statistics.probability_of_improvement([[1, 1], [3, 3]], [[0, 0], [3, 3]]).value == (1.0 + 0.5) / 2


def test_float_noise_at_a_ceiling_wins_nothing():
    """Five seeds at 1.0 against five that are 0.99999994, which one float32 is: no difference."""
    below = float(np.nextafter(np.float32(1.0), np.float32(0.0)))
    assert statistics.probability_of_improvement([[1.0] * 5], [[below] * 5]) == (0.5, 0.5, 0.5)
    assert statistics.probability_of_improvement([[1.0]], [[0.9999]]).value == 1.0


def test_area_under_the_curve():
    steps = curve({100: 0.0, 200: 1.0, 400: 3.0})
    # 0 to 100: 0; 100 to 200: 0.5 x 100; 200 to 300: (1 + 2) / 2 x 100
    assert statistics.area_under_curve(steps, 0.0, 300.0) == pytest.approx((0 + 50 + 150) / 300)
    assert np.isnan(statistics.area_under_curve(steps, 5.0, 5.0))


def test_the_final_score_is_the_mean_of_the_last_tenth():
    assert final_score(curve({100: 9.0, 899: 9.0, 900: 1.0, 1000: 2.0})) == 1.5
    assert final_score(curve({7: 4.0})) == 4.0


def test_a_band_covers_the_steps_that_all_seeds_reach():
    seeds = [curve({0: 0.0, 100: 1.0, 200: 2.0}), curve({50: 2.5, 150: 3.5, 300: 9.0})]
    band = statistics.band(seeds)
    assert band.step.tolist() == [50.0, 100.0, 150.0, 200.0]
    # At 100: 1 and, half-way from 50 to 150, 3. At 200: 2 and, a third of the way to 300, 3.5 + 5.5 / 3.
    assert band.mean.tolist() == pytest.approx([(0.5 + 2.5) / 2, (1 + 3) / 2, (1.5 + 3.5) / 2, (5.5 + 5.5 / 3) / 2])
    # Of two seeds a draw has both lower ones in 1 of 4 cases: the 95 % interval spans from one seed to the other.
    assert (band.low[1], band.high[1]) == (1.0, 3.0)


def test_bands_of_one_seed_of_undefined_values_and_of_many_points():
    lone = statistics.band([curve({1: 5.0})])
    assert lone.mean.tolist() == [5.0] and np.isnan(lone.low).all()
    gap = statistics.band([curve({1: 5.0, 2: np.nan}), curve({1: 7.0, 2: 1.0})])
    assert gap.mean[0] == 6.0 and (gap.low[0], gap.high[0]) == (5.0, 7.0)
    assert np.isnan(gap.mean[1]) and np.isnan(gap.low[1])
    long = statistics.band([curve({step: float(step) for step in range(5000)})] * 2)
    assert len(long.step) == statistics.POINTS and (long.step[0], long.step[-1]) == (0, 4999)


def test_one_seed_has_no_interval_and_numbers_repeat():
    assert statistics.mean([3.0])[0] == 3.0 and np.isnan(statistics.mean([3.0]).low)
    assert np.isnan(statistics.mean([3.0, np.nan]).value)
    scores = np.random.default_rng(1).normal(size=10)
    first, second = statistics.mean(list(scores)), statistics.mean(list(scores))
    assert first == second
    # The normal approximation of the same interval, 1.96 standard errors, is within 15 % of a seed's spread.
    assert first.high - first.low == pytest.approx(2 * 1.96 * scores.std() / np.sqrt(10), rel=0.15)
