"""Tags and aggregation of statistics."""

import numpy as np
import pytest

from jaxrl.artifacts.metrics import statistics as metrics
from jaxrl.artifacts.metrics.statistics import StatsAggregator
from jaxrl.types import Aggregation, EnvironmentStat, JaxrlError


def test_the_four_aggregations():
    stats = StatsAggregator()
    for value in (1.0, 2.0, 6.0):
        stats.add("average", value)
        stats.add("sum", value, Aggregation.SUM)
        stats.add("recent", value, Aggregation.MOST_RECENT)
        stats.add("histogram", value, Aggregation.HISTOGRAM)
    stats.extend("several", (7.0, 8.0), Aggregation.MOST_RECENT)
    taken = stats.take()
    # mean (1 + 2 + 6) / 3 = 3, sum 9, population variance ((1-3)² + (2-3)² + (6-3)²) / 3 = 14 / 3
    assert {tag: summary.value for tag, summary in taken.items()} == {
        "average": 3.0,
        "sum": 9.0,
        "recent": 6.0,
        "histogram": 3.0,
        "several": 8.0,
    }
    assert taken["sum"].mean == 3.0 and taken["average"].sum == 9.0
    assert taken["histogram"].std == pytest.approx((14 / 3) ** 0.5)
    assert taken["histogram"].histogram is not None and taken["histogram"].histogram.tolist() == [1, 2, 6]
    assert taken["average"].histogram is None and taken["recent"].count == 1


def test_taking_clears_and_keys_without_values_are_absent():
    stats = StatsAggregator()
    stats.extend("rewards", np.array([1.0, 2.0], np.float32), Aggregation.HISTOGRAM)
    stats.extend("nothing", [])
    assert list(stats.take()) == ["rewards"]
    assert stats.take() == {}


def test_most_recent_of_the_environment_counts_from_worker_zero_only():
    stats = StatsAggregator()
    for worker in (0, 1, 2):
        sent = (
            EnvironmentStat(name="level", value=float(worker), aggregation=Aggregation.MOST_RECENT),
            EnvironmentStat(name="goals", value=1.0, aggregation=Aggregation.SUM),
        )
        stats.add_environment_stats(sent, worker)
    taken = stats.take()
    assert taken["level"].value == 0.0
    assert taken["goals"].value == 3.0


def test_an_unknown_aggregation_names_the_statistic_and_the_number():
    stat = EnvironmentStat(name="Goals", value=1.0, aggregation=7)  # pyright: ignore[reportArgumentType]
    for worker in (0, 1):
        with pytest.raises(JaxrlError, match=r"'Goals'.*7.*0 AVERAGE"):
            StatsAggregator().add_environment_stats((stat,), worker)


def test_the_tag_of_a_lesson():
    assert metrics.lesson_tag("wall_height") == "Environment/Lesson Number/wall_height"
