"""What an environment step costs: means, smoothed means and the workers' tree."""

from __future__ import annotations

import pytest

from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.step_times import BLOCK, NEWEST, StepTimes
from jaxrl.artifacts.metrics.timers import Timers
from jaxrl.types import EnvMessage, StepTiming


def result(worker: int, seconds: float, *timing: float) -> EnvMessage:
    return EnvMessage(worker, {}, {}, (), seconds, timing=StepTiming(*timing))


def test_x15_x16_means_and_smoothed_means_per_environment_step() -> None:
    """Two blocks of turns of 2 steps: waits of 8 and 4 ms are 4 and 2 ms a step; smoothed 4 + NEWEST (2 - 4)."""
    timers = Timers()
    times = StepTimes(timers)
    for seconds in (0.008, 0.004):
        for _ in range(BLOCK):
            timers.add(nodes.ENV_STEP, seconds)
            timers.add(nodes.EVALUATE, 0.001)
            times.tick(2)
    wait, act = times.phases()["env wait"], times.phases()["act"]
    assert (wait.mean, wait.smoothed) == pytest.approx((3.0, 4.0 - 2.0 * NEWEST))
    assert (act.mean, act.smoothed) == pytest.approx((0.5, 0.5))
    assert times.phases()["learn"] == (0.0, 0.0), "never ran"


def test_m24_nothing_is_divided_by_zero() -> None:
    times = StepTimes(Timers())
    times.tick(0)
    assert set(times.phases().values()) == {(0.0, 0.0)} and times.workers() == {}
    assert "env wait".title() in times.table()


def test_s5_u29_u30_workers_are_parallel_children_with_what_they_measured() -> None:
    """Worker 0 sends two results of 10 and 20 ms, of which 6 and 12 were the player's, worker 1 one of 40."""
    timers = Timers()
    times = StepTimes(timers)
    with timers(nodes.ENV_STEP):
        times.worker(result(0, 0.010, 0.006, 0.002, 0.0))
        times.worker(result(1, 0.040, 0.030, 0.001, 0.0))
        times.fold()
        times.worker(result(0, 0.020, 0.012, 0.004, 0.001))
        times.fold()
    workers = timers.to_json()["children"][nodes.ENV_STEP]["children"][nodes.WORKERS]
    assert workers["is_parallel"] and workers["total"] == pytest.approx(0.070) and workers["count"] == 3
    first = workers["children"]["worker_0"]
    assert first["is_parallel"] and first["count"] == 2 and first["total"] == pytest.approx(0.031)
    step = first["children"][nodes.UNITY_STEP]
    assert (step["total"], step["count"]) == (pytest.approx(0.030), 2)
    assert step["children"][nodes.EXCHANGE]["total"] == pytest.approx(0.018)
    assert step["self"] == pytest.approx(0.030 - 0.018 - 0.006)
    told = times.workers()
    assert told[0]["decode"].mean == pytest.approx(3.0)
    assert told[0]["decode"].smoothed == pytest.approx(2.0 + NEWEST * 2.0)
    assert told[1]["step"] == pytest.approx((40.0, 40.0))
    assert {"Env Wait", "Act", "Worker 0 Step", "Worker 1 Overhead"} <= times.by_name().keys()
