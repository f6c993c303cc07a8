"""The timer tree, gauges and timers.json."""

import json
import time

import pytest

from jaxrl.artifacts.metrics.statistics import StatsAggregator
from jaxrl.artifacts.metrics.timers import Timers


def test_nesting_counts_and_self_time():
    timers = Timers()
    for _ in range(3):
        with timers("outer"), timers("inner"):
            time.sleep(0.002)
    tree = timers.to_json()
    outer = tree["children"]["outer"]
    inner = outer["children"]["inner"]
    assert tree["name"] == "root" and tree["count"] == 1
    assert (outer["count"], inner["count"]) == (3, 3)
    assert tree["total"] >= outer["total"] >= inner["total"] >= 0.006
    assert outer["self"] == pytest.approx(outer["total"] - inner["total"])


def test_seconds_of_a_name_wherever_it_stands_but_not_beside_the_run():
    """0.5 + 0.25 + 2: a timer within one of its own name is part of it, and parallel ones ran meanwhile."""
    timers = Timers()
    timers.add("update", 0.5)
    with timers("advance"):
        timers.add("update", 0.25)
        timers.add("other", 8.0)
        timers.add("update", 2.0)
        with timers("workers"):
            timers.current.child("thread", is_parallel=True).child("update").total = 16.0
    timers.root.children["update"].child("update").total = 0.125
    assert timers.root.seconds_of("update") == 2.75
    assert timers.root.seconds_of("nothing") == 0.0


def test_an_exception_closes_the_timer():
    timers = Timers()
    with pytest.raises(ValueError, match="boom"), timers("a"), timers("b"):
        raise ValueError("boom")
    assert timers.current is timers.root
    assert timers.root.children["a"].count == 1


def test_the_file_has_the_keys_of_ml_agents(tmp_path):
    timers = Timers()
    stats = StatsAggregator()
    stats.extend("Environment/Cumulative Reward", [1.0, 3.0])
    timers.gauge_summaries("Walker", stats.take())
    timers.gauge("Walker.Loss", float("nan"))
    timers.gauge("x", 2.0)
    timers.gauge("x", -1.0)
    timers.write(tmp_path / "timers.json")
    tree = json.loads((tmp_path / "timers.json").read_text())
    assert {"name", "total", "count", "self", "gauges", "metadata"} <= set(tree)
    assert tree["gauges"]["Walker.Environment.CumulativeReward.mean"]["value"] == 2.0
    assert tree["gauges"]["Walker.Environment.CumulativeReward.sum"]["value"] == 4.0
    assert tree["gauges"]["Walker.Loss"]["value"] is None
    assert tree["gauges"]["x"] == {"value": -1.0, "min": -1.0, "max": 2.0, "count": 2}
    assert {
        "timer_format_version",
        "start_time_seconds",
        "end_time_seconds",
        "python_version",
        "command_line_arguments",
        "mlagents_envs_version",
        "communication_protocol_version",
        "numpy_version",
        "jaxrl_version",
        "jax_version",
    } <= set(tree["metadata"])


def test_a_timer_costs_microseconds():
    timers = Timers()
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(2000):
            with timers("a"):
                pass
        best = min(best, (time.perf_counter() - begun) / 2000)
    assert best < 10e-6  # about 0.6 µs on an idle machine
