"""Population based training: who learns from whom, and that nothing else of a member changes."""

from __future__ import annotations

import numpy as np

from jaxrl.settings.sweep import Space
from jaxrl.training.compiled.population import DRAWN_ANEW, first_generation, next_generation

RATE = "hyperparameters.learning_rate"
SPACES = {RATE: Space(1e-5, 1e-1, log=True)}


def test_the_worst_quarter_learns_from_the_best():
    scores = np.array([3.0, 1.0, 8.0, np.nan, 5.0, 7.0, 2.0, 4.0])
    before = np.float32([1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 6e-4, 7e-4, 8e-4])
    factors, anew, draws = [], 0, 200
    for seed in range(draws):
        found = next_generation(scores, {RATE: before}, SPACES, np.random.default_rng(seed))
        changed = np.flatnonzero(found.parents != np.arange(8))
        assert changed.tolist() == [1, 3] and set(found.parents[changed]) <= {2, 5}  # worst: NaN and 1; best: 8 and 7
        rest = [0, 2, 4, 5, 6, 7]
        np.testing.assert_array_equal(found.values[RATE][rest], before[rest])
        for member in (1, 3):
            factor = found.values[RATE][member] / before[found.parents[member]]
            if np.isclose(factor, 0.8) or np.isclose(factor, 1.25):
                factors.append(round(float(factor), 2))
            else:
                anew += 1
                assert 1e-5 <= found.values[RATE][member] <= 1e-1
    assert abs(anew / (2 * draws) - DRAWN_ANEW) < 0.08  # 3.7 standard deviations
    assert 0.4 < factors.count(0.8) / len(factors) < 0.6


def test_values_stay_in_their_space():
    spaces = {"a": Space(0.9, 1.0), "b": Space(choices=(0.5, 0.9, 0.99))}
    values = {"a": np.float32([0.95, 1.0]), "b": np.float32([0.5, 0.9])}
    for seed in range(50):
        found = next_generation(np.array([0.0, 1.0]), values, spaces, np.random.default_rng(seed))
        assert found.parents.tolist() == [1, 1] and 0.9 <= found.values["a"][0] <= 1.0
        assert min(abs(found.values["b"][0] - choice) for choice in (0.5, 0.9, 0.99)) < 1e-6


def test_the_first_values_are_spread_over_the_space():
    drawn = first_generation(SPACES, 400, np.random.default_rng(0))[RATE]
    logs = np.log10(drawn)
    assert logs.min() > -5 and logs.max() < -1 and abs(logs.mean() + 3) < 0.2
